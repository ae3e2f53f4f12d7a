"""A study lets its models replay each other's answers."""

from __future__ import annotations

from pathlib import Path

import floatlens as fl
from floatlens.findings.received import answer_positions
from floatlens.store.folder import RunFolder
from floatlens.store.runs import REPLAYS, model_runs
from floatlens.studies.plan import StudyPlan
from floatlens.studies.replays import compared, replayed_prompt
from tests.models import checkpoints
from tests.small_tokenizers import byte_level


def test_each_model_replays_the_answers_that_it_is_compared_on(tmp_path: Path) -> None:
    given = {"data": "world:long", "only": ["drift"], "sizes": {"short": 2}, "max_new_tokens": 6}
    found = fl.study(["tiny-mdm", "tiny-arm"], out=tmp_path / "s", **given)  # type: ignore[operator]
    assert not found.failed
    runs = {str(run.manifest["asked"]["model"]): run for run in model_runs(found.path)}
    own = {m: {name.rsplit(", ", 1)[1]: fl.Trace.open(path) for name, path in run.samples()} for m, run in runs.items()}
    texts: dict[str, list[str]] = {}
    for model, run in runs.items():
        for name, path in RunFolder.open(run.path / REPLAYS).samples():
            _, source, number = name.rsplit(", ", 2)
            source = source.removeprefix("replay of ")
            trace, origin = fl.Trace.open(path), own[source][number]
            assert trace.written == origin.final_tokens[answer_positions(origin)].tolist()
            assert trace.order == [[n] for n in range(len(trace.written))]
            prompt = own[model][number].final_tokens[: trace.prompt_length]
            assert trace.final_tokens[: trace.prompt_length].tolist() == prompt.tolist()
            texts.setdefault(model, []).append(source)
    long = [n for n in own["tiny-mdm"] if all(len(answer_positions(traces[n])) >= 4 for traces in own.values())]
    count = len(long)
    assert count and sorted(texts["tiny-mdm"]) == ["tiny-arm"] * count + ["tiny-mdm"] * count
    assert texts["tiny-arm"] == ["tiny-mdm"] * count
    [claim] = [claim for claim in found.claims if claim["id"] == "drift.moves"]
    assert claim["details"]["questions on identical text"] == count


def test_models_of_the_other_kind_are_compared_on_identical_text() -> None:
    plan = StudyPlan(models=("tiny-mdm", "tiny-dream", "tiny-arm"), data=("world:long",))
    assert compared(plan) == {
        "tiny-mdm": ["tiny-mdm", "tiny-arm"],
        "tiny-dream": ["tiny-dream", "tiny-arm"],
        "tiny-arm": ["tiny-mdm", "tiny-dream"],
    }


def test_another_tokenizer_gets_the_text_and_its_own_end_token(tmp_path: Path) -> None:
    tokenizer = byte_level()
    folder = checkpoints.llada(tmp_path, vocab=len(tokenizer) + 8)
    checkpoints.edit_config(folder, eos_token_id=tokenizer.eos_token_id)
    tokenizer.save_pretrained(folder)
    lens, arm = fl.load(str(folder)), fl.load("tiny-arm")
    own = lens.trace("Where does Ada Tarn live?", max_new_tokens=4)
    source = arm.replay("Where does Ada Tarn live?", [*arm.tokenizer("Molen it is")["input_ids"], arm.end_ids[0]])
    made = replayed_prompt(lens, own, source, "data, replay of tiny-arm, 1")
    assert made.script is not None and made.ids == own.final_tokens[: own.prompt_length].tolist()
    assert list(made.script.ids) == [*tokenizer("Molen it is")["input_ids"], lens.end_ids[0]]
