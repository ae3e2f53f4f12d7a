"""An answer is generated once for a prompt, its settings and the interventions that are on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from floatlens.interventions.run import intervene
from floatlens.lens import Generation
from floatlens.study.sharing import Shared
from floatlens.tasks.prompt import Prompt


class Counting:
    """A lens that writes its settings, and counts what it is asked."""

    name, config = "counting", SimpleNamespace()
    shape = {"layers": 2, "heads": 2, "kv_heads": 2}  # noqa: RUF012

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def generate(self, prompts: list[Prompt], **settings: Any) -> list[Generation]:
        self.asked += [tuple(prompt.ids) for prompt in prompts]
        return [
            Generation(f"{prompt.ids} {settings} {len(self.asked)}", prompt.ids, 1, 1.0, True) for prompt in prompts
        ]


def prompts(*ids: int) -> list[Prompt]:
    return [Prompt.from_ids([one]) for one in ids]


def test_only_new_prompts_reach_the_lens() -> None:
    lens = Counting()
    shared = Shared(lens, {})
    first = shared.generate(prompts(1, 2), steps=4)
    again = shared.generate(prompts(2, 3, 1, 3), steps=4)
    assert lens.asked == [(1,), (2,), (3,)]
    assert [answer.text for answer in again] == [first[1].text, again[1].text, first[0].text, again[1].text]
    assert shared.name == "counting"


def test_other_settings_are_another_answer() -> None:
    lens = Counting()
    shared = Shared(lens, {})
    one, other = (shared.generate(prompts(1), steps=n)[0].text for n in (4, 8))
    assert one != other and len(lens.asked) == 2


def test_an_intervention_is_never_answered_from_memory_of_the_plain_model() -> None:
    lens = Counting()
    shared = Shared(lens, {})
    plain = shared.generate(prompts(1))[0].text
    with intervene(lens, ["mask-anchors(rule=sigma(3))"], None):
        changed = shared.generate(prompts(1))[0].text
    assert changed != plain
    assert shared.generate(prompts(1))[0].text == plain
    assert len(lens.asked) == 2
