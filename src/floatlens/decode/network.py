"""The forward passes that samplers call: token ids in, logits of the last positions out.

`Passes` run the sequences of a batch as a sampler does, to sample, to replay a given text or to score one. Each forward pass
describes the rows of its queries (`ForwardPass`), so that observation knows whether queries on a cache continue the sequence
or compute a part of it again.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from floatlens.decode.draws import Draws
from floatlens.decode.step import SpecialTokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from floatlens.data.sequences import Script
    from floatlens.decode.sampler import Sampler
    from floatlens.models.family import Family


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """Describes what one forward pass computes. Positions are columns of `tokens_BT`, including padding.

    tokens_BT  ids of the sequence so far; with guidance more rows than prompts, where the prompts come first
    start      position of the first query; the keys of the positions before it come from a cache
    active     positions of the step's rows: its statistics are means over them. Empty for a pass that only fills a cache
    final      positions whose rows are computed for the last time. Rows that are both active and final, as in an
               autoregressive model, are averaged with all earlier final rows
    """

    tokens_BT: torch.Tensor
    start: int
    active: range
    final: range

    @property
    def is_whole(self) -> bool:
        """Whether every row is active and none is final."""
        return not self.start and not self.final and len(self.active) == self.tokens_BT.shape[1]

    @classmethod
    def whole(cls, tokens_BT: torch.Tensor) -> ForwardPass:
        """A pass over the whole sequence, which is computed again at the next step: full bidirectional attention."""
        return cls(tokens_BT, 0, range(tokens_BT.shape[1]), range(0))

    @classmethod
    def appended(cls, tokens_BT: torch.Tensor, start: int) -> ForwardPass:
        """A pass over the positions from `start` of a causal model, whose rows never change once they are computed."""
        rows = range(start, tokens_BT.shape[1])
        return cls(tokens_BT, start, rows, rows)


# The pass that runs now; None if the model was not called by `Passes`.
CURRENT: ContextVar[ForwardPass | None] = ContextVar("floatlens_forward_pass", default=None)


def current_pass() -> ForwardPass | None:
    """The pass that is running."""
    return CURRENT.get()


def _copy_rows(head: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Copy the last rows of the hidden states, before they are multiplied with the vocabulary."""
    # A view of the last rows of a longer tensor is not one matrix to torch, which then copies the whole weight matrix for
    # a batched product (150 ms per pass of SmolLM2 in bfloat16).
    rows = inputs[0]
    if rows.dim() != 3 or rows.stride(0) == rows.shape[1] * rows.stride(1):
        return None
    return (rows.clone(memory_format=torch.contiguous_format), *inputs[1:])


def input_device(model: PreTrainedModel) -> torch.device:
    """The device on which a model expects its token ids."""
    return model.get_input_embeddings().weight.device


def visible(blocks_BT: torch.Tensor, start: int = 0) -> torch.Tensor:
    """True where a query from `start` on may see a key (B, Q, T). A position of block -1 (padding) sees only itself."""
    query_BQ1, key_B1T = blocks_BT[:, start:, None], blocks_BT[:, None]
    itself_TT = torch.eye(blocks_BT.shape[1], dtype=torch.bool, device=blocks_BT.device)
    return ((query_BQ1 >= key_B1T) & (key_B1T >= 0)) | itself_TT[start:]


def count_blocks(real_BT: torch.Tensor, block_length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The block of each position, counted from the first real token of its row, and its position (B, T)."""
    positions_BT = real_BT.long().cumsum(-1) - 1
    return (positions_BT // block_length).masked_fill(~real_BT, -1), positions_BT.clamp_min(0)


class Passes:
    """A batch, and the forward passes of its sampler over its sequences, one after another.

    Without padding only the token ids are passed, so that the model runs as in its own code.

    model, family     the model, and the facts of its kind: where its logits and its positions are
    ids_BP, real_BP   the prompts, padded on the left, and which of their positions are real; all by default
    settings          the sampler, whose `run` makes a pass
    draws             random numbers, by row, from the sampler's seed
    tail_BN           the tokens after the prompts of texts with masks, of which only the masks are written
    ends              column at which each prompt ends
    scripts           given texts that are revealed, for a replay
    active            positions of the last pass's queries, as in `Step`
    cache, final      keys and values of finished positions, for samplers that keep them; positions before `final` are final
    before_B1V        logits of the row before the current block
    placed            the places of the current block, for a sampler that keeps them while it writes the block
    """

    active: range | None = None
    cache: Any = None
    final = 0
    before_B1V: torch.Tensor | None = None
    placed: tuple[torch.Tensor, torch.Tensor] | None = None

    def __init__(
        self,
        model: PreTrainedModel,
        family: Family,
        ids_BP: torch.Tensor,
        real_BP: torch.Tensor | None,
        settings: Sampler,
        *,
        special: SpecialTokens,
        tail_BN: torch.Tensor | None = None,
        ends: Sequence[int] | None = None,
        scripts: Sequence[Script] = (),
    ) -> None:
        self.model, self.family, self.ids_BP, self.settings = model, family, ids_BP, settings
        self.real_BP = torch.ones_like(ids_BP, dtype=torch.bool) if real_BP is None else real_BP
        self.special, self.tail_BN, self.scripts = special, tail_BN, scripts
        self.B, self.P = ids_BP.shape
        self.draws = Draws([settings.seed] * self.B)
        self.ends = [self.P] * self.B if ends is None else ends
        self.end_ids = torch.tensor(special.end_ids, dtype=torch.long, device=ids_BP.device)

    @cached_property
    def _accepts(self) -> set[str]:
        return set(inspect.signature(self.model.forward).parameters)

    def __call__(self, x_BT: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Run a sequence; return the first column that the pass writes, and the logits (B, N, V) from there on."""
        return self.settings.run(self, x_BT)

    def end(self, column: int) -> int:
        """Length of the sequence whose pass writes this column."""
        return self.settings.end(self, column)

    def real(self, length: int) -> torch.Tensor:
        """True for the positions of a sequence that are not padding (B, T)."""
        return torch.cat([self.real_BP, self.real_BP.new_ones((self.B, length - self.P))], 1)

    def with_masks(self) -> torch.Tensor:
        """The prompts followed by `max_new_tokens` masks, or by the tail (B, T)."""
        if self.tail_BN is not None:
            return torch.cat([self.ids_BP, self.tail_BN], 1)
        return self.append_masks(self.ids_BP, self.settings.max_new_tokens)

    def append_masks(self, x_BT: torch.Tensor, count: int) -> torch.Tensor:
        return torch.cat([x_BT, x_BT.new_full((self.B, count), self.special.mask)], 1)

    def run_whole(self, x_BT: torch.Tensor, scale: float = 0.0) -> torch.Tensor:
        """Logits (B, N, V) of the new positions, from a pass over the whole sequence without a cache.

        Guidance of a scale above 0 runs a second row per prompt, with the prompt masked, in the same pass.
        """
        new, real_BT = x_BT.shape[1] - self.P, self.real(x_BT.shape[1])
        if scale:
            mask = self.special.mask
            x_BT = torch.cat([x_BT, x_BT.masked_fill(self.with_masks() != mask, mask)])
            real_BT = torch.cat([real_BT, real_BT])
        logits_BNV = self.logits(x_BT, real_BT, new + self.family.shifted)[:, :new]
        return guided(logits_BNV, scale) if scale else logits_BNV

    def run_block(
        self, x_BT: torch.Tensor, first: int, blocks_BT: torch.Tensor, positions_BT: torch.Tensor, cached: bool = True
    ) -> torch.Tensor:
        """Logits (B, L, V) of the block from `first` to the end of `x_BT`, with what is before it in the cache or without.

        `blocks_BT` is the block of each position, -1 for padding; a position sees those whose block is not later than its
        own. `positions_BT` are those of the rotary embedding.
        """
        length, done = x_BT.shape[1] - first, range(self.final, first)
        if cached:
            self.store(x_BT[:, :first], blocks_BT[:, :first], positions_BT[:, :first])
        start = first if cached else 0
        logits_BQV = self.run(
            ForwardPass(x_BT, start, range(first, x_BT.shape[1]), range(0) if cached else done),
            visible(blocks_BT, start),
            keep=length if cached else min(length + 1, x_BT.shape[1]),
            position_ids_BQ=positions_BT[:, start:],
            cache=self.cache,
            store=False,
        )
        if not cached and first:
            self.before_B1V = logits_BQV[:, :1]
        self.final, self.active = first, range(first, x_BT.shape[1])
        return logits_BQV[:, -length:]

    def store(self, x_BT: torch.Tensor, blocks_BT: torch.Tensor, positions_BT: torch.Tensor) -> None:
        """Read the finished positions that are not in the cache yet."""
        done = range(self.final, x_BT.shape[1])
        self.final = done.stop
        if self.cache is None:
            from transformers import DynamicCache

            self.cache = DynamicCache()
        if done:
            self.before_B1V = self.run(
                ForwardPass(x_BT, done.start, range(0), done),
                visible(blocks_BT, done.start),
                keep=1,
                position_ids_BQ=positions_BT[:, done.start :],
                cache=self.cache,
            )

    def logits(self, x_BT: torch.Tensor, real_BT: torch.Tensor | None, keep: int) -> torch.Tensor:
        """Logits (B, keep, V) of the last `keep` positions, from a pass over the whole sequence without a cache."""
        options = self._padding(x_BT.shape[1], real_BT) | ({"use_cache": False} if "use_cache" in self._accepts else {})
        return self._call(ForwardPass.whole(x_BT), keep, **options).logits[:, -keep:]

    def extend(self, x_BT: torch.Tensor) -> torch.Tensor:
        """Logits (B, 1, V) after the last token of a causal model, which reads what is not in its cache yet."""
        real_BT = self.real(x_BT.shape[1])
        if "past_key_values" not in self._accepts:  # a state-space model: its state does not distinguish positions
            return self.logits(x_BT, real_BT, 1)
        start = 0 if self.cache is None else x_BT.shape[1] - 1  # a model without a cache reads everything again
        options = self._padding(x_BT.shape[1] - start, real_BT) | {"past_key_values": self.cache, "use_cache": True}
        out = self._call(ForwardPass.appended(x_BT, start), 1, **options)
        self.cache = getattr(out, "past_key_values", None)
        return out.logits[:, -1:]

    def run(
        self,
        forward: ForwardPass,
        visible_BQT: torch.Tensor,
        *,
        keep: int,
        position_ids_BQ: torch.Tensor | None = None,
        cache: Any = None,
        store: bool = True,
    ) -> torch.Tensor:
        """Logits (B, keep, V) of a pass with a custom attention mask, with a cache if there is one.

        `forward` has the tokens and the meaning of the rows; `visible_BQT` is True where a query may see a key, T with the
        cached positions. `keep` counts positions from the end; `position_ids_BQ` are those of the rotary embedding, the
        columns by default. `cache` holds the keys of the positions before `forward.start`, and is changed in place; it
        keeps those of this pass only with `store`, which is off for a block that will be computed again.
        """
        end, mask_B1QT = forward.tokens_BT.shape[1], visible_BQT[:, None]
        if self.model.config._attn_implementation == "eager":  # eager adds its mask; the others take True for visible
            dtype = next(self.model.parameters()).dtype
            hidden = torch.finfo(dtype).min
            mask_B1QT = torch.zeros_like(mask_B1QT, dtype=dtype).masked_fill_(~mask_B1QT, hidden)
        if position_ids_BQ is None:
            position_ids_BQ = torch.arange(forward.start, end, device=forward.tokens_BT.device)[None]
        options = {"attention_mask": mask_B1QT, "position_ids": position_ids_BQ, "past_key_values": cache}
        out = self._call(forward, keep, **options, use_cache=cache is not None)
        if cache is not None and not store:
            cache.crop(forward.start - end)
        return out.logits[:, -keep:]

    @contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Switch the LoRA adapter off inside the block, for families that keep it apart from the weights."""
        adapted: list[Any] = [module for module in self.model.modules() if hasattr(module, "adapter_active")]
        for module in adapted:
            module.adapter_active = False
        try:
            yield
        finally:
            for module in adapted:
                module.adapter_active = True

    @contextmanager
    def running(self, forward: ForwardPass) -> Iterator[Any]:
        """Yield the model, for a call with custom arguments; `forward` describes its rows."""
        token = CURRENT.set(forward)
        head = self.model.get_output_embeddings() if hasattr(self.model, "get_output_embeddings") else None
        hook = head.register_forward_pre_hook(_copy_rows) if isinstance(head, torch.nn.Linear) else None
        try:
            with torch.no_grad():
                yield self.model
        finally:
            CURRENT.reset(token)
            if hook is not None:
                hook.remove()

    def _call(self, forward: ForwardPass, keep: int, **options: Any) -> Any:
        if "logits_to_keep" in self._accepts:
            options["logits_to_keep"] = keep
        with self.running(forward) as model:
            return model(input_ids=forward.tokens_BT[:, forward.start :], **options)

    def _padding(self, length: int, real_BT: torch.Tensor | None) -> dict[str, Any]:
        """The options that leave padding out, for a pass over the last `length` positions."""
        if real_BT is None or bool(real_BT.all()):
            return {}
        options: dict[str, Any] = {"attention_mask": real_BT.long()}
        # Some models, such as RoBERTa, compute positions themselves from the padding token.
        if (
            self.family.positions == "real"
            and "position_ids" in self._accepts
            and not any(hasattr(one, "create_position_ids_from_input_ids") for one in self.model.modules())
        ):
            options["position_ids"] = (real_BT.long().cumsum(-1) - 1).masked_fill(~real_BT, 1)[:, -length:]
        return options


def guided(logits_BNV: torch.Tensor, scale: float) -> torch.Tensor:
    """Logits under guidance, from those of rows with their prompt, followed by those of the same rows without it."""
    with_prompt, without = logits_BNV.chunk(2)
    return without + (scale + 1) * (with_prompt - without)
