"""AblateHeads: replace the output of heads by zero or by their mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from floatlens.errors import FloatLensError
from floatlens.interventions import selection
from floatlens.interventions.intervention import Intervention, Shape, set_fields, whole_number
from floatlens.interventions.registry import register_intervention
from floatlens.specs import parse_spec

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

    from floatlens.interventions.attention_call import AttentionCall
    from floatlens.lens import Lens, PromptLike

SCORES = ("retrieval", "mass", "query")
FILLS = ("zero", "mean")
Pair = tuple[int, int]  # layer, head


@register_intervention
@dataclass(frozen=True)
class AblateHeads(Intervention):
    """Replace the output of chosen heads by zero, or by its mean over a reference set.

    heads    the heads: [3.1, 4.0] are head 1 of layer 3 and head 0 of layer 4 (in Python also [(3, 1), (4, 0)]);
             [0, 1] or 0:2 are those heads of all `layers`;
             top(4, by=retrieval) are the four best retrieval heads of the model, random(4, seed=0) four random heads,
             random(4, seed=0, apart=retrieval) four random heads that are not among the four best
    layers   the layers that heads are taken from; all by default
    fill     zero, or mean: each head's mean output over all positions and steps of the reference prompts

    Scores for `top` and means for `fill=mean` come from runs without interventions on reference prompts: those passed to
    `lens.intervene(..., reference=prompts)`, by default 16 questions of the bundled world (world:fresh, validation).
    by=retrieval is the share of answer tokens copied from the gold document whose copy is the head's most attended key
    at the commit, ties broken by mass; by=mass is the attention on the gold documents at the commit;
    by=query the attention from the question to them at the first step.

    >>> str(AblateHeads("top(4)")), str(AblateHeads([(3, 1), (4, 0)]))
    ('ablate-heads(heads=top(4, by=retrieval))', 'ablate-heads(heads=[3.1, 4.0])')
    """

    name: ClassVar[str] = "ablate-heads"

    heads: Any
    layers: Any = None
    fill: str = "zero"

    def __post_init__(self) -> None:
        set_fields(
            self, heads=heads_text(self.heads), layers=selection.canonical_text(self.layers, "layer", selection.HALVES)
        )
        if self.fill not in FILLS:
            raise FloatLensError(f"fill {self.fill!r} is not known; use one of {', '.join(FILLS)}")
        if self.layers is not None and "." in self.heads:
            raise FloatLensError("heads given as layer.head already name their layers; leave out layers")

    @property
    def summary(self) -> str:
        found = re.match(r"(top|random)\((\d+)", self.heads)
        of = f" of the {self.layers} layers" if self.layers in selection.HALVES else ""
        of = f" of layers {self.layers.strip('[]')}" if self.layers is not None and not of else of
        if found and found[1] == "top":
            what = f"the {found[2]} best {_setting(self.heads, 'by')} heads{of}"
        elif found:
            what = f"{found[2]} random heads{of}"
        else:
            what = f"heads {self.heads.strip('[]')}{of}"
        return f"The output of {what} is {'zero' if self.fill == 'zero' else 'its mean over the reference prompts'}."

    @property
    def count(self) -> int | None:
        """Number of heads, if it is part of the text."""
        if (found := re.match(r"(?:top|random)\((\d+)", self.heads)) is not None:
            return int(found[1])
        return self.heads.count(".") or None

    def control(self, seed: int) -> AblateHeads | None:
        """The same number of random heads; if the best heads are ablated, random heads that are not among them."""
        if self.count is None:
            return None
        apart = f", apart={_setting(self.heads, 'by')}" if self.heads.startswith("top") else ""
        return AblateHeads(f"random({self.count}, seed={seed}{apart})", self.layers, self.fill)

    def head_numbers(self, shape: Shape) -> list[int]:
        return list(range(shape["heads"] or 0))

    def check(self, shape: Shape, config: PreTrainedConfig) -> None:
        layers, heads = self.layer_numbers(shape), shape["heads"] or 0
        if self.count is not None and "." not in self.heads:
            there = len(layers) * heads
            if self.count * (1 + ("apart" in self.heads)) > there:
                raise FloatLensError(f"{self.heads}: there are {there} heads to choose from, in {len(layers)} layers")
        else:
            self._named(shape)

    def contradicts(self, other: Intervention) -> str:
        return "a head can only have one fill" if isinstance(other, AblateHeads) and other.fill != self.fill else ""

    def _named(self, shape: Shape) -> list[Pair]:
        """The heads that the text lists explicitly."""
        if "." not in self.heads:
            named = selection.select_numbers(self.heads, shape["heads"] or 0, "head")
            return [(layer, head) for layer in self.layer_numbers(shape) for head in named]
        pairs = [(int(a), int(b)) for a, b in (part.split(".") for part in self.heads.strip("[]").split(", "))]
        for layer, head in pairs:
            selection.select_numbers(str(layer), shape["layers"] or 0, "layer")
            selection.select_numbers(str(head), shape["heads"] or 0, "head")
        return pairs

    def pairs(self, lens: Lens, reference: Sequence[PromptLike] | None = None) -> list[Pair]:
        """The heads, as (layer, head); `top` runs the model on the reference prompts first."""
        from floatlens.interventions.reference_runs import head_scores

        if self.count is None or "." in self.heads:
            return self._named(lens.shape)
        pool = [(layer, head) for layer in self.layer_numbers(lens.shape) for head in range(lens.shape["heads"] or 0)]
        by = _setting(self.heads, "by") or _setting(self.heads, "apart")
        best: list[Pair] = []
        if by:
            scores_LH = head_scores(lens, reference)[by]
            best = sorted(pool, key=lambda pair: (-scores_LH[pair], pair))[: self.count]
        if self.heads.startswith("top"):
            return sorted(best)
        rest = [pair for pair in pool if pair not in best]
        drawn = np.random.default_rng(int(_setting(self.heads, "seed"))).choice(len(rest), self.count, replace=False)
        return sorted(rest[i] for i in drawn)

    def prepared(self, lens: Lens, reference: Sequence[PromptLike] | None) -> Intervention:
        from floatlens.interventions.reference_runs import head_means

        pairs = self.pairs(lens, reference)
        means = head_means(lens, reference) if self.fill == "mean" else None
        return Ablation(self, tuple(pairs), means)

    def change(self, attention: AttentionCall) -> None:
        raise RuntimeError("ablate-heads was not prepared for a model")


@dataclass(frozen=True, eq=False)
class Ablation(Intervention):
    """AblateHeads once its heads are known; `means` (layer: (H, D)) fill them, zero when there are none."""

    name: ClassVar[str] = "ablate-heads"

    asked: AblateHeads
    pairs: tuple[Pair, ...]
    means: dict[int, torch.Tensor] | None

    def __str__(self) -> str:
        return str(self.asked)

    @property
    def summary(self) -> str:
        return self.asked.summary

    def layer_numbers(self, shape: Shape) -> list[int]:
        return sorted({layer for layer, _ in self.pairs})

    def change(self, attention: AttentionCall) -> None:
        heads = [head for layer, head in self.pairs if layer == attention.layer]
        if heads:
            attention.replace(heads, None if self.means is None else self.means[attention.layer][heads])


def heads_text(given: Any) -> str:
    """The canonical text of a selection of heads.

    >>> heads_text("top(3)"), heads_text("random(2)"), heads_text([(0, 1)]), heads_text("0:2")
    ('top(3, by=retrieval)', 'random(2, seed=0)', '[0.1]', '0:2')
    """
    if isinstance(given, str):
        text = given.strip()
        if re.match(r"(top|random)\b", text):
            return _drawn_text(text)
        if "." in text:
            return _pairs_text(text.removeprefix("[").removesuffix("]").split(","), given)
    elif isinstance(given, Iterable) and (parts := list(given)) and not all(isinstance(p, int) for p in parts):
        return _pairs_text([".".join(map(str, p)) if isinstance(p, tuple) else str(p) for p in parts], given)
    else:
        given = parts if isinstance(given, Iterable) else given
    found = selection.canonical_text(given, "head")
    if found is None:
        raise FloatLensError("no heads were selected; write them as [3.1, 4.0], top(4) or random(4)")
    return found


def _pairs_text(parts: Iterable[str], given: Any) -> str:
    found = []
    for part in parts:
        match = re.fullmatch(r"\s*(\d+)\.(\d+)\s*", part)
        if not match:
            raise FloatLensError(f"heads {given!r} are not understood; write them as layer.head, such as [3.1, 4.0]")
        found.append((int(match[1]), int(match[2])))
    return f"[{', '.join(f'{layer}.{head}' for layer, head in sorted(set(found)))}]"


def _drawn_text(text: str) -> str:
    """The canonical text of top(...) or random(...)."""
    spec = parse_spec(text, "heads", "top(4, by=retrieval)")
    defaults = {"n": "", "by": "retrieval"} if spec.name == "top" else {"n": "", "seed": "0", "apart": ""}
    values = defaults | spec.bind(list(defaults))
    values["n"] = str(whole_number(values["n"] or "nothing", "the number of heads", 1))
    for key in ("by", "apart"):
        if values.get(key) and values[key] not in SCORES:
            raise spec.error(f"{key}={values[key]} is not known; use one of {', '.join(SCORES)}")
    if "seed" in values:
        values["seed"] = str(whole_number(values["seed"], "seed"))
    settings = [f"{key}={value}" for key, value in values.items() if key != "n" and value]
    return f"{spec.name}({', '.join([values['n'], *settings])})"


def _setting(text: str, key: str) -> str:
    """A setting of top(...) or random(...).

    >>> _setting("random(2, seed=3)", "seed"), _setting("random(2, seed=3)", "apart")
    ('3', '')
    """
    found = re.search(rf"{key}=(\w+)", text)
    return found[1] if found else ""
