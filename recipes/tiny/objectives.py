"""The training objectives.

`arm` predicts the next token. `mdm` predicts the tokens at masked positions, as LLaDA does (arXiv 2502.09992). `dream` does
the same, but the state at position i − 1 predicts position i, as in a causal model and in Dream (arXiv 2508.15487).

Each objective is a plan: the input ids, the states that predict, their target tokens, and the weights.
"""

from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from recipes.tiny.curriculum import ANSWER, END, FILL
from recipes.tiny.prompts import MASK
from recipes.tiny.tokenizer import token_id

CONTEXT_WEIGHT, END_WEIGHT, FILL_WEIGHT = 0.3, 0.3, 0.05
CONTEXT_PART = 0.25  # share of the context's next tokens that are predicted at a step
WHOLE = 0.25  # share of rows masked anywhere; in the others only answers are masked
BLANK = 0.6  # share of those rows, before the true objective, in which answers are completely masked
SMALLEST = 0.05  # lower bound of the mask ratio t: 1/t is unbounded


@dataclass
class Plan:
    """Input `ids_BT`; the states at `speak_BT` should predict `target_N` with weights `weight_N` (sum about one)."""

    ids_BT: Tensor
    speak_BT: Tensor
    target_N: Tensor
    weight_N: Tensor


def _balanced(roles_N: Tensor, factor_N: Tensor) -> Tensor:
    """Weights by role: answers count one, other roles less, and each role is averaged over its own tokens."""
    weight_N = torch.zeros(len(roles_N))
    for role, share in ((0, CONTEXT_WEIGHT), (ANSWER, 1.0), (END, END_WEIGHT), (FILL, FILL_WEIGHT)):
        of_role = roles_N == role
        if of_role.any():
            weight_N[of_role] = share * factor_N[of_role] / of_role.sum()
    return weight_N


def causal(ids_BT: Tensor, roles_BT: Tensor, generator: torch.Generator) -> Plan:
    """Next token: answers have the largest weight, filling eos tokens none.

    A random part of the context is predicted, drawn again at each step: the same objective on average, and a third cheaper.
    """
    speak_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    part_BT = torch.rand(ids_BT.shape, generator=generator) < CONTEXT_PART
    speak_BT[:, :-1] = ((roles_BT != FILL) & ((roles_BT > 0) | part_BT))[:, 1:]
    target_N = ids_BT[:, 1:][speak_BT[:, :-1]]
    roles_N = roles_BT[:, 1:][speak_BT[:, :-1]]
    return Plan(ids_BT, speak_BT, target_N, _balanced(roles_N, torch.ones(len(roles_N))))


def place_in_answer(roles_BT: Tensor) -> Tensor:
    """Relative position of each answer token in its answer: 0 for the first, below 1 for the last; 1 for other tokens.

    >>> place_in_answer(torch.tensor([[0, 1, 1, 2, 0, 1, 2, 3]]))
    tensor([[1.0000, 0.0000, 0.5000, 1.0000, 1.0000, 0.0000, 1.0000, 1.0000]])
    """
    place_BT = torch.ones(roles_BT.shape)
    for b, roles in enumerate(roles_BT.tolist()):
        at = 0
        for role, run in groupby(roles):
            length = len(list(run))
            if role == ANSWER:
                place_BT[b, at : at + length] = torch.arange(length) / length
            at += length
    return place_BT


def masked(
    ids_BT: Tensor,
    roles_BT: Tensor,
    generator: torch.Generator,
    *,
    true: bool,
    shift: bool,
    blank: float = BLANK,
    begun: float = 0.0,
) -> Plan:
    """Predict masked tokens, with equal weights; with `true`, with LLaDA's weight 1/t, t uniform.

    Of the rows with masks in answers only, a share `blank` has its answers completely masked, a share `begun` all but their
    first part; in the others the ratio is t.
    """
    rows, width = ids_BT.shape
    whole_B1 = torch.rand(rows, 1, generator=generator) < WHOLE
    t_B1 = torch.rand(rows, 1, generator=generator)
    if true:
        t_B1 = SMALLEST + (1 - SMALLEST) * t_B1
    else:  # often the whole answer, as at the start of decoding; at most half of the context, to keep it predictable
        how_B1 = torch.rand(rows, 1, generator=generator)
        all_B1 = how_B1 < blank + begun
        t_B1 = torch.where(whole_B1, 0.5 * t_B1, torch.where(all_B1, torch.ones_like(t_B1), t_B1))
    chance_BT = torch.rand(rows, width, generator=generator)
    hide_BT = (chance_BT < t_B1) & (whole_B1 | (roles_BT > 0))
    if begun and not true:
        part_B1 = torch.rand(rows, 1, generator=generator) ** 2
        begun_B1 = ~whole_B1 & (how_B1 >= blank) & all_B1
        hide_BT &= ~(begun_B1 & (place_in_answer(roles_BT) < part_B1))
    hide_BT[:, 0] = False
    factor_BT = (1 / t_B1).expand(rows, width) if true else torch.ones(rows, width)
    if true:  # with 1/t the expected weight of a row is its length: rescale it to the share of the role
        factor_BT = factor_BT * (hide_BT.sum() / (factor_BT * hide_BT).sum().clamp(min=1e-6))
    speak_BT = torch.zeros_like(hide_BT)
    if shift:
        speak_BT[:, :-1] = hide_BT[:, 1:]
    else:
        speak_BT = hide_BT
    mask = token_id(MASK)
    # in a row with masks anywhere, answers are not treated differently
    counted_BT = roles_BT.masked_fill(whole_B1 & (roles_BT == ANSWER), 0)
    weight_N = _balanced(counted_BT[hide_BT], factor_BT[hide_BT])
    return Plan(ids_BT.masked_fill(hide_BT, mask), speak_BT, ids_BT[hide_BT], weight_N)


def probe(kind: str, ids_BT: Tensor, roles_BT: Tensor) -> Plan:
    """All answers at once, nothing else: teacher forcing for the ARM, all answer positions masked for the others."""
    ask_BT = (roles_BT == ANSWER) | (roles_BT == END)
    read_BT = ids_BT if kind == "arm" else ids_BT.masked_fill(roles_BT > 0, token_id(MASK))
    speak_BT = ask_BT
    if kind in ("arm", "dream"):
        speak_BT = torch.zeros_like(ask_BT)
        speak_BT[:, :-1] = ask_BT[:, 1:]
    return Plan(read_BT, speak_BT, ids_BT[ask_BT], (roles_BT[ask_BT] == ANSWER).float())
