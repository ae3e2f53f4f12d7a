"""A family that writes block after block, as one from outside the tree would be: one family and one sampler.

Qwen3 under a block-causal mask: a query sees its own block and those before it. Each block is denoised from left to
right, one token per pass; with a cache, a pass reads the finished blocks from it and a last pass stores the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, Qwen3Config

import floatlens as fl
from floatlens.decode.network import ForwardPass, Passes
from floatlens.decode.sampler import Sampler
from floatlens.decode.step import Step
from floatlens.models.family import Config, token_ids


def visible(first: int, length: int, block: int) -> torch.Tensor:
    """True where a query from `first` on may see a key (1, Q, T)."""
    positions = torch.arange(length)
    return (positions[first:, None] // block >= positions[None] // block)[None]


@dataclass(frozen=True)
class ToyBlocks(Sampler):
    block_length: int = 4
    cache: bool = True

    def sample(self, passes: Passes) -> Iterator[Step]:
        B, P = passes.B, passes.P
        block, end = self.block_length, P + self.max_new_tokens
        x_BN = passes.with_masks()
        cache: Any = DynamicCache() if self.cache else None
        index, stored = 0, 0
        for first in range(P // block * block, end, block):
            last = min(first + block, end)
            done = range(stored, first)  # rows that have become final since the block before
            if self.cache and done:
                passes.run(
                    ForwardPass(x_BN[:, :first], stored, range(0), done),
                    visible(stored, first, block).expand(B, -1, -1),
                    keep=1,
                    cache=cache,
                )
            for position in range(max(first, P), last):
                x_BT = x_BN[:, :last].clone()
                start = first if self.cache else 0
                final = range(0) if self.cache or position > max(first, P) else done
                forward = ForwardPass(x_BT, start, range(first, last), final)
                mask = visible(start, last, block).expand(B, -1, -1)
                logits_BQV = passes.run(forward, mask, keep=last - first, cache=cache, store=False)
                probability_B, token_B = logits_BQV[:, position - first].softmax(-1).max(-1)
                x_BN[:, position] = token_B
                committed_BT = torch.zeros_like(x_BT, dtype=torch.bool)
                committed_BT[:, position] = True
                confidence_BT = torch.full(x_BT.shape, torch.nan)
                confidence_BT[:, position] = probability_B
                yield Step(index, x_BT, x_BN[:, :last].clone(), committed_BT, confidence_BT, range(first, last))
                index += 1
            stored = first


def native(config: Config) -> Any:
    fields = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    names = (*fields, "head_dim", "vocab_size", "max_position_embeddings")
    made = Qwen3Config(**{name: config[name] for name in names}, **token_ids(config))
    made.mask_token_id = config["mask_token_id"]
    return made


FAMILY = fl.Family(
    name="toy-block",
    about="masked diffusion, Qwen3 under a block-causal mask",
    example="example-org/toy-block",
    recognises=lambda config: config.get("model_type") == "toy_block",
    native=native,
    attention="block",
    cached=True,
    sampler="toy-block",
)
