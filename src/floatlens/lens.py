"""Lens: a loaded model with its tokenizer, its family's facts and its sampler. Load, generate, trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, overload

import torch

from floatlens.attention.prompt_batch import PromptBatch, scripts_of, tails_of
from floatlens.data import sequences
from floatlens.data.prompt import Prompt, Region, build
from floatlens.data.sample import Passage
from floatlens.data.sequences import LEFT_TO_RIGHT, Order, write_script
from floatlens.data.template import DEFAULT as DEFAULT_TEMPLATE
from floatlens.data.template import Template
from floatlens.decode import replay
from floatlens.decode.network import Passes, input_device
from floatlens.decode.sampler import SAMPLERS, Sampler, settings_for
from floatlens.decode.step import SpecialTokens, Step
from floatlens.errors import FloatLensError
from floatlens.interventions import run as interventions
from floatlens.interventions.intervention import Intervention
from floatlens.keywords import LoadKeywords, RecordingKeywords, SamplingKeywords, TraceKeywords
from floatlens.models.adapter import MASK, apply_adapter, give_mask_vector
from floatlens.models.checkpoint import Checkpoint, find
from floatlens.models.describe import shape
from floatlens.models.tokenizer import find_mask_id, load_tokenizer
from floatlens.models.weights import load_model, redraw
from floatlens.options import Load, Recording, Sampling, make
from floatlens.trace.generation import Generation, decode, end_tokens, token_strings
from floatlens.trace.recorder import Watch, check_finite
from floatlens.trace.trace import Trace

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

PromptLike: TypeAlias = Prompt | str | Sequence[int]

SMALL = 512  # width below which a layer's matrix products are too small to share between threads
# Tokens with which chat models end their turn, in addition to the end token of their config.
TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|role_end|>", "<end_of_turn>")


def load(name: str, **options: Unpack[LoadKeywords]) -> Lens:
    """Load a model: `load("GSAI-ML/LLaDA-8B-Instruct", dtype="bfloat16", device_map="auto")`.

    `name` is a folder, a Hub id, a GGUF file or a bundled name, of which `floatlens models` prints a list; NAME:arm and
    NAME:mdm choose the mode of a model that writes both ways. The options are the fields of `floatlens.options.Load`.
    Nothing is downloaded unless `name` is a Hub id, and remote code is never run.
    """
    [chosen] = make(options, Load)
    lens = Lens.find(name, chosen)
    _ = lens.model
    return lens


def limit_threads(lens: Lens) -> Lens:
    """Use one thread for a small model on a CPU, where several threads cost more than they save; return the lens."""
    if (lens.shape["width"] or SMALL) < SMALL and not lens.options.device_map:
        torch.set_num_threads(1)
    return lens


class Lens:
    """A loaded model with its tokenizer, its family's facts and its sampler.

    Made by `load`. If a lens is created directly, its weights are read when they are first needed.

    name           name of the model
    family         its family
    sampler        name of its sampler
    block_length   tokens per block of a block model; None for other models
    batched        whether the sampler writes several prompts at once; if not, prompts of a batch are written one by one
    rows_wait      whether rows of a batch wait for each other, which gives them different numbers of steps
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint, self.options = checkpoint, checkpoint.how
        self.name, self.family, self.sampler = checkpoint.name, checkpoint.family, checkpoint.sampler
        self.block_length = checkpoint.block_length
        self.batched, self.rows_wait = SAMPLERS[self.sampler].batched, SAMPLERS[self.sampler].aligned

    @classmethod
    def find(cls, name: str, options: Load = Load()) -> Lens:
        """The lens of a model, without reading its weights."""
        return cls(find(name, options))

    @cached_property
    def model(self) -> PreTrainedModel:
        """The native transformers model."""
        model, folder = load_model(self.checkpoint), self.checkpoint.adapter
        if folder is not None:
            if self.options.tp_plan is not None:
                raise FloatLensError(
                    "an adapter needs all weights in one process; load with device_map instead of tp_plan"
                )
            model = apply_adapter(model, self.checkpoint)
            if self.family.kind == "mdm" and (folder / MASK).is_file():
                give_mask_vector(model, folder, find_mask_id(model.config, self.tokenizer))
        return redraw(model) if self.options.untrained else model

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer, or None if the checkpoint has none."""
        return load_tokenizer(self.checkpoint)

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The native config."""
        return self.__dict__["model"].config if "model" in self.__dict__ else self.checkpoint.native_config()

    @cached_property
    def shape(self) -> dict[str, int | None]:
        """Layers, heads, kv_heads, head_dim, width, vocabulary, context."""
        return shape(self.config)

    @property
    def context_length(self) -> int | None:
        """Maximum number of tokens; None if the config does not define it."""
        return self.shape["context"]

    def __repr__(self) -> str:
        s = self.shape
        return f"<floatlens.Lens {self.name}: {self.family.name}, {s['layers']} layers, {s['heads']} heads>"

    @property
    def has_mask(self) -> bool:
        """Whether the model writes by filling in masks."""
        return self.family.kind == "mdm" and self.family.mask_token

    @cached_property
    def mask_id(self) -> int:
        """The mask token of a diffusion model, from its config or otherwise from its tokenizer."""
        mask_id = find_mask_id(self.config, self.tokenizer)
        if mask_id is None:
            raise FloatLensError(f"{self.name} has no mask token; add the field 'mask_token_id' to config.json")
        return mask_id

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer, the config's own first."""
        generation = getattr(self.__dict__.get("model"), "generation_config", None)
        ends = end_tokens(self.config, generation, self.tokenizer)
        if self.tokenizer is not None:
            vocabulary = self.tokenizer.get_vocab()
            ends += [vocabulary[token] for token in TURN_ENDS if token in vocabulary]
        return tuple(dict.fromkeys(ends))

    @property
    def pad_id(self) -> int:
        """The padding token."""
        for source in (self.config, self.tokenizer):
            pad_id = getattr(source, "pad_token_id", None)
            if pad_id is not None and pad_id >= 0:
                return int(pad_id)
        return self.end_ids[0] if self.end_ids else 0

    @property
    def special_tokens(self) -> SpecialTokens:
        """Mask, end and padding tokens for samplers."""
        return SpecialTokens(self.mask_id if self.has_mask else None, self.end_ids, self.pad_id)

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        known = set(self.end_ids) | {self.pad_id} | ({self.mask_id} if self.has_mask else set())
        return tuple(sorted(known | set(self.tokenizer.all_special_ids if self.tokenizer is not None else ())))

    def prompt(
        self,
        question: str,
        passages: str | Passage | Sequence[str | Passage] = (),
        *,
        gold: int | Sequence[int] | None = None,
        answers: Sequence[str] = (),
        order: str = "last",
        template: Template = DEFAULT_TEMPLATE,
        chat: bool = True,
    ) -> Prompt:
        """Build the prompt of a question, by default in the model's chat template.

        `gold` are the 0-based indices of the passages that hold the answer, by default those marked `gold`; `order` puts
        the question "last", "first", or on "both" sides of the passages; `template` is the text around them.
        """
        how: dict[str, Any] = {"gold": gold, "answers": answers, "order": order, "template": template, "chat": chat}
        return build(self._needs_tokenizer(), question, passages, **how)

    def text_prompt(self, text: str, regions: sequences.Regions = None) -> Prompt:
        """Build the prompt of a raw text, such as a protein sequence, without a chat template.

        `regions` are spans of characters by name, such as {"site": (3, 9)}, or "marks" for a text with marks, as in
        "[[doc1: Ada lives in Rusk.]] [[query: Where?]]"; by default all of it is the region `text`. Special tokens that are
        written in the text count as such. A warning is issued if more than 20 % of the tokens are unknown.
        """
        made = sequences.text_prompt(self._needs_tokenizer(), text, regions)
        if self.family.kind == "mdm" and self.mask_id in made.ids:
            raise FloatLensError(
                "the text contains a mask, but the model writes after the text; use infill to fill masks"
            )
        return made

    def infill_prompt(self, text: str, regions: sequences.Regions = None) -> Prompt:
        """Build the prompt of a text with masks, which `infill`, `traces`, `watch` and `generate` fill.

        The parameters are those of `infill`.
        """
        if self.family.kind == "arm":
            raise FloatLensError(
                f"{self.name} is autoregressive and writes only after a text; infill with a masked model"
            )
        if not SAMPLERS[self.sampler].fills:
            blocks = "" if self.family.block_length is None else ": it writes in blocks, and no block sees a later one"
            raise FloatLensError(
                f"the {self.sampler} sampler cannot write inside a text{blocks}; infill with a bidirectional model, such as "
                f"tiny-mdm or one of the families llada and dream"
            )
        made = sequences.infill_prompt(self._needs_tokenizer(), text, self.mask_id, regions)
        if self.family.shifted and not made.ids:
            raise FloatLensError(
                f"{self.name} predicts each token from the position before it, so it cannot write the first; "
                f"put some text before the first mask"
            )
        return made

    def _needs_tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is not None:
            return self.tokenizer
        raise FloatLensError(
            f"{self.name} has no tokenizer, so it cannot read text; pass token ids: Prompt.from_ids([...])"
        )

    def _prompts(self, prompts: Sequence[PromptLike], sample_ids: Sequence[str] | None = None) -> list[Prompt]:
        texts = (self.prompt(each) if isinstance(each, str) else each for each in prompts)
        made = [each if isinstance(each, Prompt) else Prompt.from_ids(each) for each in texts]
        if sample_ids is None:
            return made
        return [dataclasses.replace(each, sample_id=name) for each, name in zip(made, sample_ids, strict=True)]

    def settings(self, **options: Unpack[SamplingKeywords]) -> Sampler:
        """Return the validated settings of the lens's sampler, from the fields of `options.Sampling`; needs no weights."""
        return self.settings_of((), make(options, Sampling)[0])

    def steps(self, batch: PromptBatch, settings: Sampler) -> Iterator[Step]:
        """Decode a batch, one `Step` per forward pass."""
        for prompt in batch.prompts:
            settings.fits(len(prompt.ids), self.context_length)
        vocabulary, scripts = self.shape["vocabulary"], batch.scripts
        given = [*(ids for p in batch.prompts for ids in (p.ids, p.tail or ())), *(s.ids for s in scripts or ())]
        highest = max(max(ids, default=0) for ids in given)
        if vocabulary is not None and highest >= vocabulary:
            raise FloatLensError(f"token id {highest} is outside {self.name}'s vocabulary of {vocabulary}")
        if len(batch.prompts) > len(batch.prompts[self._parts(batch.prompts)[0]]):
            raise FloatLensError(
                f"the {self.sampler} sampler writes one such prompt at a time, got {len(batch.prompts)}"
            )
        steps = settings.sample(self.passes(batch, settings))
        if changes := interventions.in_force(self):
            steps = interventions.stepwise(self, steps, changes, batch, self._new_positions(batch, settings))
        return check_finite(steps)

    def passes(self, batch: PromptBatch, settings: Sampler) -> Passes:
        """The forward passes with which the sampler runs the sequences of a batch."""
        own = settings.own(self.sampler) if isinstance(settings, replay.Replay) else settings
        return Passes(
            self.model,
            self.family,
            batch.ids_BP,
            batch.real_BP,
            own,
            special=self.special_tokens,
            tail_BN=batch.tail_BN(),
            ends=batch.ends,
            scripts=batch.scripts or (),
        )

    def intervene(
        self, *given: Intervention | str, reference: Sequence[PromptLike] | None = None
    ) -> AbstractContextManager[None]:
        """Change attention inside a block: `with lens.intervene(MaskAnchors("top(1)")): lens.generate(...)`.

        Interventions are objects or texts; nested blocks add to each other. It is an error to name layers or heads that the
        model does not have, or to combine interventions that contradict each other. `reference` are the prompts that
        ablate-heads uses to rank heads and compute their means.
        """
        if self.options.tp_plan is not None:
            raise FloatLensError("interventions need all heads in one process; load with device_map instead of tp_plan")
        return interventions.intervene(self, given, reference)

    def settings_of(self, prompts: Sequence[Prompt], sampling: Sampling) -> Sampler:
        """The settings used to decode prompts.

        For a replay they come from the given texts. For a text with masks, the default number of steps is the number of
        masks, and its length is used instead of `max_new_tokens`.
        """
        scripts, tails = scripts_of(prompts), tails_of(prompts)
        given = {each.name: getattr(sampling, each.name) for each in dataclasses.fields(sampling)}
        given |= dict(given.pop("sampler") or {})
        if given["block_length"] is None:
            given["block_length"] = self.block_length
        if scripts is not None:
            return replay.settings_of(scripts, self.family, self.sampler, given["block_length"], sampling.seed or 0)
        if tails is not None:
            given["max_new_tokens"] = len(tails[0])
            given["steps"] = given["steps"] or max(tail.count(self.mask_id) for tail in tails)
        return settings_for(self.sampler, **given)

    def _new_positions(self, batch: PromptBatch, settings: Sampler) -> int:
        """Number of columns that may be written after the end of the prompts, or of the longest row."""
        last = max(end + settings.canvas(len(p.ids)) for end, p in zip(batch.ends, batch.prompts, strict=True))
        return last - batch.ids_BP.shape[1]

    def _batch(self, prompts: Sequence[Prompt], settings: Sampler | None = None) -> PromptBatch:
        """Pad prompts to one batch, by whole blocks if these are counted from the start of each prompt."""
        block = getattr(settings, "block_length", None) if self.rows_wait else None
        filler = self.mask_id if block is not None else None
        return PromptBatch.of(prompts, self.pad_id, input_device(self.model), block=block, filler=filler)

    def _parts(self, prompts: Sequence[Prompt]) -> list[slice]:
        """The prompts that are decoded together: all, or one at a time if interventions or replays count steps."""
        if self.batched and not (self.rows_wait and (interventions.in_force(self) or scripts_of(prompts))):
            return [slice(0, len(prompts))]
        return [slice(row, row + 1) for row in range(len(prompts))]

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompts: Prompt | str, *, stop_when_answered: bool = False, **options: Unpack[SamplingKeywords]
    ) -> Generation: ...
    @overload
    def generate(
        self, prompts: Sequence[PromptLike], *, stop_when_answered: bool = False, **options: Unpack[SamplingKeywords]
    ) -> list[Generation]: ...

    def generate(
        self,
        prompts: Prompt | str | Sequence[PromptLike],
        *,
        stop_when_answered: bool = False,
        **options: Unpack[SamplingKeywords],
    ) -> Generation | list[Generation]:
        """Generate text after a prompt, or after each prompt of a list in one left-padded batch.

        With `stop_when_answered`, it stops as soon as an end token and all tokens before it are written, which do not change
        any more (samplers that revise their tokens ignore this); `steps` of the result counts the passes until then. The
        options are the fields of `floatlens.options.Sampling`.
        """
        single = isinstance(prompts, Prompt | str)
        ready = self._prompts([prompts] if isinstance(prompts, Prompt | str) else prompts)
        chosen = self.settings_of(ready, make(options, Sampling)[0])
        made: list[Generation] = []
        for part in self._parts(ready):
            batch = self._batch(ready[part], chosen)
            made += self.finish(batch, chosen, self.steps(batch, chosen), stop_when_answered=stop_when_answered)
        return made[0] if single else made

    def finish(
        self, batch: PromptBatch, settings: Sampler, steps: Iterable[Step], *, stop_when_answered: bool = False
    ) -> list[Generation]:
        """Run all steps of a batch, or those that its answers need, and return the generation of each prompt."""
        B, P = batch.ids_BP.shape
        stops = stop_when_answered and self.has_mask and not SAMPLERS[self.sampler].revises
        stops = stops and batch.tail_BN() is None and batch.scripts is None
        decides = {*self.end_ids, *([self.mask_id] if stops else [])}  # the first of these says if a row is answered
        answered = [False] * B
        counts = torch.zeros(B, dtype=torch.long)
        final = batch.ids_BP
        kept = torch.full((B, P + self._new_positions(batch, settings)), torch.nan)
        lengths = [P] * B
        for step in steps:
            final = step.after_BT
            for row in range(B) if step.running_B is None else step.running_B.nonzero()[:, 0].tolist():
                counts[row] += not answered[row]
                lengths[row] = final.shape[1]
            committed, confidence = step.committed_BT.cpu(), step.confidence_BT.float().cpu()
            kept[:, : committed.shape[1]] = torch.where(committed, confidence, kept[:, : committed.shape[1]])
            if stops:
                answered = [
                    done or next((i != self.mask_id for i in final[row, end:].tolist() if i in decides), False)
                    for row, (done, end) in enumerate(zip(answered, batch.ends, strict=True))
                ]
                if all(answered):
                    break
        tail_BN, made = batch.tail_BN(), []
        for row, end in enumerate(batch.ends):
            masks = None if tail_BN is None else (tail_BN[row] == self.mask_id).tolist()
            ids = final[row, end : lengths[row]].tolist()
            ids = ids if masks else ids[: settings.max_new_tokens]  # whole blocks may be longer than requested
            made.append(Generation.of(self, ids, kept[row, end : end + len(ids)].numpy(), int(counts[row]), masks))
        return made

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids without special tokens; the ids themselves if there is no tokenizer."""
        return decode(self.tokenizer, ids)

    def token_strings(self, ids: Sequence[int]) -> dict[str, str]:
        """Token strings by id (as a string); the id in brackets if there is no tokenizer."""
        return token_strings(self.tokenizer, ids)

    def trace(
        self,
        prompt: PromptLike,
        passages: str | Passage | Sequence[str | Passage] = (),
        *,
        gold: int | Sequence[int] | None = None,
        answers: Sequence[str] = (),
        sample_id: str = "",
        **options: Unpack[TraceKeywords],
    ) -> Trace:
        """Generate text after a prompt and record a trace; the tokens are those of `generate`.

        Passages need a question as text: see `prompt`. `sample_id` is a name that is stored in the trace; the options are
        the fields of `floatlens.options.Sampling` and `Recording`.
        """
        if isinstance(prompt, str):
            prompt = self.prompt(prompt, passages, gold=gold, answers=answers)
        elif passages or gold is not None:
            raise FloatLensError("passages and gold need the question as text; a Prompt has its own")
        return self.traces([prompt], sample_ids=[sample_id] if sample_id else None, **options)[0]

    def traces(
        self,
        prompts: Sequence[PromptLike],
        *,
        sample_ids: Sequence[str] | None = None,
        **options: Unpack[TraceKeywords],
    ) -> list[Trace]:
        """Trace a batch of prompts together; each trace equals the trace of its prompt alone.

        `sample_ids` are names that are stored in the traces; the options are those of `trace`.
        """
        ready = self._prompts(prompts, sample_ids)
        made: list[Trace] = []
        for part in self._parts(ready):
            watch = self.watch(ready[part], **options)
            for _ in watch:
                pass
            made += watch.traces()
        return made

    def replay(
        self,
        prompt: PromptLike,
        answer: str | Sequence[int],
        order: Order = LEFT_TO_RIGHT,
        *,
        seed: int = 0,
        regions: sequences.Regions = None,
        sample_id: str = "",
        **recording: Unpack[RecordingKeywords],
    ) -> Trace:
        """Trace a given answer as if the model wrote it: revealed in a given order, without sampling.

        A masked diffusion model runs one pass per step, an autoregressive model extends its cache token by token. Replaying
        a greedy generation in its own order, `lens.replay(prompt, trace.written, trace.order)`, gives its trace.

        Parameters
        ----------
        answer
            The answer as text (an end token is not added) or as token ids.
        order
            "left-to-right", "random" (by `seed`), or a list of indices into the answer's tokens; an element that is a list
            contains tokens that are revealed together. An autoregressive model only supports "left-to-right", and a block
            model an order that finishes each block before the next.
        seed
            Seed of a random order.
        regions
            Regions inside the answer: see `text_prompt`.
        **recording
            The fields of `floatlens.options.Recording`.
        """
        ready = self.with_answer(prompt, answer, order, seed=seed, regions=regions)
        return self.trace(ready, sample_id=sample_id, seed=seed, **recording)

    def infill(
        self,
        text: str,
        *,
        regions: sequences.Regions = None,
        answers: Sequence[str] = (),
        sample_id: str = "",
        **options: Unpack[TraceKeywords],
    ) -> Trace:
        """Fill the masks inside a text and record a trace: `lens.infill("The [MASK] of France is Paris.")`.

        The text has one [MASK], or the model's own mask token, per token to write; a space before a mask belongs to it.
        `trace.answer` is the text of the filled masks, `trace.text` the complete text. `regions` are those of `text_prompt`;
        the masks are the region `answer`. The options are those of `trace`; `steps` is the number of masks by default.
        """
        ready = dataclasses.replace(self.infill_prompt(text, regions), answers=list(answers))
        return self.trace(ready, sample_id=sample_id, **options)

    def with_answer(
        self,
        prompt: PromptLike,
        answer: str | Sequence[int],
        order: Order = LEFT_TO_RIGHT,
        *,
        seed: int = 0,
        regions: sequences.Regions = None,
    ) -> Prompt:
        """The prompt with a given answer, which `traces`, `watch` and `generate` replay instead of sampling.

        The parameters are those of `replay`.
        """
        [made] = self._prompts([prompt])
        if isinstance(answer, str):
            ids, own = sequences.answer_tokens(self._needs_tokenizer(), answer, regions)
        else:
            ids = [int(i) for i in answer]
            own = sequences.check_spans(regions or {}, len(ids), "positions")  # type: ignore[arg-type]
        given = None
        if (tail := made.tail) is not None:
            given = [token != self.mask_id for token in tail]
            if len(ids) != len(tail) or any(known and a != b for known, a, b in zip(given, tail, ids, strict=True)):
                raise FloatLensError(
                    f"a text with masks is replayed with all {len(tail)} tokens from its first mask on, as in trace.written"
                )
        script = write_script(ids, order, seed=seed, given=given)
        replay.settings_of([script], self.family, self.sampler, self.block_length)
        P = len(made.ids)
        parts = [Region(each.name, P + each.start, P + each.end) for each in own]
        return dataclasses.replace(made, script=script, regions=[*made.regions, *parts])

    def watch(
        self,
        prompts: Sequence[PromptLike],
        *,
        sample_ids: Sequence[str] | None = None,
        **options: Unpack[TraceKeywords],
    ) -> Watch:
        """Trace a batch of prompts step by step: iterate over steps and their results, then call `.traces()`.

        A run may be abandoned at any step; between two steps the model is unchanged. A sampler that writes one prompt at a
        time takes one prompt here. The parameters are those of `traces`.
        """
        sampling, recording = make(options, Sampling, Recording)
        ready = self._prompts(prompts, sample_ids)
        return Watch(self, ready, self.settings_of(ready, sampling), recording)
