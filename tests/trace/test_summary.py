"""A summary of a trace: the same verdicts as the trace itself, in a fraction of its size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import floatlens as fl
from floatlens import FloatLensError, Trace
from floatlens.anchors import COMMON_RULES
from floatlens.explorer.film import film
from floatlens.findings import absorption, drift, geometry, similarity, values
from floatlens.findings.finding import FINDINGS
from floatlens.stats import SMALLEST_N
from floatlens.store.runs import model_runs
from tests.commands import run

RECORD = ("default", "cache_drift", "locality", "massive", "step_similarity", "lens_token")
Pairs = tuple[list[Trace], list[Trace]]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Traces of both bundled kinds, as they were recorded, and their summaries, saved and opened."""
    folder = tmp_path_factory.mktemp("summaries")
    whole = []
    for name in ("tiny-mdm", "tiny-arm"):
        lens = fl.load(name)
        samples = list(fl.read("world:fresh", limit=SMALLEST_N))
        prompts = [lens.prompt(s.question, s.passages[:3], gold=[0], answers=s.answers) for s in samples]
        ids = [f"question {n}" for n in range(len(samples))]
        whole += lens.traces(prompts, sample_ids=ids, max_new_tokens=8, record=RECORD)
    return whole, [Trace.open(t.save(folder / str(n), detail="summary")) for n, t in enumerate(whole)]


@pytest.mark.parametrize("name", [name for name in FINDINGS.names() if FINDINGS[name].reads == "traces"])
def test_a_summary_gives_the_verdicts_of_the_whole_trace(pairs: Pairs, name: str) -> None:
    """The values agree to the third digit and beyond; every finding on traces can be measured."""
    from_whole, from_summaries = (FINDINGS[name].claims(traces) for traces in pairs)
    assert len(from_whole) > 0 and len(from_whole) == len(from_summaries)
    for one, other in zip(from_whole, from_summaries, strict=True):
        assert (one.id, one.models, one.n, one.verdict) == (other.id, other.models, other.n, other.verdict)
        np.testing.assert_allclose([other.value, *other.interval], [one.value, *one.interval], rtol=5e-4, atol=5e-4)
    decided = [one for one in from_whole if np.isfinite(one.value)]
    assert decided, f"no claim of {name} has a value on these traces"


def test_what_a_summary_keeps_equals_what_the_whole_trace_shows(pairs: Pairs) -> None:
    whole, summary = pairs[0][0].data, pairs[1][0].data
    for name in ("received", "qk", "qk_norm", "qk_cos"):
        assert name not in summary
        np.testing.assert_allclose(summary[f"{name}_mean"], whole[name].mean("head"), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(summary["value_norm_mean"], whole["value_norm"].mean("kv_head"), rtol=1e-5)
    for name in ("entropy", "evidence_mass", "received_writing", "flow", "confidence", "tokens"):
        np.testing.assert_array_equal(summary[name], whole[name])


@pytest.mark.parametrize("rule", COMMON_RULES)
def test_anchors_and_their_advantage_are_kept_by_every_common_rule(pairs: Pairs, rule: str) -> None:
    for whole, summary in ((pairs[0][0], pairs[1][0]), (pairs[0][-1], pairs[1][-1])):  # of an MDM, of an ARM
        anchors = whole.anchors(rule)
        np.testing.assert_array_equal(summary.data["anchors"].sel(rule=anchors.attrs["rule"]), anchors)
        np.testing.assert_array_equal(summary.anchors(rule), anchors)
        one, other = (geometry.measure(trace, rule=rule) for trace in (whole, summary))
        for name in ("advantage", "norm_part", "angle_part"):
            np.testing.assert_allclose(other[name], one[name], rtol=1e-4, atol=1e-5)


def test_a_rule_that_was_not_kept_is_refused_by_name(pairs: Pairs) -> None:
    absorption.measure(pairs[1], rule="top(2)")  # on the mean over heads, any rule will do
    with pytest.raises(
        FloatLensError, match=r"geometry by top\(n=2\).*'question 0' is a summary.*sigma\(k=3\).*--detail full"
    ):
        geometry.measure(pairs[1], rule="top(2)")


def test_single_heads_of_a_summary_are_refused_by_name(pairs: Pairs) -> None:
    assert len(geometry.figure(pairs[1], view="heatmap", backend="none"))
    with pytest.raises(FloatLensError, match=r"geometry needs qk, qk_norm, qk_cos of single heads.*--detail full"):
        geometry.figure(pairs[1], view="heatmap", head=1, backend="none")


def test_a_statistic_that_was_not_recorded_is_not_blamed_on_the_summary(tmp_path: Path) -> None:
    trace = fl.load("tiny-mdm").trace("Who?", max_new_tokens=4, record=["received"])
    summary = Trace.open(trace.save(tmp_path / "t", detail="summary"))
    for finding, missing in ((geometry, "qk, qk_norm"), (values, "value_norm"), (similarity, "step_similarity")):
        again = "trace again with --record default," + missing.replace(" ", "")
        with pytest.raises(FloatLensError, match=f"needs {missing}, which .* does not hold; {again}$"):
            finding.measure(summary)
    assert np.isfinite(drift.measure(summary)["without_anchors"]).all()


def test_a_film_of_a_summary_has_no_single_heads_and_says_so(pairs: Pairs) -> None:
    one, other = (film(traces[0]) for traces in pairs)
    assert other["received_heads"] is None and "--detail summary" in other["thinned"][-1]
    for name in ("received", "received_all", "anchors", "anchors_all", "heads", "tokens"):
        assert other[name] == one[name]


def test_a_summary_is_its_own_summary(pairs: Pairs) -> None:
    assert pairs[1][0].summarised() is pairs[1][0]


def test_a_level_of_detail_that_does_not_exist_is_refused(pairs: Pairs, tmp_path: Path) -> None:
    with pytest.raises(FloatLensError, match="unknown detail 'short'; use one of full, summary"):
        pairs[0][0].save(tmp_path / "t", detail="short")  # type: ignore[arg-type]


def test_matrices_that_were_requested_stay_in_a_summary(tmp_path: Path) -> None:
    trace = fl.load("tiny-mdm").trace("Who?", max_new_tokens=2, matrices=["attention", "queries"], matrix_layers=[1])
    summary = Trace.open(trace.save(tmp_path / "t", detail="summary"))
    for name in ("attention", "queries"):
        np.testing.assert_allclose(summary.data[name], trace.data[name], rtol=2e-3, atol=1e-6)


def test_commands_that_write_traces_write_summaries_on_request(tmp_path: Path) -> None:
    asked = ("--data", "world:fresh", "--limit", 1, "--passages", 2, "--max-new-tokens", 4, "--detail", "summary")
    run("trace", "tiny-mdm", *asked, "--out", tmp_path / "trace")
    run("stress", "noise", "tiny-mdm", *asked, "--levels", "0", "--trace", "--out", tmp_path / "stress")
    fl.study(
        "tiny-mdm", data="world:fresh", only=["drift"], limit=1, max_new_tokens=4, detail="summary", out=tmp_path / "s"
    )
    for folder in (tmp_path / "trace", tmp_path / "stress", tmp_path / "s"):
        traces = [Trace.open(path) for found in model_runs(folder) for _, path in found.samples()]
        assert traces and all(trace.is_summary and "received" not in trace.data for trace in traces), folder


def test_a_command_refuses_a_level_of_detail_that_does_not_exist(tmp_path: Path) -> None:
    done = run("trace", "tiny-mdm", "--prompt", "Who?", "--detail", "less", "--out", tmp_path / "run", code=2)
    assert "unknown detail 'less'; use one of full, summary" in done.stderr
