"""Models that are asked other questions than the others have a plan of their own."""

from __future__ import annotations

import pytest

import floatlens as fl
from floatlens.options import Sampling, Scope
from floatlens.store.runs import model_runs
from floatlens.studies.analyse import shown_samples
from floatlens.studies.plan import StudyPlan
from floatlens.studies.report import films, shown_traces
from floatlens.studies.study import Study, run_study


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """tiny-mdm and tiny-arm share questions; tiny-dream is traced on others."""
    scope = Scope(only=["drift"], sizes={"short": 2})
    plans = [
        StudyPlan(models=("tiny-dream",), data=("world:fresh",), scope=scope, sampling=Sampling(max_new_tokens=3)),
        StudyPlan(
            models=("tiny-mdm", "tiny-arm"), data=("world:long",), scope=scope, sampling=Sampling(max_new_tokens=4)
        ),
    ]
    return run_study(plans, tmp_path_factory.mktemp("own") / "s")


def test_each_model_is_traced_on_its_own_questions(found: Study) -> None:
    assert not found.failed
    asked = {
        str(run.manifest["asked"]["model"]): {name.split(", ")[0] for name, _ in run.samples()}
        for run in model_runs(found.path)
    }
    written = {run.manifest["asked"]["model"]: fl.Trace.open(run.samples()[0][1]) for run in model_runs(found.path)}
    assert {model: len(trace.final_tokens) - trace.prompt_length for model, trace in written.items()} == {
        "tiny-dream": 3,
        "tiny-mdm": 4,
        "tiny-arm": 4,
    }
    assert asked == {"tiny-dream": {"world:fresh"}, "tiny-mdm": {"world:long"}, "tiny-arm": {"world:long"}}


def test_models_without_a_shared_question_are_not_compared(found: Study) -> None:
    pairs = {tuple(claim["models"]) for claim in found.claims if len(claim["models"]) == 2}
    assert pairs == {("tiny-mdm", "tiny-arm")}
    assert any(claim["models"] == ["tiny-dream"] for claim in found.claims)


def test_maps_show_one_question_per_group_of_models_and_films_that_of_the_largest(found: Study) -> None:
    homes = [run.path for run in model_runs(found.path)]
    shown = shown_samples(homes, "short")
    samples = [[fl.Trace.open(path).data.attrs["sample_id"].split(", ")[0] for path in paths] for paths in shown]
    assert samples == [["world:long", "world:long"], ["world:fresh"]]
    models = [each["model"] for each in films(homes, shown_traces(homes))]
    assert models[0] == models[1] and models[2:] == [
        "tiny-mdm",
        "tiny-arm",
    ]  # first the prose, without and with its sink
