"""A trace keeps what it was given: saved, reopened, printed, asked for anchors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import floatlens
from floatlens import FloatLensError, Trace
from floatlens.attention.statistic import STATISTICS
from floatlens.data.prompt import Prompt, Region
from floatlens.findings.finding import FINDINGS
from tests.models import checkpoints
from tests.registries import restored


@pytest.fixture(scope="module")
def lens(tmp_path_factory: pytest.TempPathFactory) -> floatlens.Lens:
    return floatlens.load(str(checkpoints.llada(tmp_path_factory.mktemp("llada"))))


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> floatlens.Lens:
    return floatlens.load(str(checkpoints.native(tmp_path_factory.mktemp("llama"), "llama")))


@pytest.fixture(scope="module")
def trace(lens: floatlens.Lens) -> Trace:
    prompt = Prompt(
        "hi", [1, 5, 9, 13, 17], [Region("query", 1, 3), Region("doc1", 3, 5)], question="<b>why?</b>", gold=[0]
    )
    return lens.trace(prompt, max_new_tokens=4, sample_id="a/b")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_saved_trace_reopens_as_it_was(trace: Trace, tmp_path: Path, dtype: str) -> None:
    again = Trace.open(trace.save(tmp_path / "t", dtype=dtype))
    assert again.data.attrs.items() >= trace.data.attrs.items()
    tolerance = 0 if dtype == "float32" else 2e-3
    for name in trace.data.data_vars:
        assert again.data[name].dims == trace.data[name].dims
        assert again.data[name].dtype == trace.data[name].dtype
        np.testing.assert_allclose(again.data[name], trace.data[name], rtol=tolerance, atol=tolerance)
    assert list(again.data["region"].values) == ["other", "query", "doc1", "answer"]
    assert again.regions == trace.regions and again.gold == ["doc1"]


@pytest.mark.parametrize("name", ["exp::1", "s3:x", "run %20#1"])
def test_a_trace_opens_in_a_folder_of_any_name(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Trace.open(trace.save(name)).load().data["tokens"].equals(trace.data["tokens"])


def test_a_reopened_trace_reads_arrays_when_they_are_used(trace: Trace, tmp_path: Path) -> None:
    again = Trace.open(trace.save(tmp_path / "t"))
    assert not again.data["received"].variable._in_memory
    again.data["received"].sel(step=0).mean().load()
    assert not again.data["received"].variable._in_memory


def test_single_heads_are_stored_in_half_precision_and_the_rest_in_single(trace: Trace, tmp_path: Path) -> None:
    """Half precision has 11 bits: a relative error of at most 2 ** -11, or 2 ** -25 below the smallest normal number."""
    again = Trace.open(trace.save(tmp_path / "t"))
    for name in ("received", "qk", "qk_norm", "qk_cos", "value_norm"):
        assert json.loads((tmp_path / "t" / name / "zarr.json").read_text())["data_type"] == "float16"
        given = trace.data[name].values
        error = np.abs(again.data[name].values - given)
        assert error.max() > 0 and (error <= np.maximum(2.0**-11 * np.abs(given), 2.0**-25)).all()
    for name in ("entropy", "confidence", "received_writing", "flow", "evidence_mass"):
        assert json.loads((tmp_path / "t" / name / "zarr.json").read_text())["data_type"] == "float32"
        np.testing.assert_array_equal(again.data[name], trace.data[name])


def test_values_beyond_half_precision_are_stored_in_single(trace: Trace, tmp_path: Path) -> None:
    large = Trace(trace.data.assign(qk=trace.data["qk"] * 1e6, qk_norm=-trace.data["qk_norm"] * 1e6))
    assert float(large.data["qk"].max()) > 65504 and float(large.data["qk_norm"].min()) < -65504
    again = Trace.open(large.save(tmp_path / "t"))
    for name in ("qk", "qk_norm"):
        np.testing.assert_array_equal(again.data[name], large.data[name])


def test_part_of_a_stored_trace_is_the_part_of_the_whole(trace: Trace, tmp_path: Path) -> None:
    stored, whole = (Trace.open(trace.save(tmp_path / "t")).data["qk"] for _ in range(2))
    whole = whole.load()
    for part in ({"step": 1}, {"layer": [2, 0], "head": [1, 3]}, {"position": slice(2, 5), "head": -1}):
        np.testing.assert_array_equal(stored.isel(part), whole.isel(part))


@pytest.mark.parametrize("implementation", ["fused", "stream", "exact"])
def test_a_trace_names_the_implementation_that_was_used(lens: floatlens.Lens, implementation: Any) -> None:
    trace = lens.trace([4, 5, 6], max_new_tokens=2, implementation=implementation)
    assert trace.data.attrs["implementation"] == implementation


def test_a_trace_names_the_second_pass_where_attention_cannot_be_computed_once(causal: floatlens.Lens) -> None:
    half = floatlens.load(causal.name, dtype="bfloat16")
    assert half.trace([4, 5, 6], max_new_tokens=2).data.attrs["implementation"] == "stream"
    assert causal.trace([4, 5, 6], max_new_tokens=2).data.attrs["implementation"] == "fused"


def test_saving_over_a_trace_replaces_it_whole(trace: Trace, lens: floatlens.Lens, tmp_path: Path) -> None:
    other = lens.trace([4, 5, 6], max_new_tokens=2)
    trace.save(tmp_path / "t")
    other.save(tmp_path / "t")
    assert Trace.open(tmp_path / "t").data.sizes["position"] == 5
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_no_file_of_a_trace_is_a_pickle(trace: Trace, tmp_path: Path) -> None:
    for file in trace.save(tmp_path / "t").rglob("zarr.json"):
        assert json.loads(file.read_text())["zarr_format"] == 3


def test_an_attribute_that_could_not_be_read_again_is_not_stored(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(FloatLensError, match="cannot be stored: its attribute 'kind' is 'other'"):
        Trace(trace.data.assign_attrs(kind="other")).save(tmp_path / "trace")
    assert not any(tmp_path.iterdir())
    Trace(trace.data.assign_attrs(prompt_length=np.int64(2))).save(tmp_path / "trace")
    assert Trace.open(tmp_path / "trace").prompt_length == 2


def test_what_is_not_a_trace_is_said(tmp_path: Path) -> None:
    with pytest.raises(FloatLensError, match="no zarr.json"):
        Trace.open(tmp_path)
    with pytest.raises(FloatLensError, match="variable 'tokens' should have dims"):
        Trace(xr.Dataset())
    (tmp_path / "zarr.json").write_text("{")
    with pytest.raises(FloatLensError, match="is not valid JSON"):
        Trace.open(tmp_path)


def test_a_trace_shows_itself_in_a_terminal_and_in_a_notebook(trace: Trace) -> None:
    assert "9 positions (5 prompt + 4 new), 4 steps, 3 layers, 4 heads" in repr(trace)
    html = trace._repr_html_()
    assert "&lt;b&gt;why?&lt;/b&gt;" in html and "<b>why?</b>" not in html.split("xr-")[0]


def test_anchors_follow_their_rule(trace: Trace) -> None:
    received = trace.data["received"].mean("head")
    found = trace.anchors("top(2)")
    assert found.dims == ("step", "layer", "position") and found.attrs["rule"] == "top(n=2)"
    order = np.sort(received.values, axis=-1)[..., -2]
    np.testing.assert_array_equal(found.values, received.values >= order[..., None])


def test_an_autoregressive_trace_grows_by_one_position_a_step(causal: floatlens.Lens) -> None:
    causal.end_ids = ()
    trace = causal.trace([1, 5, 9], max_new_tokens=4)
    present = np.isfinite(trace.data["received"].isel(layer=0, head=0).values)
    np.testing.assert_array_equal(present.sum(1), [3, 4, 5, 6])
    np.testing.assert_array_equal(trace.data["committed_at"], [-1, -1, -1, 0, 1, 2, 3])
    np.testing.assert_array_equal((trace.data["tokens"].values >= 0).sum(1), [3, 4, 5, 6])
    np.testing.assert_allclose(trace.data["received"].sum("position"), 1.0, atol=1e-5)


def test_the_running_mean_equals_one_pass_over_the_whole_sequence(causal: floatlens.Lens) -> None:
    """What a cache adds row by row is what a single causal pass over the finished input gives."""
    causal.end_ids = ()
    grown = causal.trace([1, 5, 9, 30, 22], max_new_tokens=5)
    seen = grown.data["tokens"].values[-1]
    once = causal.trace([int(i) for i in seen if i >= 0], max_new_tokens=1)
    for name in ("received", "entropy", "qk", "qk_norm", "qk_cos", "value_norm"):
        last = grown.data[name].isel(step=-1)
        wanted = once.data[name].isel(step=0)
        scale = float(np.nanmax(np.abs(wanted)))
        np.testing.assert_allclose(last, wanted, atol=1e-5 * max(1, scale), err_msg=name)


def test_only_what_was_asked_for_is_kept(lens: floatlens.Lens) -> None:
    whole = lens.trace([4, 5, 6], max_new_tokens=4)
    part = lens.trace(
        [4, 5, 6], max_new_tokens=4, layers=[0, 2], heads=[1], record_steps=[1, 3], record=["received", "value_norm"]
    )
    assert part.data["received"].shape == (2, 2, 1, 7) and "entropy" not in part.data
    wanted = whole.data["received"].sel(step=[1, 3], layer=[0, 2], head=[1])
    xr.testing.assert_allclose(part.data["received"].drop_attrs(), wanted.drop_attrs(), atol=1e-6)
    matrix = lens.trace([4, 5, 6], max_new_tokens=4, matrices=["attention"], matrix_layers=[1])
    assert matrix.data["attention"].dims == ("step", "attention_layer", "head", "query", "key")
    assert list(matrix.data["attention_layer"].values) == [1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layers": [3]}, "layer 3 does not exist; there are 3, from 0 to 2"),
        ({"heads": [-1]}, "head -1 does not exist"),
        ({"record_steps": [9]}, "step 9 does not exist"),
        ({"layers": []}, "no layer was selected"),
        ({"record": ["sparkle"]}, "unknown statistic 'sparkle'; use one of"),
        ({"matrices": ["received"]}, "unknown matrix 'received'"),
        ({"implementation": "fast"}, "unknown implementation 'fast'"),
    ],
)
def test_what_does_not_exist_cannot_be_recorded(lens: floatlens.Lens, options: dict, said: str) -> None:
    with pytest.raises(FloatLensError, match=said):
        lens.trace([4, 5, 6], max_new_tokens=4, **options)


def test_matrices_of_other_layers_leave_the_statistics_their_own(lens: floatlens.Lens) -> None:
    trace = lens.trace([4, 5, 6], max_new_tokens=4, layers=[1], matrices=["attention"], matrix_layers=[0, 1])
    assert trace.data["layer"].values.tolist() == [1] and trace.data["attention_layer"].values.tolist() == [0, 1]
    by_hand = trace.data["attention"].sel(attention_layer=[1]).mean("query").values
    np.testing.assert_allclose(trace.data["received"], by_hand, atol=1e-5)
    assert trace.anchors("top(1)").dims == ("step", "layer", "position")


def test_what_was_not_recorded_is_named(lens: floatlens.Lens) -> None:
    trace = lens.trace([4, 5, 6], max_new_tokens=4, record=["flow"])
    with pytest.raises(FloatLensError, match="record 'received'"):
        trace.anchors()
    with pytest.raises(FloatLensError, match="--record default,evidence"):
        floatlens.findings.heads.measure(trace)


class Peak(floatlens.Statistic):
    """The largest single attention weight of each head, over all queries so far."""

    name, dims = "peak", ("head",)

    def start(self, call):
        if call.starts_over:
            self.best = torch.zeros(call.B, call.H)

    def tile(self, tile):
        self.best = self.best.maximum(tile.weights_BHQT.amax((-1, -2)))

    def result(self, call):
        return self.best


def test_a_statistic_of_ones_own_is_recorded_by_its_name(lens: floatlens.Lens) -> None:
    with restored(STATISTICS):
        floatlens.register_statistic(Peak)
        trace = lens.trace([4, 5, 6], max_new_tokens=4, record=["received", "peak"], matrices=["attention"])
    np.testing.assert_allclose(trace.data["peak"], trace.data["attention"].max(("query", "key")), atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "said"),
    [((1, 2, 3), r"\[1, 2, 3\]; expected"), ((1, 7), r"\[1, 7\]; expected .*head 4"), (None, "NoneType")],
)
def test_a_statistic_of_the_wrong_shape_is_named(lens: floatlens.Lens, shape: Any, said: str) -> None:
    class Wrong(floatlens.Statistic):
        name, dims = "wrong", ("head",)

        def result(self, call):
            return None if shape is None else torch.zeros(shape)

    with restored(STATISTICS):
        floatlens.register_statistic(Wrong)
        with pytest.raises(FloatLensError, match=f"statistic 'wrong'.*{said}"):
            lens.trace([4, 5, 6], max_new_tokens=2, record=["wrong"])


def test_a_step_or_layer_that_was_not_recorded_is_named(lens: floatlens.Lens) -> None:
    trace = lens.trace([4, 5, 6], max_new_tokens=2)
    assert trace.strings(0)
    with pytest.raises(FloatLensError, match=r"step -1 was not recorded; recorded steps: 0 to 1"):
        trace.strings(-1)


def test_tables_of_a_trace_hold_text_without_the_marks_of_its_tokenizer() -> None:
    trace = floatlens.load("tiny-mdm").trace("Where was Ada born?", max_new_tokens=2)
    assert any("Ġ" in token for token in trace.strings()) and not any("Ġ" in text for text in trace.texts(0))
    for finding in (FINDINGS["drift"], FINDINGS["geometry"]):
        table = finding.figure(trace, view=finding.maps[0], backend="none")
        assert " born" in set(table["token"]) and not table["token"].str.contains("Ġ").any()


def test_evidence_finds_a_head_that_copies(lens: floatlens.Lens) -> None:
    """Committed tokens that stand in the gold document: hit and mass worked out from the matrices by hand."""
    prompt = Prompt("", [1, *range(3, 60)], [Region("doc1", 1, 58)], gold=[0])
    trace = lens.trace(prompt, max_new_tokens=6, steps=3, matrices=["attention"])
    for step in range(3):
        tokens, at = trace.data["tokens"].values[step], trace.data["committed_at"].values
        places = [p for p in np.flatnonzero(at == step) if 3 <= trace.final_tokens[p] < 60]
        assert trace.data["evidence_count"].values[step] == len(places)
        if not places:
            continue
        rows = trace.data["attention"].values[step][:, :, places]
        np.testing.assert_allclose(
            trace.data["evidence_mass"].values[step], rows[..., 1:58].sum(-1).mean(-1), atol=1e-5
        )
        top = rows.argmax(-1)
        hit = (top >= 1) & (top < 58) & (tokens[top] == trace.final_tokens[places])
        np.testing.assert_allclose(trace.data["evidence_hit"].values[step], hit.mean(-1), atol=1e-6)
