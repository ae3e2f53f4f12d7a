"""Every language model class of transformers is traced with correct numbers, or rejected when it is loaded.

By default one class of each mechanism is examined; `-m all_models` examines all of them (several minutes), as
`python -m docs.scripts.what_works` does to write the page.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import transformers

from tests.models.every_class import examine
from tests.models.tiny_configs import CLASSES

PAGE = Path(__file__).parents[2] / "docs" / "what-works.md"
ROW = re.compile(r"^\| `(?P<type>[^`]+)` \| `(?P<name>[^`]+)` \| (?P<state>[a-z ]+) \| (?P<way>\w*) \|", re.MULTILINE)
# What makes each of these a case of its own.
MECHANISMS = {
    ("causal", "gpt_oss"): "learned sinks and a sliding window",
    ("causal", "gemma2"): "soft-capped scores",
    ("causal", "deepseek_v3"): "latent attention, whose values have another size than its keys",
    ("causal", "inkling_text"): "layers with different numbers of heads, and a position bias",
    ("causal", "diffllama"): "a layer that attends twice with the same queries",
    ("causal", "zamba2"): "one attention block that several layers share",
    ("causal", "bloom"): "baddbmm, a softmax, bmm; ALiBi",
    ("causal", "falcon"): "scaled_dot_product_attention outside the interface",
    ("causal", "xglm"): "heads folded into the batch",
    ("causal", "openai-gpt"): "no cache",
    ("causal", "git"): "only the vision tower passes the interface",
    ("masked", "bert"): "an encoder",
    ("masked", "deberta-v2"): "disentangled scores of several products",
    ("masked", "squeezebert"): "convolutions in place of linear layers",
    ("masked", "convbert"): "a second softmax that is not attention",
    ("masked", "fnet"): "no attention",
}


def documented() -> dict[tuple[str, str], tuple[str, str, str]]:
    """What the page says: class, state and way by head and type."""
    causal, masked = PAGE.read_text().split("## Masked language models")
    return {
        (head, row["type"]): (row["name"], row["state"], row["way"])
        for head, text in (("causal", causal), ("masked", masked))
        for row in ROW.finditer(text)
    }


def same_version() -> bool:
    return f"transformers {transformers.__version__}," in PAGE.read_text()


@pytest.mark.parametrize(("head", "model_type"), MECHANISMS, ids=lambda value: str(value))
def test_each_mechanism_is_observed_as_eager_attention_or_refused(head: str, model_type: str) -> None:
    made = examine(head, model_type)
    assert (made.state, made.way) == documented()[head, model_type][1:]


def test_the_page_lists_every_class_of_the_installed_transformers() -> None:
    if not same_version():
        pytest.skip("the page is of another version of transformers: run python -m docs.scripts.what_works")
    found = documented()
    assert {(head, kind): name for head, kind, name in CLASSES} == {key: name for key, (name, *_) in found.items()}
    assert {state for _, state, _ in found.values()} <= {"observed", "refused", "not examined"}


@pytest.mark.all_models
@pytest.mark.parametrize(("head", "model_type", "name"), CLASSES, ids=lambda value: str(value))
def test_every_class_is_observed_as_eager_attention_or_refused(head: str, model_type: str, name: str) -> None:
    assert examine(head, model_type).state in ("observed", "refused", "not examined")
