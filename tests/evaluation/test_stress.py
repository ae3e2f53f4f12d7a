"""Stress tests change one thing at a time, equally for every model; robustness numbers are those of planted curves."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from floatlens.data.sample import Passage, Sample, contains_words
from floatlens.errors import FloatLensError
from floatlens.evaluation import curves
from floatlens.evaluation.loop import ModelWorker, answer_all
from floatlens.evaluation.stress import (
    STRESSES,
    StressLevel,
    StressOptions,
    is_distractor,
    register_stress,
    stress_experiments,
)
from floatlens.evaluation.summary import results
from floatlens.options import Data, Sampling


def samples(count=12, passages=6, gold=(2,)):
    return [
        Sample(
            f"q{i}",
            f"Where does Ada{i} live?",
            [f"Molen{i}"],
            [
                Passage(
                    f"Ada{i} lives in Molen{i}, {j}." if j in gold else f"Ben{i} lives in Rusk{i}-{j}.", gold=j in gold
                )
                for j in range(passages)
            ],
        )
        for i in range(count)
    ]


def levels(name, questions=None, **options):
    return STRESSES[name].levels(questions or samples(), StressOptions(**options))


@pytest.mark.parametrize("kind", ["random", "hard", "own"])
def test_noise_adds_distractors_and_never_an_answer(kind):
    found = levels("noise", values=(0, 2, 4), distractors=kind)
    assert [level.name for level in found] == ["0", "2", "4"]
    assert found[0].x == 0 and found[1].x == pytest.approx(2 / 3) and found[2].x == pytest.approx(4 / 5)
    for before, after in zip(found[1].samples, found[2].samples, strict=True):
        assert len(after.passages) == 5 and len(after.gold) == 1
        for passage in after.passages:
            assert passage.gold or not contains_words(passage.line, after.answers[0])
        noise = [{p.text for p in s.passages if not p.gold} for s in (before, after)]
        assert noise[0] < noise[1]  # a level's distractors are among the next one's
    places = {tuple(s.gold) for s in found[2].samples}
    assert len(places) > 2  # the gold passage is not always at the same place
    assert found == levels("noise", values=(0, 2, 4), distractors=kind)


def test_random_noise_comes_from_other_questions_and_hard_noise_looks_like_the_question():
    for sample in levels("noise", values=(3,), distractors="random")[0].samples:
        number = sample.id[1:]
        assert all(f"Ben{number} " not in p.text for p in sample.passages)
    questions = [
        *samples(4),
        Sample("x", "Where does the red fox live?", ["den"], [Passage("A red fox has fur.", gold=False)]),
    ]
    questions[0] = Sample("y", "What does the red fox eat?", ["mice"], [Passage("It eats mice.", gold=True)])
    (first, *_) = levels("noise", questions, values=(1,), distractors="hard")[0].samples
    assert any("red fox" in p.text for p in first.passages)


def test_noise_that_cannot_be_had_is_refused():
    with pytest.raises(FloatLensError, match="distractors for question 'q0', but 500 are needed; .*--levels 0,1,2,4,8"):
        levels("noise", values=(500,))
    with pytest.raises(FloatLensError, match="unknown kind of distractors 'soft'"):
        levels("noise", distractors="soft")
    with pytest.raises(FloatLensError, match="needs questions with a gold passage"):
        levels("noise", [Sample("1", "Q?", ["a"], [Passage("x")])])


def test_position_puts_the_gold_at_each_place_and_changes_nothing_else():
    found = levels("position", samples(passages=4))
    assert [level.x for level in found] == [0, 1, 2, 3]
    for place, level in enumerate(found):
        for sample, original in zip(level.samples, samples(passages=4), strict=True):
            assert sample.gold == [place]
            assert [p for p in sample.passages if not p.gold] == [p for p in original.passages if not p.gold]
    assert len(levels("position", samples(passages=30))) == 11
    with pytest.raises(FloatLensError, match="gold position 9 in --levels is out of range; there are 4 passages"):
        levels("position", samples(passages=4), values=(9,))


def test_layout_sets_the_distance_between_pieces_of_evidence():
    found = {level.name: level for level in levels("layout", samples(passages=8, gold=(1, 4)))}
    assert list(found) == ["together", "apart 1", "apart 2", "apart 4", "reversed", "shuffled"]
    for name, level in found.items():
        for sample in level.samples:
            first, second = sample.gold
            if name != "shuffled":
                assert second - first - 1 == (int(name.split()[1]) if " " in name else 0)
            order = [sample.passages[i].text.rsplit(" ", 1)[1] for i in sample.gold]
            assert order == (["4.", "1."] if name == "reversed" else ["1.", "4."]) or name == "shuffled"
            assert len(sample.passages) == 8
    assert len({tuple(s.gold) for s in found["shuffled"].samples}) > 3
    with pytest.raises(FloatLensError, match="needs questions with 2 gold passages"):
        levels("layout", samples())


def test_masks_and_query_change_how_is_asked_and_not_what():
    masks = STRESSES["masks"].levels(samples(), StressOptions(values=(8, 32)))
    assert [(how.max_new_tokens, how.steps) for how in (m.options(Sampling(steps=16), Data())[0] for m in masks)] == [
        (8, 8),
        (32, 16),
    ]
    query = levels("query")
    assert [(q.name, q.options(Sampling(), Data())[1].order) for q in query] == [
        ("after", "last"),
        ("before", "first"),
        ("both", "both"),
    ]
    assert all(level.samples == samples() for level in [*masks, *query])


def test_an_unknown_stress_is_named():
    with pytest.raises(FloatLensError, match="unknown stress 'heat'; use one of noise, position"):
        STRESSES["heat"]
    assert list(STRESSES) == ["noise", "position", "layout", "masks", "query"]


def test_a_stress_of_ones_own_is_one_function(monkeypatch):
    STRESSES.load()
    monkeypatch.setattr(STRESSES, "_entries", dict(STRESSES._entries))

    @register_stress("shout", axis="loudness", about="the question in capitals")
    def levels(samples, options):
        loud = [Sample(s.id, s.question.upper(), s.answers, s.passages) for s in samples]
        return [StressLevel("quiet", 0.0, list(samples)), StressLevel("loud", 1.0, loud)]

    made = STRESSES["shout"].levels(samples(2), StressOptions())
    jobs = list(stress_experiments(STRESSES["shout"], ["m"], {"d": made}))
    assert [job.condition for job in jobs] == ["shout=quiet", "shout=loud"] and jobs[1].labels["x"] == 1.0
    assert list(STRESSES)[-1] == "shout"
    with pytest.raises(FloatLensError, match="the stress 'noise' is already registered"):
        register_stress("noise", axis="", about="")(levels)


class Forgetful:
    """Answers right only if the gold passage is among the first `span`."""

    context_length = 4096
    block_length, batched = None, True

    def __init__(self, tokenizer, span, kind):
        self.tokenizer, self.span, self.family = tokenizer, span, SimpleNamespace(kind=kind)

    def generate(self, prompts, **settings):
        said = [p.answers[0] if p.gold and p.gold[0] < self.span else "no" for p in prompts]
        return [SimpleNamespace(text=t, ids=[1], steps=1, confidence=1.0) for t in said]


def test_a_run_gives_a_curve_a_range_and_a_slope_for_each_model(tokenizers):
    made = {"d": levels("position", samples(passages=4))}
    lenses = {"mdm": (4, "mdm"), "arm": (2, "arm")}
    worker = ModelWorker(lambda name: Forgetful(tokenizers["byte_level"], *lenses[name]))
    answers, _ = answer_all(stress_experiments(STRESSES["position"], list(lenses), made), worker)
    assert len(answers) == 2 * 4 * 12
    table = curves.curves(answers)
    assert list(table[table["model"] == "arm"]["mean"]) == [1, 1, 0, 0]
    numbers = curves.robustness(answers).set_index("model")
    assert numbers.loc["mdm", ["range", "slope", "loss"]].tolist() == [0, 0, 0]
    assert numbers.loc["arm", ["range", "loss"]].tolist() == [1, 1]
    assert numbers.loc["arm", "slope"] == pytest.approx(np.polyfit([0, 1, 2, 3], [1, 1, 0, 0], 1)[0])
    assert numbers["kind"].tolist() == ["mdm", "arm"]
    (entry, *_) = results(answers, ("stress", "level", "x", "intervention"))
    assert (entry["condition"], entry["level"], entry["x"], entry["accuracy"]) == ("position=0", "0", 0.0, 1.0)


def test_intervals_cover_a_planted_slope():
    draw = np.random.default_rng(1)
    x, true = np.arange(4.0), -0.1
    covered = 0
    for _ in range(60):
        scores = (draw.random((80, 4)) < 0.8 + true * x).astype(float)
        _, low, high = curves.estimates(scores, x)["slope"]
        covered += low <= true <= high
    assert covered >= 51


def test_questions_without_an_answer_at_some_level_leave_the_curve_s_numbers():
    rows = [("a", "0", 0.0, 1.0), ("a", "1", 1.0, 0.0), ("b", "0", 0.0, 1.0), ("b", "1", 1.0, float("nan"))]
    table = pandas.DataFrame(rows, columns=["id", "level", "x", "accuracy"])
    scores, x = curves.by_level(table, "accuracy")
    assert scores.to_numpy().tolist() == [[1.0, 0.0]] and x.to_dict() == {"0": 0.0, "1": 1.0}


def test_a_distractor_does_not_hold_the_answer():
    sample = Sample("1", "Where?", ["Molen"], [Passage("Ada is in Molen.", gold=True)])
    assert is_distractor(Passage("Ben is in Rusk."), sample)
    assert not is_distractor(Passage("Molen is a town."), sample)
