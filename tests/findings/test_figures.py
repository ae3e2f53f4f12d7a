"""Figures are tested by their data, and are ordinary matplotlib figures."""

import json

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.figure import Figure

from floatlens.errors import FloatLensError
from floatlens.findings import style
from floatlens.findings.draw import lines
from floatlens.findings.finding import FINDINGS
from floatlens.studies.page import inlined
from tests.findings.planted import TRACED, planted, wandering

RULED = ("drift", "geometry", "tokens", "values", "massive")  # these find anchors by one rule, which their figures name
VIEWS = [(name, view) for name in TRACED for view in FINDINGS[name].views]


@pytest.fixture(scope="module")
def traces():
    mdm = [planted(seed=i, anchors=wandering(), copying=(1, 1), gold=1 + i, layers=2) for i in range(2)]
    return mdm + [planted(seed=i, model="arm", kind="arm", layers=2, gold=1 + i) for i in range(2)]


@pytest.mark.parametrize(("name", "view"), VIEWS)
def test_every_view_draws_and_saves_with_its_data_beside_it(name, view, traces, tmp_path):
    finding = FINDINGS[name]
    before = dict(mpl.rcParams)
    data = finding.figure(traces, view=view, backend="none")
    figure = finding.figure(traces, view=view)
    assert isinstance(data, pd.DataFrame) and len(data) and "model" in data
    assert isinstance(figure, Figure)
    figure.axes[0].set_title("mine")  # the user can go on editing
    written = style.save(figure, data, tmp_path / name)
    assert [p.suffix for p in written] == [".png", ".svg", ".pdf", ".parquet"]
    assert all(p.stat().st_size > 500 for p in written)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / f"{name}.parquet"), data, check_dtype=False)
    assert dict(mpl.rcParams) == before  # our style sheet stays ours
    assert "sigma" in caption(figure) or name not in RULED
    [title] = [text.get_text() for text in figure.texts if text.get_gid() == style.TITLE]
    assert title and len(title) <= 90


def caption(figure):
    return figure._supxlabel.get_text()


def test_a_single_trace_can_be_drawn_in_every_view(traces):
    for name, view in VIEWS:
        assert isinstance(FINDINGS[name].figure(traces[0], view=view), Figure)


def test_the_drift_map_draws_received_attention_anchors_and_commits(traces):
    data = FINDINGS["drift"].figure(traces[0], layer=1, backend="none")
    trace = traces[0]
    received = data.pivot(index="step", columns="position", values="received").to_numpy()
    np.testing.assert_allclose(received, trace.data["received"].sel(layer=1).mean("head"), rtol=1e-5)
    anchors = data.pivot(index="step", columns="position", values="anchor").to_numpy()
    assert (anchors == trace.anchors().sel(layer=1).values).all()
    figure = FINDINGS["drift"].figure(trace, layer=1)
    points = figure.axes[0].lines[0].get_xydata()
    committed = trace.data["committed_at"].values
    assert {tuple(p) for p in points} == {(p, committed[p]) for p in np.flatnonzero(committed >= 0)}


def test_few_positions_have_their_tokens_on_the_axis(traces):
    axes = FINDINGS["drift"].figure(traces[0], layer=0, positions=slice(0, 10)).axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()][3:6] == ["Answer", "the", "question"]


def test_dollar_signs_in_a_name_or_a_token_are_no_mathematics(tmp_path):
    trace = planted(model=r"models/$\nonsense$", layers=2)
    words = json.loads(trace.data.attrs["vocabulary"])
    trace.data.attrs["vocabulary"] = json.dumps({token: r"$\x$" for token in words})
    figure = FINDINGS["drift"].figure(trace, layer=0, positions=slice(0, 4))
    style.save(figure, pd.DataFrame(), tmp_path / "drift")
    assert r"$\nonsense$" in (drawn := (tmp_path / "drift.svg").read_text()) and r"$\x$" in drawn


def test_control_characters_in_a_name_or_a_token_leave_a_valid_drawing(tmp_path):
    figure = Figure()
    figure.text(0.1, 0.5, "a\x1b[2Jb \x00")
    style.save(figure, pd.DataFrame({"a": [1]}), tmp_path / "figure")
    assert "[2Jb" in inlined((tmp_path / "figure.svg").read_text(), "figure", "title", "text")


def test_the_flow_figure_sweeps_gold_positions(traces):
    data = FINDINGS["flow"].figure(traces, backend="none")
    assert sorted(set(data["gold_position"])) == [1, 2]
    figure = FINDINGS["flow"].figure(traces)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title.partition("\n")[2] for title in titles[:2]] == ["gold at 1", "gold at 2"]
    labels = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert "doc1 (gold)" in labels


def test_token_shares_that_are_drawn_fill_the_bar(traces):
    data = FINDINGS["tokens"].figure(traces, backend="none")
    np.testing.assert_allclose(data.groupby(["model", "layer"])["mass"].sum(), 1.0)


def test_an_unknown_backend_or_view_is_named(traces):
    with pytest.raises(FloatLensError, match="backend 'plotly'"):
        FINDINGS["drift"].figure(traces, backend="plotly")
    with pytest.raises(FloatLensError, match="view 'spiral'"):
        FINDINGS["flow"].figure(traces, view="spiral")


def test_shares_are_drawn_between_0_and_1():
    """A band of one standard deviation would reach above 1, where no share can lie."""
    share_NL = np.array([[1.0, 1.0], [1.0, 0.8], [0.7, 0.9]])
    kinds = {"model": ("sample", ["m"] * 3), "model_kind": ("sample", ["mdm"] * 3), "layer": [0, 1]}
    measured = xr.Dataset({"share": (("sample", "layer"), share_NL)}, kinds)
    drawn = lines(measured, {"share": "share"}, backend="matplotlib", note="Shares", shares=True)
    [axes] = drawn.axes
    [band] = axes.collections
    assert band.get_paths()[0].vertices[:, 1].max() == 1.0 and axes.get_ylim()[0] == 0
    assert 1.0 in axes.get_yticks() and 1.0 < axes.get_ylim()[1] < 1.1


def test_panels_on_one_scale_show_all_numbers():
    numbers = {name: (("sample", "layer"), np.array([[0.1, top]] * 2)) for name, top in (("low", 0.2), ("high", 5.0))}
    kinds = {"model": ("sample", ["m"] * 2), "model_kind": ("sample", ["mdm"] * 2), "layer": [0, 1]}
    names = {name: name for name in numbers}
    drawn = lines(xr.Dataset(numbers, kinds), names, backend="matplotlib", same_scale=True)
    assert [axes.get_ylim() for axes in drawn.axes] == [drawn.axes[0].get_ylim()] * 2
    assert drawn.axes[0].get_ylim()[0] == 0 and drawn.axes[0].get_ylim()[1] >= 5


@pytest.mark.parametrize("name", TRACED)
def test_a_figure_of_five_models_has_at_most_four_panels(name):
    several = [planted(model=f"m{n}", kind="arm" if n % 2 else "mdm", copying=(4, 1)) for n in range(5)]
    finding = FINDINGS[name]
    for view in finding.views:
        panels = [axes for axes in finding.figure(several, view=view).axes if axes.get_label() != "<colorbar>"]
        assert sum(axes.axison for axes in panels) <= style.PANELS, view


def test_a_model_has_one_colour_in_all_figures_of_a_report():
    with style.same_looks(["a", "b", "c"]):
        assert style.looks_of(["c", "b"])["c"] == style.looks_of(["a", "b", "c"])["c"] != style.looks_of(["a"])["a"]
        assert len({look["color"] for look in style.looks_of(["LLaDA (paper)", "c", "a", "b"]).values()}) == 4
    assert style.looks_of(["c"])["c"]["color"] == style.COLOURS[0]


def test_a_model_without_numbers_in_its_last_layer_is_not_stretched_to_the_depth_of_another():
    finding = FINDINGS["values"]
    measured = finding.measure(planted(copying=(4, 0)))
    short = measured.copy(deep=True).assign_coords(model=("sample", ["another"] * measured.sizes["sample"]))
    for name in short.data_vars.keys() - {"depth"}:
        if "layer" in short[name].dims:
            short[name] = short[name].where(short["layer"] < short["layer"].max())
    drawn = finding.figure(xr.concat([measured, short], "sample", combine_attrs="override"))
    assert {axes.get_xlabel() for axes in drawn.axes} == {"layer"}
    assert drawn.axes[0].lines[-1].get_xdata()[-1] == measured["layer"].max() - 1
