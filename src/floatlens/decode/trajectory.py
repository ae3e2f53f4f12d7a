"""Run given sequences, one forward pass each, with the same passes as in generation, and return the logits.

A trajectory is a list of input sequences, such as those of a generation. It is run again, for example under interventions,
without sampling. The passes are those of the sampler: over the whole sequence, with a cache, or block by block, so that a
pass computes the same as in generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch

from floatlens.decode import bd3lm
from floatlens.decode.blocks import BlockPasses, BlockSettings, WholeBlockSettings, check_alone, count_blocks
from floatlens.decode.canvas import CanvasPasses, CanvasSettings
from floatlens.decode.network import Cached, Network
from floatlens.decode.replay import WholePasses
from floatlens.decode.settings import Settings
from floatlens.decode.special_tokens import SpecialTokens
from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.models.family import Family

Logits = tuple[int, torch.Tensor]  # column of the first written token, logits (B, N, V)


def run_trajectory(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    sequences: Iterable[torch.Tensor],
    settings: Settings,
    *,
    family: Family,
    sampler: str,
    special: SpecialTokens,
) -> Iterator[Logits]:
    """Run the sequences (B, T) one after another, and yield the logits of the tokens that each pass may write.

    A sequence of a model that writes in blocks ends where its current block ends.
    """
    P = ids_BP.shape[1]
    if family.kind == "arm":
        yield from append(network, real_BP, sequences)
    elif isinstance(settings, CanvasSettings):
        canvas = CanvasPasses(network, ids_BP, real_BP, settings.max_new_tokens)
        for x_BT in sequences:
            yield P, canvas(x_BT)
    elif isinstance(settings, WholeBlockSettings):
        check_alone(ids_BP, sampler)
        yield from run_blocks(network, sequences, settings)
    elif isinstance(settings, bd3lm.BD3LMSettings):
        yield from run_appended_blocks(network, ids_BP, real_BP, sequences, settings, special)
    elif family.cached or family.attention not in ("bidirectional", "two-way"):
        raise FloatLensError(f"the {sampler} sampler cannot run given sequences: its passes are not known")
    else:
        whole = WholePasses(network, ids_BP, real_BP, settings.max_new_tokens, family.shifted)
        for x_BT in sequences:
            yield P, whole(x_BT)


def append(network: Network, real_BP: torch.Tensor | None, sequences: Iterable[torch.Tensor]) -> Iterator[Logits]:
    """The passes of an autoregressive model: each sequence is one token longer than the previous one."""
    cache: Cached | None = None
    for x_BT in sequences:
        real_BT = None
        if real_BP is not None:
            new = real_BP.new_ones((len(x_BT), x_BT.shape[1] - real_BP.shape[1]))
            real_BT = torch.cat([real_BP, new], 1)
        logits_B1V, cache = network.extend(x_BT if cache is None else x_BT[:, -1:], real_BT, cache)
        yield x_BT.shape[1], logits_B1V


def run_blocks(network: Network, sequences: Iterable[torch.Tensor], settings: WholeBlockSettings) -> Iterator[Logits]:
    """The passes of a model whose blocks are counted from the start of the prompt, for one prompt."""
    passes = BlockPasses(network, cache=settings.cache)
    for x_BT in sequences:
        first = x_BT.shape[1] - settings.block_length
        blocks_BT, positions_BT = count_blocks(torch.ones_like(x_BT, dtype=torch.bool), settings.block_length)
        yield first, passes.logits(x_BT, first, blocks_BT, positions_BT)


def run_appended_blocks(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    sequences: Iterable[torch.Tensor],
    settings: bd3lm.BD3LMSettings,
    special: SpecialTokens,
) -> Iterator[Logits]:
    """The passes of a model whose blocks are counted from the end of the prompt."""
    P, block = ids_BP.shape[1], settings.block_length
    passes = BlockPasses(network, cache=settings.cache)
    for x_BT in sequences:
        first = P + (x_BT.shape[1] - P - 1) // block * block
        real_BT = torch.ones_like(x_BT, dtype=torch.bool)
        if real_BP is not None:
            real_BT[:, :P] = real_BP
        blocks_BT, positions_BT = bd3lm.place(x_BT, real_BT, P, block, special)
        guided = settings.cfg_scale > 0
        yield (
            first,
            bd3lm.block_logits(passes, x_BT, P, first, blocks_BT, positions_BT, settings, special, guided),
        )


def left_to_right(
    ids_BP: torch.Tensor, text_BN: torch.Tensor, settings: Settings, *, family: Family, special: SpecialTokens
) -> Iterator[torch.Tensor]:
    """The sequences whose next token is each token of a text (B, N): revealed up to it, masked after it.

    For a block model, each sequence ends where the block of that token ends.
    """
    P, new = ids_BP.shape[1], settings.max_new_tokens
    for count in range(text_BN.shape[1]):
        if family.kind == "arm":
            yield torch.cat([ids_BP, text_BN[:, :count]], 1)
            continue
        end = P + new
        if isinstance(settings, WholeBlockSettings):
            end = ((P + count) // settings.block_length + 1) * settings.block_length
        elif isinstance(settings, BlockSettings):
            end = min(P + (count // settings.block_length + 1) * settings.block_length, end)
        x_BT = torch.cat([ids_BP, ids_BP.new_full((len(ids_BP), end - P), special.mask)], 1)
        x_BT[:, P : P + count] = text_BN[:, :count]
        yield x_BT
