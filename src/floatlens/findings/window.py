"""Window: do anchors move, asked of the same queries and the same keys in every kind of model?

With all query rows an autoregressive model's anchors cannot move, because received attention is then a running mean; with
one writing row per step they must, because attention is local. A window is the rows of the last 8 written tokens, and its
keys are the positions more than 8 to the left of its first row: both exist in causal and in bidirectional models, and none
of the keys is a mask. Definition: `recipes/results/PLAN.md`.

`read_text` measures one text: replayed from left to right, 8 tokens per step. This is the setting `text` of a study, and
part of what `floatlens track` measures of each checkpoint.

Letters of shapes: W windows, L layers, Q query rows, T key positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from floatlens.anchors import find_anchors
from floatlens.data.prompt import Prompt
from floatlens.findings.samples import mean, mean_over
from floatlens.stats import Array

if TYPE_CHECKING:
    from floatlens.lens import Lens
    from floatlens.trace.trace import Trace

ROWS = 8  # rows of a window, and the positions between its first row and its last key
FEWEST_KEYS, FEWEST_WINDOWS = 32, 8
PROMPT, WRITTEN, HIDDEN = 64, 96, ROWS  # tokens of a text; the last ones stay masked at the last step
LENGTH = PROMPT + WRITTEN + HIDDEN


def profile(rows_LQT: Array, first: int) -> Array:
    """Attention of a window on its keys (layer, key), mean over its rows, which begin at the position `first`."""
    kept_LQT = np.asarray(rows_LQT, float)[..., : first - ROWS]
    return (kept_LQT / kept_LQT.sum(axis=-1, keepdims=True)).mean(axis=1)


def moves(profiles: Sequence[Array], rule: str = "sigma(3)") -> tuple[Array, Array, Array] | None:
    """Compare the profiles of disjoint windows, each pair on the keys of the earlier one; None if there are too few.

    Returns three numbers by layer: *floating*, the mean total variation of the attention on anchors, normalised, over all
    pairs; *moved*, the same without normalising, so that a weak anchor counts less than a strong one; and the share of
    pairs left out because one of the two has no anchor (above one half there is no floating).
    """
    if len(profiles) < FEWEST_WINDOWS or profiles[0].shape[-1] < FEWEST_KEYS:
        return None
    floating, moved = [], []
    for earlier_LT, later_LT in combinations(profiles, 2):
        later_LT = later_LT[:, : earlier_LT.shape[-1]]
        one_LT, other_LT = (_on_anchors(a, rule) for a in (earlier_LT, later_LT / later_LT.sum(axis=-1, keepdims=True)))
        moved.append(abs(one_LT - other_LT).sum(axis=-1) / 2)
        with np.errstate(invalid="ignore"):  # 0 / 0 without anchors: no value
            shares = [a / a.sum(axis=-1, keepdims=True) for a in (one_LT, other_LT)]
        floating.append(abs(shares[0] - shares[1]).sum(axis=-1) / 2)
    without_L = np.isnan(floating).mean(axis=0)
    floating_L = np.where(without_L <= 0.5, mean_over(np.array(floating), 0), np.nan)
    return floating_L, np.mean(moved, axis=0), without_L


def _on_anchors(a_LT: Array, rule: str) -> Array:
    """The attention on anchors, 0 elsewhere."""
    return np.where(find_anchors(a_LT, rule, "bidirectional"), a_LT, 0.0)


def reason_against(lens: Lens) -> str:
    """Why a text cannot be read from left to right in windows; empty if it can."""
    if lens.family.attention == "block":
        return f"{lens.name} writes in blocks, whose rows are not computed again once they are written"
    return f"{lens.name} has no tokenizer" if lens.tokenizer is None else ""


def attend(
    lens: Lens,
    ids: Sequence[int],
    *,
    prompt: int = PROMPT,
    record: Sequence[str] = ("received",),
) -> tuple[Trace, list[Array], Array]:
    """Read a text in windows, and return its trace, attention and surprise.

    The attention (layer, query, key) is averaged over heads, after each written window; the surprise at each token after
    the prompt is in nats.

    The likelihood of a token is that before its window is written, given the tokens to its left (and masks for a diffusion
    model). A causal model needs one pass, because its rows do not change.
    """
    written = _written(ids, prompt)
    if lens.family.kind == "mdm":
        answer = list(range(len(ids) - prompt))
        order = [answer[i : i + ROWS] for i in range(0, written, ROWS)] + [answer[written:]]
        start = Prompt.from_ids(list(ids[:prompt]))
        trace = lens.replay(start, ids[prompt:], order, record=record, matrices=("attention_mean",))
        confidence, at = trace.data["confidence"].values, trace.data["committed_at"].values
        nats = -np.log([confidence[at[i], i] for i in range(prompt, len(ids))])
        return trace, list(trace.data["attention_mean"].values[1:]), nats
    import torch

    whole = Prompt.from_ids(list(ids))
    trace = lens.trace(whole, max_new_tokens=1, record=record, matrices=("attention_mean",))
    with torch.no_grad():
        logits = lens.model(torch.tensor([list(ids)], device=lens.model.device)).logits[0, prompt - 1 : -1].float()
    nats = -logits.log_softmax(-1)[range(len(logits)), list(ids[prompt:])].cpu().numpy()
    matrix = trace.data["attention_mean"].values[0]
    return trace, [matrix] * (written // ROWS), nats


def attend_last(lens: Lens, ids: Sequence[int], *, prompt: int = PROMPT) -> Array:
    """Return the attention (layer, query, key) after the last window, averaged over heads: the last one of `attend`.

    In one pass, but for block models, which compute a prompt in another way than what they write.
    """
    from_ids, end = Prompt.from_ids, prompt + _written(ids, prompt)
    record: dict[str, Any] = {"record": ("received",), "matrices": ("attention_mean",)}
    if lens.family.kind != "mdm":
        trace = lens.trace(from_ids(list(ids)), max_new_tokens=1, **record)
    elif lens.family.attention == "block":
        order = [list(range(end - prompt)), list(range(end - prompt, len(ids) - prompt))]
        trace = lens.replay(from_ids(list(ids[:prompt])), ids[prompt:], order, **record)
    else:
        trace = lens.replay(from_ids(list(ids[:end])), ids[end:], [list(range(len(ids) - end))], **record)
    return np.asarray(trace.data["attention_mean"].values[-1])


def _written(ids: Sequence[int], prompt: int) -> int:
    """Number of tokens that are written in windows; the rest stays masked at the last step."""
    return (len(ids) - prompt - HIDDEN) // ROWS * ROWS


def read_text(lens: Lens, ids: Sequence[int], *, prompt: int = PROMPT, windows: bool = True) -> dict[str, Any]:
    """Read one text, and return `numbers_of` it."""
    if not windows:
        return numbers_of([attend_last(lens, ids, prompt=prompt)], np.empty(0), lens, ids, prompt=prompt, windows=False)
    _, matrices, nats = attend(lens, ids, prompt=prompt)
    return numbers_of(matrices, nats, lens, ids, prompt=prompt)


def numbers_of(
    matrices: list[Array], nats: Array, lens: Lens, ids: Sequence[int], *, prompt: int = PROMPT, windows: bool = True
) -> dict[str, Any]:
    """Sink, first-token share, movement and likelihood of one text. *Deep* is the second half of the layers.

    sink, sink_id, sink_token, sink_share   the position with most attention of the written rows, mean over deep layers
    sink_by_layer, share_by_layer           the same in each layer
    first_share, first_by_layer             attention on position 0 beyond an even share
    floating, moved, without_anchors        see `moves`, mean over deep layers; only with `windows`, as are the following
    floating_by_layer, moved_by_layer
    nats                                    surprise at each token after the prompt
    """
    written = _written(ids, prompt)
    rows = slice(prompt, prompt + written)
    received_LT = matrices[-1][:, rows, : prompt + written].mean(axis=1)
    causal = lens.family.attention == "causal"
    sees = np.arange(prompt, prompt + written) + 1 if causal else np.full(written, len(ids))
    deep = slice(len(received_LT) // 2, None)
    profile_T = received_LT[deep].mean(axis=0)
    sink = int(profile_T.argmax())
    found: dict[str, Any] = {
        "first_share": float(received_LT[deep, 0].mean() - (1 / sees).mean()),
        "first_by_layer": (received_LT[:, 0] - (1 / sees).mean()).tolist(),
        "sink": sink,
        "sink_id": int(ids[sink]),
        "sink_token": str(lens.tokenizer.decode([ids[sink]])) if lens.tokenizer is not None else str(ids[sink]),
        "sink_share": float(profile_T[sink]),
        "sink_by_layer": received_LT.argmax(axis=1).tolist(),
        "share_by_layer": received_LT.max(axis=1).tolist(),
    }
    if not windows:
        return found
    found["nats"] = nats.tolist()
    starts = range(prompt, prompt + written, ROWS)
    compared = moves([profile(m[:, s : s + ROWS], s) for m, s in zip(matrices, starts, strict=True)])
    if compared is None:
        return found
    floating_L, moved_L, without_L = compared
    return found | {
        "floating": mean(floating_L[deep]),
        "moved": float(moved_L[deep].mean()),
        "without_anchors": float(without_L[deep].mean()),
        "floating_by_layer": floating_L.tolist(),
        "moved_by_layer": moved_L.tolist(),
    }
