"""The result of `observe`: the forward passes of a user's own loop, stored as steps, and the traces made from them.

The tokens of a pass are known from its arguments and the length of its cache. The tokens that it committed are known when
the next pass starts: masks that were replaced, or tokens that were appended.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextvars import Token
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
import xarray as xr

from floatlens.attention.call import Inputs, PositionLayout, visible
from floatlens.attention.prompt_batch import PromptBatch
from floatlens.attention.session import Results, Session
from floatlens.data.prompt import Prompt
from floatlens.decode.network import CURRENT, ForwardPass, current_pass
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError
from floatlens.models.family import Family
from floatlens.trace.recorder import ModelFacts, Recorder
from floatlens.trace.trace import Trace

if TYPE_CHECKING:
    from floatlens.lens import Lens

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
    after_BT       ids after the step; until the next pass shows them, the most likely ones
    is_known       whether `after_BT` is known
    confidence_BT  probability of the tokens of `after_BT` at the positions that the step may write, NaN elsewhere; where a
                   mask is left, that of the most likely token
    """

    generation: int
    tokens_BT: torch.Tensor | None = None
    start: int = 0
    active: range | None = None
    real_BT: torch.Tensor | None = None
    results: Results = field(default_factory=dict)
    cross: Results = field(default_factory=dict)
    after_BT: torch.Tensor | None = None
    is_known: bool = False
    confidence_BT: torch.Tensor | None = None


class Observation:
    """The result of a block of `observe`: the observed steps, and the traces made from them.

    steps     one `ObservedStep` per forward pass: tokens, and `results[name][layer]` of (B, *dims of the statistic)
    """

    # `_begin` and `_end` are called around each pass of `module`. A single prompt applies to all rows; without a length it
    # ends at the first mask, or with the first pass.
    def __init__(
        self,
        module: torch.nn.Module,
        session: Session,
        cross: Session,
        facts: Lens | ModelFacts,
        *,
        prompts: Sequence[Prompt] = (),
        family: Family | None = None,
        mask_id: int | None = None,
        prompt_length: int | None = None,
        tokens: str | None = None,
    ) -> None:
        self.module, self.session, self.cross_session, self.facts = module, session, cross, facts
        self.prompts, self.family, self.mask_id, self.prompt_length = prompts, family, mask_id, prompt_length
        self.tokens = tokens  # name of the argument that holds the token ids; None: chosen by `token_argument`
        self.needs_tokens: Collection[str] = ()  # statistics that are left out of a pass without token ids
        self.own_cache = False  # whether the model may have a cache that no argument shows
        self.signature = inspect.signature(module.forward)
        self.mask = -2 if mask_id is None else mask_id  # no position has -2; -1 is a token that is not known
        self.steps: list[ObservedStep] = []
        self.of_encoder: Observation | None = None
        # By the number of a generation: why no trace can be made of it; where the rows' prompts end, including padding;
        # whether it replaces masks.
        self.problems: dict[int, str] = {}
        self.starts: dict[int, list[int]] = {}
        self.diffusion: dict[int, bool] = {}
        self.generation = -1
        self.fresh = True  # whether the next pass begins a generation
        self.prompt_mask: torch.Tensor | None = None  # (B, P), with which `generate` was called
        self.replaced: int | None = None  # a token that passes replace although it is not known as the mask token
        self.rows = 0  # positions whose rows are in the running means
        self.tokens_BT: torch.Tensor | None = None
        self.open: ObservedStep | None = None  # the pass that has started
        self.waiting: tuple[torch.Tensor, Any] | None = None  # ids and mask of a pass whose cache is not known yet
        self.token: Token[ForwardPass | None] | None = None  # with which the pass is left
        # (row, position) pairs (n, 2) that the last step may write, and their logits
        self.pending: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def encoder(self) -> list[ObservedStep]:
        """The steps of the encoder, for an encoder-decoder model; empty for other models."""
        return [] if self.of_encoder is None else self.of_encoder.steps

    @property
    def results(self) -> Results:
        """The results of the last forward pass: `results[name][layer]` is (B, *dims of the statistic)."""
        return self._last().results

    @property
    def cross(self) -> Results:
        """The results of the last forward pass for cross-attention; positions are those of the encoder's sequence."""
        return self._last().cross

    def _last(self) -> ObservedStep:
        if not self.steps:
            raise FloatLensError("no forward pass was observed; run the model inside the `with` block")
        return self.steps[-1]

    def trace(
        self,
        row: int = 0,
        *,
        generation: int = -1,
        output: torch.Tensor | Sequence[Sequence[int]] | None = None,
        sample_id: str = "",
    ) -> Trace:
        """The trace of one row of the batch; see `traces`. `sample_id` is stored in the trace."""
        made = self.traces(generation=generation, output=output)
        if not 0 <= row < len(made):
            raise FloatLensError(f"row {row} does not exist; the batch has {len(made)}")
        made[row].data.attrs["sample_id"] = sample_id
        return made[row]

    def encoder_trace(self, row: int = 0, *, generation: int = -1) -> Trace:
        """The trace of the encoder's pass, for an encoder-decoder model: one step that writes nothing."""
        if self.of_encoder is None:
            raise FloatLensError("the model has no separate encoder; use `trace`")
        return self.of_encoder.trace(row, generation=generation)

    def traces(
        self, *, generation: int = -1, output: torch.Tensor | Sequence[Sequence[int]] | None = None
    ) -> list[Trace]:
        """The traces of a generation, one per row of the batch; of several in a block, the one with index `generation`.

        A new generation begins when the tokens of a pass do not continue those of the previous one. `output` are the
        finished sequences (batch, length), with prompt and padding. It is not needed with `model.generate`, whose result is
        observed; otherwise, without it, the last step is assumed to write its most likely tokens.
        """
        if output is not None:
            if generation not in (-1, len({step.generation for step in self.steps}) - 1):
                raise FloatLensError(f"output= finishes the last generation, not generation {generation}")
            self._finish(self._check_output(output))
        observed = self._passes(generation)
        number, family, session = observed[0].generation, self.family, self.session
        diffusion, shifted = self.diffusion[number], self._shifted(number)
        steps = list(self._as_steps(observed))
        B = len(steps[0].tokens_BT)
        lasts = [sum(1 for step in steps if step.running_B is None or step.running_B[row]) - 1 for row in range(B)]
        spans = [span(observed[last].real_BT, row, steps[last].tokens_BT.shape[1]) for row, last in enumerate(lasts)]
        ends = [max(first, min(start, end)) for start, (first, end) in zip(self.starts[number], spans, strict=False)]
        P, N = max(ends), max(step.after_BT.shape[1] for step in steps)
        tokens_BP = steps[0].tokens_BT[:, :P]
        prompts = [
            replace(self._prompt(row), ids=tokens_BP[row, first:end].tolist())
            for row, ((first, _), end) in enumerate(zip(spans, ends, strict=True))
        ]
        padded = any(step.real_BT is not None for step in observed)
        real_BP = torch.ones_like(tokens_BP, dtype=torch.bool) if padded else None
        batch = PromptBatch(prompts, tokens_BP, real_BP, [first for first, _ in spans])
        recorder = Recorder(batch, N - P, steps=range(len(steps)), shifted=shifted, special_ids=self.facts.special_ids)
        for step, one in zip(steps, observed, strict=False):
            writes = bool(step.committed_BT.any())
            recorder.add(step, {n: value for n, value in one.results.items() if writes or n != "received_writing"})
        for row, ((_, end), last) in enumerate(zip(spans, lasts, strict=True)):
            if end < steps[last].tokens_BT.shape[1]:  # padded on the right, as in a batch of the Trainer
                recorder.length[row] = end
        both = session.bidirectional if session.bidirectional is not None else diffusion
        attributes: dict[str, Any] = {
            "family": family.name if family is not None else "observed",
            "kind": "mdm" if diffusion or (family is None and both) else "arm",
            "attention": family.attention if family is not None else "bidirectional" if both else "causal",
            "cached": int(any(step.start for step in observed)),
            "sampler": "observed",
            "seed": 0,
            "implementation": session.used,
            "final_tokens_from": "given" if observed[-1].is_known else "most likely tokens of the last step",
            "interventions": [],
            "built_from": None,
        }
        traces = [recorder.trace(row, self.facts, **attributes) for row in range(B)]
        for row, trace in enumerate(traces):
            trace.data = add_cross(trace.data, observed, row)
        return traces

    def _passes(self, generation: int) -> list[ObservedStep]:
        """The passes of a generation from the end of its prompt on; an error if no trace can be made of them."""
        gemma = getattr(getattr(self.module, "config", None), "model_type", None) == "diffusion_gemma"
        if gemma or (self.family is not None and self.family.kind == "mdm" and not self.family.mask_token):
            raise FloatLensError(
                "observe makes no trace of DiffusionGemma, whose canvas of random tokens does not show what a pass wrote; "
                "use floatlens.load(...).trace(...), which writes the tokens of its generate() with the same seed"
            )
        self._last()  # raises an error if there is no pass
        numbers = sorted({step.generation for step in self.steps})
        try:
            number = numbers[generation]
        except IndexError:
            raise FloatLensError(f"generation {generation} does not exist; {len(numbers)} were observed") from None
        if reason := self.problems.get(number):
            raise FloatLensError(f"no trace can be made of this generation: {reason}")
        start = max(self.starts[number])
        steps = [step for step in self.steps if step.generation == number]
        return [step for step in steps if step.tokens_BT is not None and step.tokens_BT.shape[1] >= start]

    def _as_steps(self, observed: Sequence[ObservedStep]) -> Iterator[Step]:
        """The passes as steps; a row of an autoregressive model runs up to the step that writes its end token."""
        diffusion = self.diffusion[observed[0].generation]
        end_ids, running_B = torch.tensor(list(self.facts.end_ids), dtype=torch.long), torch.ones(1, dtype=torch.bool)
        for index, one in enumerate(observed):
            assert one.tokens_BT is not None
            tokens_BT = one.tokens_BT[: self.session.rows]
            B, T = tokens_BT.shape
            after_BT = tokens_BT if one.after_BT is None else one.after_BT[:B]
            if one is observed[-1]:  # a single pass that was not continued writes nothing
                after_BT = after_BT[:, : T + (not diffusion and (one.is_known or len(observed) > 1))]
            new_T = torch.arange(after_BT.shape[1]) >= T
            if diffusion:
                before_BT = torch.nn.functional.pad(tokens_BT, (0, len(new_T) - T), value=self.mask)
                committed_BT = (after_BT != before_BT) & (after_BT != self.mask) & ~new_T
            else:
                committed_BT = new_T.expand_as(after_BT)
            confidence_BT = torch.full(after_BT.shape, torch.nan)
            if one.confidence_BT is not None:
                known = min(one.confidence_BT.shape[1], after_BT.shape[1])
                confidence_BT[:, :known] = one.confidence_BT[:B, :known]
            active = None if one.active is None or len(one.active) == T else one.active
            running_B = running_B.expand(B)
            some_B = None if bool(running_B.all()) else running_B
            yield Step(index, tokens_BT, after_BT, committed_BT & running_B[:, None], confidence_BT, active, some_B)
            if not diffusion:
                running_B = running_B & ~torch.isin(after_BT[:, T:], end_ids).any(1)
                if not bool(running_B.any()):
                    return

    def _begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Start a pass with these arguments."""
        self._close()
        self._pause(False)
        self.session.begin()
        self.cross_session.begin()
        given = arguments(self.signature, args, kwargs)
        name, problem = token_argument(given, self.tokens, "input_ids" in self.signature.parameters)
        if name is None:
            self.session.layout = None
            self._new_generation(torch.zeros(0, 0))
            self.problems[self.generation] = problem
            self.open = ObservedStep(self.generation)
            return
        ids, mask = given[name], given.get("attention_mask")
        cache: Any = given.get("past_key_values")
        if self.own_cache and current_pass() is None:
            self.waiting, self.token = (ids, mask), CURRENT.set(ForwardPass.appended(ids, 0))
            self.session.first_call = self._first_call
        else:
            self._enter(ids, int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else 0, mask)

    def _first_call(self, inputs: Inputs) -> None:
        """Start a pass whose cache is the model's own: its length is seen in the first call of attention."""
        Q = inputs.Q
        if self.waiting is not None and self.waiting[0].shape[1] == Q:
            seen_BT = None if inputs.mask is None else visible(inputs.mask).any(2).any(1)
            end = inputs.T if seen_BT is None else int(seen_BT.any(0).nonzero()[-1]) + 1  # of a static cache
            start = max(0, end - Q)
            self._enter_waiting(start, seen_BT[:, :Q] if seen_BT is not None and not start else None)

    def _enter_waiting(self, start: int = 0, seen_BT: torch.Tensor | None = None) -> None:
        """Start the pass that was waiting; keys that no row sees at an end of the sequence are padding."""
        assert self.waiting is not None and self.token is not None
        (ids, mask), self.waiting = self.waiting, None
        CURRENT.reset(self.token)
        self.token = None
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
            self.token = CURRENT.set(forward)
        tokens_BT = forward.tokens_BT.detach()
        if self._begins(tokens_BT):
            self._new_generation(tokens_BT)
        else:
            self._settle(tokens_BT)
            if not self.steps or self.steps[-1].generation != self.generation:  # only a cache was filled so far
                self._see_prompt(tokens_BT)
        if self.token is not None:
            self._count_rows(forward)
        real_BT = self._real(mask, tokens_BT)
        self.tokens_BT = tokens_BT.clone()
        self.session.layout = self._layout(self.tokens_BT, real_BT)
        self.open = ObservedStep(self.generation, self.tokens_BT, forward.start, forward.active, real_BT)

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
        known = self.family is not None or self.diffusion[self.generation]
        if self.replaced is None and not known and self.session.bidirectional:
            self.replaced = replaced_token(self.tokens_BT, tokens_BT)
            if self.replaced is not None:
                said = "no mask token is known" if self.mask_id is None else f"the mask token is {self.mask_id}"
                self.problems[self.generation] = (
                    f"its passes replace token {self.replaced} in the same {tokens_BT.shape[1]} positions, as denoising "
                    f"does, but {said}; pass observe(..., mask_id={self.replaced})"
                )
        return not self._continues(tokens_BT, self.mask if self.replaced is None else self.replaced)

    def _continues(self, tokens_BT: torch.Tensor, mask: int) -> bool:
        """Whether tokens continue those of the last pass; a diffusion model may also replace what it has written."""
        assert self.tokens_BT is not None
        starts = self.starts[self.generation] if self.diffusion[self.generation] else None
        return continues(self.tokens_BT, tokens_BT, mask, starts)

    def _pass(self, ids_BQ: torch.Tensor, start: int) -> ForwardPass:
        if not start:
            return ForwardPass.appended(ids_BQ, 0)
        B, before = ids_BQ.shape[0], self.tokens_BT
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

    def _new_generation(self, tokens_BT: torch.Tensor) -> None:
        self.generation += 1
        self.fresh, self.rows = False, 0
        self.pending = self.replaced = None
        self._see_prompt(tokens_BT)

    def _see_prompt(self, tokens_BT: torch.Tensor) -> None:
        """Note where the rows' prompts end, and whether masks follow."""
        (B, T), masked_BT = tokens_BT.shape, tokens_BT == self.mask
        starts = [int(row.nonzero()[0]) if bool(row.any()) else T for row in masked_BT]
        self.starts[self.generation] = starts if self.prompt_length is None else [self.prompt_length] * B
        is_mdm = bool(masked_BT.any()) if self.family is None else self.family.kind == "mdm"
        self.diffusion[self.generation] = is_mdm

    def _shifted(self, generation: int) -> bool:
        """Whether row j - 1 writes position j."""
        return not self.diffusion[generation] if self.family is None else self.family.shifted

    def _layout(self, tokens_BT: torch.Tensor, real_BT: torch.Tensor | None) -> PositionLayout:
        """The layout of a pass; an autoregressive one also has the position that it writes."""
        (B, T), starts = tokens_BT.shape, self.starts[self.generation]
        pads = [span(real_BT, row, T)[0] for row in range(B)]
        prompts = [replace(self._prompt(row), ids=[0] * max(0, starts[row] - pads[row])) for row in range(B)]
        for prompt, pad in zip(prompts, pads, strict=True):
            for part in prompt.regions:
                if not 0 <= part.start < part.end <= T - pad:
                    raise FloatLensError(
                        f"region {part.name!r} is ({part.start}, {part.end}), but the sequence has {T - pad} positions"
                    )
        ids_BP, N = tokens_BT[:, : max(starts)], T if self.diffusion[self.generation] else T + 1
        batch = PromptBatch(prompts, ids_BP, None, pads)
        layout = batch.layout(N - ids_BP.shape[1], self._shifted(self.generation), self.mask)
        if real_BT is None:
            return layout
        real_BN = torch.nn.functional.pad(real_BT, (0, N - T), value=True)
        return replace(layout, real_BN=real_BN, region_BN=layout.region_BN.masked_fill(~real_BN, -1))

    def _prompt(self, row: int) -> Prompt:
        """The prompt of a row, with its regions and gold evidence."""
        return self.prompts[row if len(self.prompts) > 1 else 0] if self.prompts else Prompt("", [])

    def _end(self, output: Any) -> None:
        """Finish the pass; `output` is None if it failed."""
        if self.waiting is not None and output is not None:
            self._enter_waiting()
        step = self.open
        self._close()
        if step is None or output is None or (step.active is not None and not step.active):
            return  # it failed, or only filled a cache
        step.tokens_BT = None if step.tokens_BT is None else step.tokens_BT.cpu()
        step.real_BT = None if step.real_BT is None else step.real_BT.cpu()
        left_out = self.needs_tokens if step.tokens_BT is None else ()
        step.results = on_cpu({n: layers for n, layers in self.session.results.items() if n not in left_out})
        step.cross = on_cpu(self.cross_session.results)
        logits = logits_of(output)
        if step.tokens_BT is not None and logits is not None and logits.shape[-1] > int(step.tokens_BT.max()):
            self._propose(step, step.tokens_BT, logits)
        self.steps.append(step)

    def _close(self) -> None:
        """Abandon the pass that has started, if there is one."""
        if self.token is not None:
            CURRENT.reset(self.token)
        self.open = self.token = self.waiting = self.session.first_call = None
        self._pause(True)

    def _pause(self, paused: bool) -> None:
        """Observe nothing between passes: there, gradient checkpointing computes the layers of the last pass again."""
        trains = torch.is_grad_enabled() and any(weight.requires_grad for weight in self.module.parameters())
        for session in (self.session, self.cross_session):
            session.paused, session.trains = paused, trains

    @torch.no_grad()
    def _propose(self, step: ObservedStep, tokens_BT: torch.Tensor, logits_BNV: torch.Tensor) -> None:
        """Keep the most likely tokens of the positions that the step may write, and their logits until the next pass."""
        B, T = tokens_BT.shape
        if self.diffusion[step.generation]:
            after_BT, positions = tokens_BT.clone(), (tokens_BT == self.mask).nonzero()
            rows = (positions[:, 1] - int(self._shifted(step.generation))).clamp_min(0)
        else:
            after_BT = torch.nn.functional.pad(tokens_BT, (0, 1), value=-1)
            positions, rows = torch.tensor([[row, T] for row in range(B)]), torch.full((B,), T - 1)
        rows = rows - (T - logits_BNV.shape[1])
        positions, rows = positions[rows >= 0], rows[rows >= 0]
        device = logits_BNV.device
        kept_nV = logits_BNV[positions[:, 0].to(device), rows.to(device)].detach().float()
        best, token = kept_nV.softmax(-1).max(-1)
        at = (positions[:, 0], positions[:, 1])
        step.after_BT, step.confidence_BT = after_BT, torch.full(after_BT.shape, torch.nan)
        step.after_BT[at], step.confidence_BT[at] = token.cpu(), best.cpu()
        self.pending = (positions, kept_nV)

    def _settle(self, tokens_BT: torch.Tensor) -> None:
        """Store the tokens after the last step."""
        step = self.steps[-1] if self.steps else None
        if step is None or step.tokens_BT is None or step.generation != self.generation:
            return
        after_BT = step.after_BT = tokens_BT.to("cpu", copy=True)  # a loop may write its tokens in place
        step.is_known = True
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

    def _finish(self, tokens_BT: torch.Tensor) -> None:
        """Finish the last generation with the tokens that were written."""
        self._settle(tokens_BT)
        self.fresh = True

    def _check_output(self, output: Any) -> torch.Tensor:
        """The finished sequences of the last generation; an error if they do not continue its last pass."""
        if self.tokens_BT is None:
            raise FloatLensError("the model was not called with token ids, so output= cannot finish a sequence")
        (B, T), V = self.tokens_BT.shape, torch.inf if self.pending is None else self.pending[1].shape[1]
        try:
            ids_BT = torch.as_tensor(output).cpu()
            fine = ids_BT.ndim == 2 and not ids_BT.is_floating_point() and self._continues(ids_BT, self.mask)
            fine = fine and int(ids_BT.min()) >= 0 and int(ids_BT.max()) < V
        except (ValueError, TypeError, RuntimeError):
            fine = False
        if not fine:
            raise FloatLensError(
                f"output= is {str(getattr(output, 'shape', output))[:80]}; expected token ids ({B}, at least {T}) that "
                f"continue the tokens of the last pass: the finished sequences, with prompt and padding"
            )
        return ids_BT


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


def continues(
    before_BT: torch.Tensor, now_BT: torch.Tensor, mask: int = -2, starts: Sequence[int] | None = None
) -> bool:
    """Whether tokens continue those of the last pass: they are equal wherever neither is a mask.

    A model that may replace what it has written is given `starts`, where its rows' prompts end: it begins again when all
    later positions are masked.

    >>> before = torch.tensor([[5, 6, 0]])
    >>> [continues(before, torch.tensor([now]), mask=0) for now in ([5, 6, 7], [5, 8, 0])]
    [True, False]
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


def add_cross(data: xr.Dataset, steps: Sequence[ObservedStep], row: int) -> xr.Dataset:
    """Add cross-attention to a trace's data: `cross_received` (step, cross_layer, head, source), `cross_entropy`."""
    crosses = [steps[int(number)].cross for number in data["step"].values]
    layers = sorted(crosses[0].get("received", {}))
    if not layers:
        return data
    received, entropy = (
        torch.stack([torch.stack([cross[name][layer][row] for layer in layers]) for cross in crosses]).numpy()
        for name in ("received", "entropy")
    )
    head = "head" if data.sizes.get("head") == received.shape[2] else "cross_head"
    return data.assign(
        cross_received=(("step", "cross_layer", head, "source"), received),
        cross_entropy=(("step", "cross_layer", head), entropy),
    ).assign_coords(cross_layer=layers)
