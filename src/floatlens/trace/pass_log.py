"""A log of forward passes in a user's own loop, stored as steps: input, observations and result.

The tokens of a pass are known from its arguments and the length of its cache. The tokens that it committed are known when
the next pass starts: masks that were replaced, or tokens that were appended.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from contextvars import Token
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from floatlens.attention.call import Inputs, PositionLayout, visible
from floatlens.attention.prompt_batch import PromptBatch
from floatlens.attention.session import Results, Session
from floatlens.data.prompt import Prompt
from floatlens.decode.network import ForwardPass, current_pass, enter_pass, leave_pass
from floatlens.errors import FloatLensError
from floatlens.models.family import Family

TOKENS = "(token ids)"
# Arguments with a whole number per position that is not a token.
OTHER_IDS = re.compile(r"mask|pos|type|segment|label|target|speaker|language")


@dataclass
class ObservedStep:
    """One forward pass. B rows; T positions so far, including padding.

    tokens_BT      ids of the sequence, including those in the cache; None if the model was not called with token ids
    start          position of the first query
    active         positions of the queries that the statistics cover
    real_BT        False for padding; None when nothing is padded
    results        `results[name][layer]` is (B, *dims of the statistic)
    cross          results for cross-attention; positions are those of the encoder's sequence
    after_BT       ids after the step; None until they are known
    proposed_BT    the most likely token of each position that the step may write, -1 elsewhere
    confidence_BT  probability of that token, or of the token that was written once it is known; NaN elsewhere
    """

    index: int
    generation: int
    tokens_BT: torch.Tensor | None
    start: int
    active: range | None
    real_BT: torch.Tensor | None
    results: Results = field(default_factory=dict)
    cross: Results = field(default_factory=dict)
    after_BT: torch.Tensor | None = None
    proposed_BT: torch.Tensor | None = None
    confidence_BT: torch.Tensor | None = None


@dataclass
class PassLog:
    """The passes of one module: `begin` and `end` are called around each.

    prompts         each row's prompt with its regions and gold evidence; a single one applies to all rows
    mask_id         the mask token of a diffusion model
    prompt_length   length of the prompt, including padding; None: up to the first mask, or all of the first pass
    tokens          name of the argument that holds the token ids; None: chosen by `token_argument`
    needs_tokens    statistics that are left out of a pass without token ids
    prompt_mask     the mask (B, P) of the prompt that `generate` was called with
    problems        the reason why no trace can be made of a generation, by generation number
    """

    module: torch.nn.Module
    session: Session
    cross: Session | None = None
    prompts: Sequence[Prompt] = ()
    family: Family | None = None
    mask_id: int | None = None
    prompt_length: int | None = None
    tokens: str | None = None
    needs_tokens: Collection[str] = ()
    prompt_mask: torch.Tensor | None = None
    steps: list[ObservedStep] = field(default_factory=list)
    problems: dict[int, str] = field(default_factory=dict)
    starts: dict[int, list[int]] = field(default_factory=dict)
    finals: dict[int, torch.Tensor] = field(default_factory=dict)
    generation: int = -1
    fresh: bool = True  # the next pass begins a generation
    replaced: int | None = None  # a token that passes replace although it is not known as the mask token
    rows: int = 0  # positions whose rows are in the running means
    tokens_BT: torch.Tensor | None = None
    own_cache: bool = False  # the model may have a cache that no argument shows
    waiting: dict[str, Any] | None = None  # arguments of a pass whose cache is not known yet
    open: ObservedStep | None = None  # the pass that has started
    token: Token[ForwardPass | None] | None = None  # with which it is left
    pending: tuple[torch.Tensor, torch.Tensor] | None = (
        None  # (row, position) pairs (n, 2) that may be written, and their logits
    )

    def __post_init__(self) -> None:
        self.signature = inspect.signature(self.module.forward)

    # --- before a pass --------------------------------------------------------------------------------------------------

    def begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Start a pass with these arguments."""
        try:
            self._begin(args, kwargs)
        except BaseException:
            self.close()
            raise

    def _begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.close()
        self._pause(False)
        self.session.begin()
        if self.cross is not None:
            self.cross.begin()
        given = arguments(self.signature, args, kwargs)
        name, problem = token_argument(given, self.tokens, "input_ids" in self.signature.parameters)
        if name is None:
            self.session.layout = None
            self._new_generation([])
            self.problems[self.generation] = problem
            self.open = ObservedStep(len(self.steps), self.generation, None, 0, None, None)
            return
        ids = given[name]
        if self.own_cache and current_pass() is None:
            self.waiting, self.token = given | {TOKENS: ids}, enter_pass(ForwardPass.appended(ids, 0))
            self.session.first_call = self._first_call
        else:
            self._enter(ids, cached_length(given.get("past_key_values")), given.get("attention_mask"))

    def _first_call(self, inputs: Inputs) -> None:
        """Start a pass whose cache is the model's own: its length is seen in the first call of attention."""
        given, mask, Q = self.waiting, inputs.mask, inputs.query.shape[2]
        if given is not None and given[TOKENS].shape[1] == Q:
            seen_BT = None if mask is None else visible(mask).any(2).any(1)
            end = inputs.key.shape[2] if seen_BT is None else int(seen_BT.any(0).nonzero()[-1]) + 1  # of a static cache
            start = max(0, end - Q)
            self._enter_waiting(start, seen_BT[:, :Q] if seen_BT is not None and not start else None)

    def _enter_waiting(self, start: int = 0, seen_BT: torch.Tensor | None = None) -> None:
        """Start the pass that was waiting; keys that no row sees at an end of the sequence are padding."""
        assert self.waiting is not None and self.token is not None
        given, self.waiting = self.waiting, None
        leave_pass(self.token)
        self.token = None
        ids, mask = given[TOKENS], given.get("attention_mask")
        if mask is None and seen_BT is not None:
            first, place = seen_BT.int().argmax(1, keepdim=True), torch.arange(seen_BT.shape[1], device=seen_BT.device)
            between = (place >= first) & (place < first + seen_BT.sum(1, keepdim=True))
            mask = seen_BT.expand(ids.shape[0], -1) if torch.equal(between, seen_BT) else None
        self._enter(ids, start, mask)

    def _enter(self, ids: torch.Tensor, start: int, mask: Any) -> None:
        """Start a pass over these tokens, after `start` positions in a cache."""
        forward = current_pass()
        if forward is None:
            forward = self._pass(ids, start)
            self.token = enter_pass(forward)
        tokens_BT = forward.tokens_BT.detach()
        if self._begins(tokens_BT):
            self._settle(None)
            self._new_generation(self._prompt_ends(tokens_BT))
            self.rows = 0
        else:
            self._settle(tokens_BT)
            if not self.steps or self.steps[-1].generation != self.generation:  # only a cache was filled so far
                self.starts[self.generation] = self._prompt_ends(tokens_BT)
        if self.token is not None:
            self._count_rows(forward)
        real_BT = self._real(mask, tokens_BT)
        self.tokens_BT = tokens_BT.clone()
        self.session.layout = self._layout(self.tokens_BT, real_BT)
        self.open = ObservedStep(
            len(self.steps), self.generation, self.tokens_BT, forward.start, forward.active, real_BT
        )

    def _real(self, mask: Any, tokens_BT: torch.Tensor) -> torch.Tensor | None:
        """False for padding (B, T), from a pass's own mask or the one given to `generate`; None if nothing is padded."""
        B, T = tokens_BT.shape
        if isinstance(mask, torch.Tensor) and mask.ndim == 2:
            real_BT = mask[:, :T].bool()
        elif self.prompt_mask is not None and B % self.prompt_mask.shape[0] == 0:
            real_BT = self.prompt_mask.bool().repeat_interleave(B // self.prompt_mask.shape[0], 0)
            real_BT = torch.nn.functional.pad(real_BT, (0, T - real_BT.shape[1]), value=True)
        else:
            return None
        return None if real_BT.shape[1] < T or bool(real_BT.all()) else real_BT

    def _begins(self, tokens_BT: torch.Tensor) -> bool:
        """Whether a pass with these tokens begins a generation instead of continuing the previous pass."""
        if self.fresh or self.tokens_BT is None:
            return True
        starts = self.starts[self.generation] if self.is_diffusion(self.generation) else None
        if self.replaced is None and starts is None and self.family is None and self.session.bidirectional:
            self.replaced = replaced_token(self.tokens_BT, tokens_BT)
            if self.replaced is not None:
                known = "no mask token is known" if self.mask_id is None else f"the mask token is {self.mask_id}"
                self.problems[self.generation] = (
                    f"its passes replace token {self.replaced} in the same {tokens_BT.shape[1]} positions, as denoising "
                    f"does, but {known}; pass observe(..., mask_id={self.replaced})"
                )
        mask = self.mask if self.replaced is None else self.replaced
        return not continues(self.tokens_BT, tokens_BT, mask, starts)

    def _pass(self, ids_BQ: torch.Tensor, start: int) -> ForwardPass:
        B = ids_BQ.shape[0]
        if not start:
            return ForwardPass.appended(ids_BQ, 0)
        before = self.tokens_BT
        known = before is not None and before.shape[0] == B and before.shape[1] >= start
        before = before if before is not None and known else ids_BQ.new_full((B, start), -1)
        tokens_BT = torch.cat([before[:, :start].to(ids_BQ.device), ids_BQ], 1)
        if not known or (self.family is not None and self.family.attention != "causal"):
            # Earlier rows are not known, or the rows of a block are computed repeatedly: observe these rows only.
            return ForwardPass(tokens_BT, start, range(start, tokens_BT.shape[1]), range(0))
        return ForwardPass.appended(tokens_BT, start)

    def _count_rows(self, forward: ForwardPass) -> None:
        """Record a cache that was filled elsewhere or rolled back: means over all rows so far would be wrong."""
        if bool((forward.tokens_BT[:, : forward.start] < 0).any()):
            self.problems[self.generation] = f"the cache held {forward.start} positions that were computed before"
        elif forward.start and forward.final and forward.start != self.rows:
            self.problems.setdefault(
                self.generation,
                f"step {len(self.steps)} continues from position {forward.start} of {self.rows} that were computed, as "
                f"assisted generation does",
            )
        self.rows = forward.tokens_BT.shape[1]

    def _new_generation(self, starts: list[int]) -> None:
        self.generation += 1
        self.starts[self.generation] = starts
        self.fresh = False
        self.pending = self.replaced = None

    def _prompt_ends(self, tokens_BT: torch.Tensor) -> list[int]:
        """The position where each row's prompt ends, including padding."""
        B, T = tokens_BT.shape
        if self.prompt_length is not None:
            return [self.prompt_length] * B
        masked_BT = tokens_BT == self.mask
        return [int(row.nonzero()[0]) if bool(row.any()) else T for row in masked_BT]

    def _layout(self, tokens_BT: torch.Tensor, real_BT: torch.Tensor | None) -> PositionLayout:
        """The layout of a pass; an autoregressive one also has the position that it writes."""
        (B, T), starts = tokens_BT.shape, self.starts[self.generation]
        pads = [span(real_BT, row, T)[0] for row in range(B)]
        prompts = [replace(self.prompt(row), ids=[0] * max(0, starts[row] - pads[row])) for row in range(B)]
        for prompt, pad in zip(prompts, pads, strict=True):
            for part in prompt.regions:
                if not 0 <= part.start < part.end <= T - pad:
                    raise FloatLensError(
                        f"region {part.name!r} is ({part.start}, {part.end}), but the sequence has {T - pad} positions"
                    )
        ids_BP, N = tokens_BT[:, : max(starts)], T if self.is_diffusion(self.generation) else T + 1
        batch = PromptBatch(prompts, ids_BP, None, pads)
        layout = batch.layout(N - ids_BP.shape[1], bool(self.shifted), self.mask)
        if real_BT is None:
            return layout
        real_BN = torch.nn.functional.pad(real_BT, (0, N - T), value=True)
        return replace(layout, real_BN=real_BN, region_BN=layout.region_BN.masked_fill(~real_BN, -1))

    def prompt(self, row: int) -> Prompt:
        """The prompt of a row, with its regions and gold evidence."""
        if not self.prompts:
            return Prompt("", [])
        return self.prompts[row if len(self.prompts) > 1 else 0]

    def is_diffusion(self, generation: int) -> bool:
        """Whether a generation replaces masks."""
        if self.family is not None:
            return self.family.kind == "mdm"
        first = next((step for step in self.steps if step.generation == generation), None)
        tokens_BT = self.tokens_BT if first is None else first.tokens_BT
        return self.mask_id is not None and tokens_BT is not None and bool((tokens_BT == self.mask_id).any())

    @property
    def mask(self) -> int:
        """The mask token; -2, which no position has, if there is none (-1 is a token that is not known)."""
        return -2 if self.mask_id is None else self.mask_id

    @property
    def shifted(self) -> int:
        """1 if the row that writes position j is j - 1."""
        if self.family is not None:
            return int(self.family.shifted)
        return int(not self.is_diffusion(self.generation))

    # --- after a pass ---------------------------------------------------------------------------------------------------

    def end(self, output: Any) -> None:
        """Finish the pass; `output` is None if it failed."""
        if self.waiting is not None and output is not None:
            self._enter_waiting()
        step = self.open
        if step is None:
            return
        self.close()
        if output is None or (step.active is not None and not step.active):
            return  # it failed, or only filled a cache
        step.tokens_BT = None if step.tokens_BT is None else step.tokens_BT.cpu()
        step.real_BT = None if step.real_BT is None else step.real_BT.cpu()
        results = self.session.results
        left_out = self.needs_tokens if step.tokens_BT is None else ()
        step.results = on_cpu({name: layers for name, layers in results.items() if name not in left_out})
        step.cross = {} if self.cross is None else on_cpu(self.cross.results)
        logits = logits_of(output)
        if step.tokens_BT is not None and logits is not None and logits.shape[-1] > int(step.tokens_BT.max()):
            self._propose(step, logits)
        self.steps.append(step)

    def close(self) -> None:
        """Abandon the pass that has started, if there is one."""
        if self.token is not None:
            leave_pass(self.token)
        self.open = self.token = self.waiting = self.session.first_call = None
        self._pause(True)

    def _pause(self, paused: bool) -> None:
        """Observe nothing between passes: there, gradient checkpointing computes the layers of the last pass again."""
        trains = torch.is_grad_enabled() and any(weight.requires_grad for weight in self.module.parameters())
        for session in (self.session, self.cross):
            if session is not None:
                session.paused, session.trains = paused, trains

    @torch.no_grad()
    def _propose(self, step: ObservedStep, logits_BNV: torch.Tensor) -> None:
        """Keep the most likely tokens of the positions that the step may write, and their logits until the next pass."""
        assert step.tokens_BT is not None
        B, T = step.tokens_BT.shape
        if self.is_diffusion(step.generation):
            positions = (step.tokens_BT == self.mask).nonzero()
            rows = (positions[:, 1] - self.shifted).clamp_min(0)
            length = T
        else:
            positions = torch.tensor([[row, T] for row in range(B)])
            rows, length = torch.full((B,), T - 1), T + 1
        rows = rows - (T - logits_BNV.shape[1])
        positions, rows = positions[rows >= 0], rows[rows >= 0]
        step.proposed_BT = torch.full((B, length), -1, dtype=torch.long)
        step.confidence_BT = torch.full((B, length), torch.nan)
        device = logits_BNV.device
        kept_nV = logits_BNV[positions[:, 0].to(device), rows.to(device)].detach().float()
        best, token = kept_nV.softmax(-1).max(-1)
        step.proposed_BT[positions[:, 0], positions[:, 1]] = token.cpu()
        step.confidence_BT[positions[:, 0], positions[:, 1]] = best.cpu()
        self.pending = (positions, kept_nV)

    def _settle(self, tokens_BT: torch.Tensor | None) -> None:
        """Store the tokens after the last step; None if they are not known."""
        if not self.steps or tokens_BT is None:
            return
        step = self.steps[-1]
        if step.tokens_BT is None or step.generation != self.generation:
            return
        after_BT = step.after_BT = tokens_BT.to("cpu", copy=True)  # a loop may write its tokens in place
        if self.pending is None or step.confidence_BT is None:
            return
        positions, kept_nV = self.pending
        inside = positions[:, 1] < after_BT.shape[1]
        positions, kept_nV = positions[inside], kept_nV[inside.to(kept_nV.device)]
        token = after_BT[positions[:, 0], positions[:, 1]]
        written = (token >= 0) & (token != self.mask)
        positions, kept_nV, token = positions[written], kept_nV[written.to(kept_nV.device)], token[written]
        chosen = kept_nV.softmax(-1).gather(-1, token[:, None].to(kept_nV.device))[:, 0]
        step.confidence_BT[positions[:, 0], positions[:, 1]] = chosen.cpu()

    def check_output(self, output: Any) -> torch.Tensor:
        """The finished sequences of the last generation; an error if they do not continue its last pass."""
        before_BT = self.tokens_BT
        if before_BT is None:
            raise FloatLensError(
                "the model was not called with token ids, so there is no sequence that output= finishes"
            )
        try:
            ids_BT = torch.as_tensor(output).cpu()
        except (ValueError, TypeError, RuntimeError):
            raise FloatLensError(
                "output= is not a tensor of token ids; pass the finished sequences (batch, length)"
            ) from None
        (B, T), V = before_BT.shape, None if self.pending is None else self.pending[1].shape[1]
        if ids_BT.ndim != 2 or ids_BT.is_floating_point() or ids_BT.shape[0] != B or ids_BT.shape[1] < T:
            raise FloatLensError(
                f"output= has the shape {tuple(ids_BT.shape)} ({ids_BT.dtype}); expected token ids ({B}, at least {T}): the "
                f"finished sequences, with prompt and padding"
            )
        if int(ids_BT.min()) < 0 or (V is not None and int(ids_BT.max()) >= V):
            raise FloatLensError(
                f"output= holds the ids {ids_BT.min()} to {ids_BT.max()}, which the model cannot write"
            )
        starts = self.starts[self.generation] if self.is_diffusion(self.generation) else None
        if not continues(before_BT, ids_BT, self.mask, starts):
            raise FloatLensError(
                "output= does not continue the tokens of the last pass; pass what this generation wrote, with its prompt"
            )
        return ids_BT

    def finish(self, tokens_BT: torch.Tensor) -> None:
        """Finish the generation with the tokens that were written."""
        self._settle(tokens_BT)
        self.finals[self.generation] = tokens_BT.cpu()
        self.fresh = True


def arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    by_name = dict(signature.bind_partial(*args, **kwargs).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            by_name |= by_name.pop(parameter.name, {})
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            by_name |= {f"{parameter.name}[{n}]": one for n, one in enumerate(by_name.pop(parameter.name, ()))}
    for value in list(by_name.values()):
        if isinstance(value, Mapping):
            by_name |= {str(key): one for key, one in value.items() if str(key) not in by_name}
    return by_name


def token_argument(given: Mapping[str, Any], named: str | None, is_transformers: bool) -> tuple[str | None, str]:
    """The name of the argument that holds the token ids; None, and the reason, if that is not clear.

    >>> ids, mask = torch.tensor([[5, 6]]), torch.tensor([[1, 1]])
    >>> token_argument({"idx": ids, "m": mask, "position_ids": ids}, None, False)[0]
    'idx'
    """
    if named is not None and named not in given:
        return (
            None,
            f"the model was called without the argument {named!r} that tokens= names; it has {', '.join(given)}",
        )
    one = named or ("input_ids" if is_transformers or "input_ids" in given else "")
    names = [one] if one else [name for name in given if not OTHER_IDS.search(name)]
    tensors = {name: given[name] for name in names if isinstance(given.get(name), torch.Tensor)}
    kinds = (torch.int64, torch.int32, torch.int16)
    likely = [name for name, value in tensors.items() if value.ndim == 2 and value.dtype in kinds]
    if len(likely) > 1:
        likely = [name for name in likely if int(tensors[name].max()) > 1 or int(tensors[name].min()) < 0]
    if len(likely) == 1:
        return likely[0], ""
    if likely:
        return (
            None,
            f"several arguments may hold the token ids: {', '.join(likely)}; pass observe(..., tokens={likely[0]!r})",
        )
    return None, "the model was not called with token ids; `results` holds each pass"


def replaced_token(before_BT: torch.Tensor, now_BT: torch.Tensor) -> int | None:
    """The one token that every difference between two passes over the same positions replaces or restores.

    It stands at several positions of a row before, as a mask does.

    >>> replaced_token(torch.tensor([[5, 6, 0, 0]]), torch.tensor([[5, 6, 7, 0]]))
    0
    >>> replaced_token(torch.tensor([[5, 6, 7]]), torch.tensor([[5, 8, 7]]))
    """
    if before_BT.shape != now_BT.shape:
        return None
    before_BT, now_BT = before_BT.cpu(), now_BT.cpu()
    differs_BT = before_BT != now_BT
    was, now = before_BT[differs_BT], now_BT[differs_BT]
    candidates = (int(was[0]), int(now[0])) if len(was) else ()
    for token in candidates:
        if bool(((was == token) | (now == token)).all()) and int((before_BT == token).sum(1).max()) > 1:
            return token
    return None


def cached_length(cache: Any) -> int:
    """Number of positions whose keys a cache holds."""
    return int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else 0


def continues(
    before_BT: torch.Tensor, now_BT: torch.Tensor, mask: int = -2, starts: Sequence[int] | None = None
) -> bool:
    """Whether tokens continue those of the last pass: they are equal wherever neither is a mask.

    `starts` are the ends of the rows' prompts, for a model that may also replace tokens it has written; a new generation
    then begins only when all of them are masked again.

    >>> continues(torch.tensor([[5, 0, 0]]), torch.tensor([[5, 7, 0]]), mask=0)
    True
    >>> continues(torch.tensor([[5, 6]]), torch.tensor([[5, 8, 9]]))
    False
    >>> continues(torch.tensor([[5, 6]]), torch.tensor([[5, 8]]), mask=0, starts=[1])
    True
    """
    B, T = before_BT.shape
    if now_BT.shape[0] != B or now_BT.shape[1] < T:
        return False
    before_BT, now_BT = before_BT.cpu(), now_BT[:, :T].cpu()
    same_BT = (before_BT == now_BT) | (before_BT == mask) | (now_BT == mask) | (before_BT < 0)
    for row, start in enumerate(starts or ()):
        again = start < T and bool((now_BT[row, start:] == mask).all()) and bool((before_BT[row, start:] != mask).any())
        same_BT[row, start:] = not again
    return bool(same_BT.all())


def span(real_BT: torch.Tensor | None, row: int, length: int) -> tuple[int, int]:
    """First and last position (exclusive) of a row that is not padding."""
    if real_BT is None:
        return 0, length
    positions = real_BT[row].nonzero()[:, 0]
    if not len(positions):
        raise FloatLensError(f"row {row} of the batch is all padding; leave it out")
    first, end = int(positions[0]), int(positions[-1]) + 1
    if end - first != len(positions):
        raise FloatLensError(f"row {row} has padding between its tokens; expected it before or after them")
    return first, end


def logits_of(output: Any) -> torch.Tensor | None:
    """The logits (B, N, V) of a model's output (an object, a dict, a tuple or a tensor)."""
    logits = getattr(output, "logits", None)
    if logits is None and isinstance(output, tuple | list) and output:
        logits = next((x for x in output if isinstance(x, torch.Tensor) and x.ndim == 3), None)
    if logits is None and isinstance(output, torch.Tensor):
        logits = output
    return logits if isinstance(logits, torch.Tensor) and logits.ndim == 3 else None


def on_cpu(results: Results) -> Results:
    """A copy of results in main memory."""
    return {
        name: {layer: value.detach().to("cpu", torch.float32, copy=True) for layer, value in layers.items()}
        for name, layers in results.items()
    }
