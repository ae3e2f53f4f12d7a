"""AblateHeads: replace the output of heads by zero or by their mean.

The best heads and the mean outputs come from runs without interventions on reference prompts, and are kept with the lens.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from floatlens.data.prompt import Prompt
from floatlens.data.read import read
from floatlens.errors import FloatLensError, check_known, unknown_name
from floatlens.interventions.intervention import (
    READERS,
    Array,
    Intervention,
    Shape,
    register_intervention,
    select_numbers,
    selection,
    whole_number,
)
from floatlens.specs import parse_spec, split_list

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

    from floatlens.attention.call import Inputs
    from floatlens.interventions.attention_call import AttentionCall
    from floatlens.lens import Lens, PromptLike

QUESTIONS, NEW_TOKENS, BATCH = 16, 16, 8
DATA = "world:fresh"
SCORES = ("retrieval", "mass", "query")
FILLS = ("zero", "mean")
DRAWN = ("top", "random")
Pair = tuple[int, int]  # layer, head
Measured = TypeVar("Measured")


def heads_text(given: Any) -> str:
    """The canonical text of a selection of heads.

    >>> heads_text("top(3)"), heads_text("random(2)"), heads_text([(0, 1)]), heads_text("0:2")
    ('top(3, by=retrieval)', 'random(2, seed=0)', '[0.1]', '0:2')
    """
    if isinstance(given, str) and given.strip().startswith(DRAWN):
        name, settings = read_drawn(given.strip())
        return f"{name}({', '.join(value if key == 'n' else f'{key}={value}' for key, value in settings.items())})"
    parts = split_list(given) if isinstance(given, str) else list(given) if isinstance(given, Iterable) else []
    texts = [".".join(map(str, part)) if isinstance(part, tuple) else str(part) for part in parts]
    if not any("." in text for text in texts):
        return selection(given if isinstance(given, str) else parts or given, "head")
    pairs = [re.fullmatch(r"(\d+)\.(\d+)", text) for text in texts]
    if None in pairs:
        raise FloatLensError(f"heads {given!r} are not understood; write them as layer.head, such as [3.1, 4.0]")
    numbers = sorted({(int(pair[1]), int(pair[2])) for pair in pairs if pair})
    return f"[{', '.join(f'{layer}.{head}' for layer, head in numbers)}]"


def read_drawn(text: str) -> tuple[str, dict[str, str]]:
    """The name and the settings of top(...) or random(...)."""
    spec = parse_spec(text, "heads", "top(4, by=retrieval)")
    check_known("heads", spec.name, DRAWN)
    defaults = {"n": "", "by": "retrieval"} if spec.name == "top" else {"n": "", "seed": "0", "apart": ""}
    values = defaults | spec.bind(list(defaults))
    values["n"] = str(whole_number(values["n"] or "nothing", "the number of heads", 1))
    for key in ("by", "apart"):
        if values.get(key) and values[key] not in SCORES:
            raise spec.error(str(unknown_name(key, values[key], SCORES)))
    if "seed" in values:
        values["seed"] = str(whole_number(values["seed"], "seed"))
    return spec.name, {key: value for key, value in values.items() if value}


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

    The reference prompts are those of `lens.intervene(..., reference=prompts)`, by default 16 questions of the bundled
    world (world:fresh, validation). by=retrieval is the share of answer tokens copied from the gold document whose copy
    is the head's most attended key at the commit, ties broken by mass; by=mass is the attention on the gold documents at
    the commit; by=query the attention from the question to them at the first step.

    >>> str(AblateHeads("top(4)")), str(AblateHeads([(3, 1), (4, 0)]))
    ('ablate-heads(heads=top(4, by=retrieval))', 'ablate-heads(heads=[3.1, 4.0])')
    """

    name: ClassVar[str] = "ablate-heads"
    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {**READERS, "heads": heads_text}
    # The heads, and the mean outputs (H, D) by layer that replace theirs, once the model is known.
    ready: ClassVar[tuple[list[Pair], dict[int, torch.Tensor] | None] | None] = None

    heads: Any
    layers: Any = None
    fill: str = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("fill", self.fill, FILLS)
        if self.layers is not None and "." in self.heads:
            raise FloatLensError("heads given as layer.head already name their layers; leave out layers")

    @property
    def drawn(self) -> dict[str, str]:
        """The settings of top(...) or random(...); empty if the heads are listed."""
        return read_drawn(self.heads)[1] if self.heads.startswith(DRAWN) else {}

    def control(self, seed: int) -> AblateHeads | None:
        """The same number of random heads; if the best heads are ablated, random heads that are not among them."""
        count = self.drawn.get("n") or self.heads.count(".")
        apart = f", apart={self.drawn['by']}" if "by" in self.drawn else ""
        return AblateHeads(f"random({count}, seed={seed}{apart})", self.layers, self.fill) if count else None

    def contradicts(self, other: Intervention) -> str:
        return "a head can only have one fill" if isinstance(other, AblateHeads) and other.fill != self.fill else ""

    def layer_numbers(self, shape: Shape) -> list[int]:
        return super().layer_numbers(shape) if self.ready is None else sorted({layer for layer, _ in self.ready[0]})

    def head_numbers(self, shape: Shape) -> list[int]:
        return list(range(shape["heads"] or 0))

    def check(self, shape: Shape, config: PreTrainedConfig) -> None:
        choices = self._choices(shape)
        if self.drawn and int(self.drawn["n"]) * (1 + ("apart" in self.drawn)) > len(choices):
            raise FloatLensError(f"{self.heads}: there are {len(choices)} heads to choose from")

    def _choices(self, shape: Shape) -> list[Pair]:
        """The heads that are listed, or those that top(...) and random(...) choose from."""
        layers, heads = shape["layers"] or 0, shape["heads"] or 0
        if "." not in self.heads:
            named = select_numbers(None if self.drawn else self.heads, heads, "head")
            return [(layer, head) for layer in super().layer_numbers(shape) for head in named]
        pairs = [(int(a), int(b)) for a, b in (part.split(".") for part in split_list(self.heads))]
        for layer, head in pairs:
            select_numbers(str(layer), layers, "layer")
            select_numbers(str(head), heads, "head")
        return pairs

    def pairs(self, lens: Lens, reference: Sequence[PromptLike] | None = None) -> list[Pair]:
        """The heads, as (layer, head); `top` runs the model on the reference prompts first."""
        choices, best, drawn = self._choices(lens.shape), list[Pair](), self.drawn
        if not drawn:
            return choices
        count = int(drawn["n"])
        if by := drawn.get("by") or drawn.get("apart"):
            scores_LH = head_scores(lens, reference)[by]
            best = sorted(choices, key=lambda pair: (-scores_LH[pair], pair))[:count]
        if "seed" not in drawn:
            return sorted(best)
        rest = [pair for pair in choices if pair not in best]
        chosen = np.random.default_rng(int(drawn["seed"])).choice(len(rest), count, replace=False)
        return sorted(rest[i] for i in chosen)

    def prepared(self, lens: Lens, reference: Sequence[PromptLike] | None) -> AblateHeads:
        made, pairs = copy.copy(self), self.pairs(lens, reference)
        object.__setattr__(made, "ready", (pairs, head_means(lens, reference) if self.fill == "mean" else None))
        return made

    def change(self, attention: AttentionCall) -> None:
        assert self.ready is not None, "ablate-heads was not prepared for a model"
        pairs, means = self.ready
        if heads := [head for layer, head in pairs if layer == attention.layer]:
            attention.replace(heads, None if means is None else means[attention.layer][heads])


def reference_prompts(lens: Lens, reference: Sequence[PromptLike] | None = None) -> list[Prompt]:
    """The given prompts, or by default questions of the bundled world with their passages."""
    if reference is not None:
        prompts = list(lens._prompts(reference))
        if not prompts:
            raise FloatLensError("reference has no prompts; pass at least one, or leave it out")
        return prompts
    if lens.tokenizer is None:
        raise FloatLensError(
            f"{lens.name} has no tokenizer; pass prompts of token ids with lens.intervene(..., reference=)"
        )
    samples = read(DATA, split="validation", limit=QUESTIONS)
    return [lens.prompt(s.question, s.passages, answers=s.answers) for s in samples]


def once_per_lens(measure: Callable[[Lens, Sequence[Prompt]], Measured]) -> Callable[..., Measured]:
    """Measure on the reference prompts without interventions, once per lens."""

    def kept(lens: Lens, reference: Sequence[PromptLike] | None = None) -> Measured:
        from floatlens.interventions.run import holding

        prompts, results = reference_prompts(lens, reference), lens.__dict__.setdefault("_reference", {})
        key = (measure.__name__, tuple(tuple(prompt.ids) for prompt in prompts))
        if key not in results:
            with holding(lens):
                results[key] = measure(lens, prompts)
        measured: Measured = results[key]
        return measured

    return kept


@once_per_lens
def head_scores(lens: Lens, prompts: Sequence[Prompt]) -> dict[str, Array]:
    """Retrieval, mass and query scores (layer, head) of each head: mean over the prompts that have evidence."""
    values: dict[str, list[Array]] = {"evidence_hit": [], "evidence_mass": [], "query_mass": []}
    for start in range(0, len(prompts), BATCH):
        part = prompts[start : start + BATCH]
        for trace in lens.traces(part, record=("evidence", "query_mass"), max_new_tokens=NEW_TOKENS):
            data = trace.data
            if "evidence_count" in data and (count := data["evidence_count"]).sum():
                weight = count.where(count > 0, 0) / count.sum()
                for name in ("evidence_hit", "evidence_mass"):
                    values[name].append((data[name] * weight).sum("step").transpose("layer", "head").values)
            if "query_mass" in data:
                values["query_mass"].append(data["query_mass"].isel(step=0).transpose("layer", "head").values)
    if not values["evidence_hit"]:
        raise FloatLensError(
            f"{lens.name} copied no answer token from a gold document of the {len(prompts)} reference prompts, so its "
            f"heads cannot be ranked; pass prompts that it answers with lens.intervene(..., reference=prompts)"
        )
    hit, mass = (np.mean(values[name], axis=0) for name in ("evidence_hit", "evidence_mass"))
    query = np.mean(values["query_mass"], axis=0) if values["query_mass"] else np.zeros_like(hit)
    return {"retrieval": hit + 1e-6 * mass, "mass": mass, "query": query}


@once_per_lens
def head_means(lens: Lens, prompts: Sequence[Prompt]) -> dict[int, torch.Tensor]:
    """Mean output (H, D) of each layer's heads over all real positions and steps."""
    from floatlens.attention.hook import changing

    sums: dict[int, torch.Tensor] = {}
    counts: dict[int, int] = {}

    def watch(layer: int, inputs: Inputs, base: Callable[[], Any]) -> tuple[Any, Inputs]:
        made = base()
        output_RQHD = made[0].float()
        sums[layer] = sums.get(layer, 0) + output_RQHD.sum((0, 1))
        counts[layer] = counts.get(layer, 0) + output_RQHD.shape[0] * output_RQHD.shape[1]
        return made, inputs

    for prompt in prompts:  # one by one, so that there is no padding
        with changing(lens.model, watch):
            lens.generate([prompt], max_new_tokens=NEW_TOKENS)
    return {layer: sums[layer] / counts[layer] for layer in sums}
