"""Lens: a loaded model with its tokenizer, its family's facts and its sampler. Load, generate, trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import torch

from floatlens.data.prompt import Prompt, build
from floatlens.data.sample import Passage
from floatlens.decode.draws import Draws
from floatlens.decode.network import Network
from floatlens.decode.registry import SAMPLERS, settings_for
from floatlens.decode.settings import Settings
from floatlens.decode.special_tokens import SpecialTokens
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError
from floatlens.interventions import run as interventions
from floatlens.interventions.intervention import Intervention
from floatlens.models.checkpoint import Checkpoint, find
from floatlens.models.describe import shape
from floatlens.models.family import Family
from floatlens.models.tokenizer import load_tokenizer
from floatlens.models.weights import load_model
from floatlens.observation.prompt_batch import PromptBatch
from floatlens.record.choice import Record
from floatlens.record.finite import finite
from floatlens.record.labels import labelled
from floatlens.record.recorder import Recorder
from floatlens.record.trace import Trace
from floatlens.record.watch import Watch

# Tokens by which chat models end their turn, beside the end token of their config.
TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|role_end|>", "<end_of_turn>")


@dataclass(frozen=True)
class Generation:
    """What a model wrote.

    `text` and `ids` are cut at the first end token; `ended` says whether there was one; `confidence` is the mean
    probability of the tokens up to and with it, each at the step that committed it.
    """

    text: str
    ids: list[int]
    steps: int
    confidence: float
    ended: bool


def load(
    name: str,
    *,
    family: str | None = None,
    revision: str | None = None,
    dtype: str | torch.dtype = "auto",
    device_map: str | dict[str, Any] | None = None,
    quantization_config: Any = None,
    attn_implementation: str | None = None,
    tp_plan: str | dict[str, str] | None = None,
    allow_pickle: bool = False,
) -> Lens:
    """Load a model: a folder, a hub id, a GGUF file, or a bundled name ("tiny-arm", "tiny-mdm", "tiny-dream").

    `dtype` "auto" is the checkpoint's own on an accelerator and float32 on a CPU. Nothing is downloaded unless `name` is
    a hub id; remote code is never run. Weights that are pickled are refused unless `allow_pickle`.

    A model larger than one GPU: `device_map="auto"` puts its layers on several, one after another; `tp_plan="auto"` splits
    each layer over the processes of torchrun, which all run the same script.
    """
    checkpoint = find(name, revision=revision, family=family)
    options = {
        "dtype": dtype,
        "device_map": device_map,
        "quantization_config": quantization_config,
        "attn_implementation": attn_implementation,
        "tp_plan": tp_plan,
        "allow_pickle": allow_pickle,
    }
    lens = Lens(checkpoint, **options)
    _ = lens.model
    return lens


class Lens:
    """A model to look through. The weights are read when they are first needed; `load` needs them at once."""

    def __init__(self, checkpoint: Checkpoint, **options: Any) -> None:
        self.checkpoint = checkpoint
        self.options = options

    @property
    def name(self) -> str:
        return self.checkpoint.name

    @property
    def family(self) -> Family:
        return self.checkpoint.family

    @cached_property
    def model(self) -> Any:
        """The native transformers model."""
        return load_model(self.checkpoint, **self.options)

    @cached_property
    def tokenizer(self) -> Any | None:
        """The tokenizer, or None if the checkpoint brings none."""
        return load_tokenizer(self.checkpoint)

    @cached_property
    def config(self) -> Any:
        """The native config."""
        return self.__dict__["model"].config if "model" in self.__dict__ else self.checkpoint.native_config()

    @cached_property
    def shape(self) -> dict[str, int | None]:
        """Layers, heads, kv_heads, head_dim, width, vocabulary, context."""
        return shape(self.config)

    @property
    def context_length(self) -> int | None:
        return self.shape["context"]

    def __repr__(self) -> str:
        s = self.shape
        return f"<floatlens.Lens {self.name}: {self.family.name}, {s['layers']} layers, {s['heads']} heads>"

    # --- tokens -------------------------------------------------------------------------------------------------------

    @cached_property
    def mask_id(self) -> int:
        """The mask token of a diffusion model: from its config, else from its tokenizer."""
        for source in (self.config, self.tokenizer):
            found = getattr(source, "mask_token_id", None)
            if found is not None:
                return int(found)
        if self.tokenizer is not None and "<|mask|>" in self.tokenizer.get_vocab():
            return int(self.tokenizer.convert_tokens_to_ids("<|mask|>"))
        raise FloatLensError(f"{self.name} has no mask token: config.json should have the field 'mask_token_id'")

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer, the config's own first."""
        found: list[int] = []
        for source in (self.config, getattr(self.__dict__.get("model"), "generation_config", None), self.tokenizer):
            ids = getattr(source, "eos_token_id", None)
            found += ids if isinstance(ids, list) else [ids] if ids is not None else []
        if self.tokenizer is not None:
            vocabulary = self.tokenizer.get_vocab()
            found += [vocabulary[token] for token in TURN_ENDS if token in vocabulary]
        return tuple(dict.fromkeys(int(i) for i in found))

    @property
    def pad_id(self) -> int:
        for source in (self.config, self.tokenizer):
            found = getattr(source, "pad_token_id", None)
            if found is not None and found >= 0:
                return int(found)
        return self.end_ids[0] if self.end_ids else 0

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        known = set(self.end_ids) | {self.pad_id} | ({self.mask_id} if self.family.kind == "mdm" else set())
        return tuple(sorted(known | set(self.tokenizer.all_special_ids if self.tokenizer is not None else ())))

    def prompt(self, question: str, passages: Sequence[str | Passage] = (), **options: Any) -> Prompt:
        """Build a prompt with the model's chat template; see `floatlens.data.prompt.build` for the options."""
        if self.tokenizer is None:
            raise FloatLensError(
                f"{self.name} has no tokenizer, so it cannot read text; give token ids: Prompt.from_ids([...])"
            )
        return build(self.tokenizer, question, passages, **options)

    def _prompts(self, given: Any) -> list[Prompt]:
        made = []
        for one in given:
            if isinstance(one, Prompt):
                made.append(one)
            elif isinstance(one, str):
                made.append(self.prompt(one))
            else:
                made.append(Prompt.from_ids(one))
        return made

    # --- decoding -----------------------------------------------------------------------------------------------------

    def settings(self, **given: Any) -> Settings:
        """The sampler's settings from names and values; checked, without loading anything."""
        return settings_for(self.family.sampler, **given)

    def steps(self, batch: PromptBatch, settings: Settings, seeds: Sequence[int] | None = None) -> Iterator[Step]:
        """Decode a batch, one `Step` per forward pass."""
        for prompt in batch.prompts:
            settings.fits(len(prompt.ids), self.context_length)
        vocabulary = self.shape["vocabulary"]
        highest = max(max(prompt.ids) for prompt in batch.prompts)
        if vocabulary is not None and highest >= vocabulary:
            raise FloatLensError(f"token id {highest} is outside {self.name}'s vocabulary of {vocabulary}")
        draws = Draws(seeds if seeds is not None else [settings.seed] * len(batch.prompts))
        special = SpecialTokens(self.mask_id if self.family.kind == "mdm" else None, self.end_ids, self.pad_id)
        network = Network(self.model, self.family.positions)
        sample = SAMPLERS[self.family.sampler].sample
        steps = sample(network, batch.ids_BP, batch.real_BP, settings, special=special, draws=draws)
        if changes := interventions.in_force(self):
            steps = interventions.stepwise(self, steps, changes, batch, settings.max_new_tokens)
        return finite(steps, self.model, batch.pads)

    def intervene(
        self, *given: Intervention | str, reference: Sequence[Prompt | str | Sequence[int]] | None = None
    ) -> AbstractContextManager[None]:
        """Change attention while the block lasts: `with lens.intervene(MaskAnchors("top(1)")): lens.generate(...)`.

        Interventions are objects or their texts; those of nested blocks add up. What the model does not have, and what
        contradicts each other, is refused on entering, before any weight is read. `reference` are the prompts by which
        ablate-heads ranks heads and takes their means.
        """
        if self.options.get("tp_plan") is not None:
            raise FloatLensError("interventions need all heads in one process; load with device_map instead of tp_plan")
        return interventions.intervene(self, given, reference)

    def _batch(self, prompts: Sequence[Prompt]) -> PromptBatch:
        return PromptBatch.of(prompts, self.pad_id, Network(self.model).device)

    @overload
    def generate(self, prompts: Prompt | str, **settings: Any) -> Generation: ...
    @overload
    def generate(self, prompts: Sequence[Prompt | str | Sequence[int]], **settings: Any) -> list[Generation]: ...

    def generate(self, prompts: Any, **settings: Any) -> Any:
        """Write after a prompt, or after each of a list of prompts in one left-padded batch.

        Settings are the sampler's: max_new_tokens, steps, temperature, seed and its own. A prompt is a `Prompt`, a
        question, or token ids in a list of prompts.
        """
        single = isinstance(prompts, Prompt | str)
        chosen = self.settings(**settings)
        batch = self._batch(self._prompts([prompts] if single else prompts))
        made = self.finish(batch, chosen, self.steps(batch, chosen))
        return made[0] if single else made

    def finish(self, batch: PromptBatch, settings: Settings, steps: Iterable[Step]) -> list[Generation]:
        """What a batch comes to once all its steps have run."""
        P = batch.ids_BP.shape[1]
        count = 0
        final = batch.ids_BP
        kept = torch.full((len(batch.prompts), settings.max_new_tokens), torch.nan)
        for step in steps:
            final, count = step.after_BT, count + 1
            committed, confidence = step.committed_BT[:, P:].cpu(), step.confidence_BT[:, P:].float().cpu()
            kept[:, : committed.shape[1]] = torch.where(committed, confidence, kept[:, : committed.shape[1]])
        return [self._generation(final[row, P:].tolist(), kept[row], count) for row in range(len(batch.prompts))]

    def _generation(self, ids: list[int], confidence: torch.Tensor, steps: int) -> Generation:
        end = next((i for i, token in enumerate(ids) if token in self.end_ids), None)
        kept = ids if end is None else ids[:end]
        used = confidence[: len(ids) if end is None else end + 1]
        if self.family.kind == "arm":
            steps = len(ids) if end is None else end + 1
        mean = float(used.nanmean()) if len(used) else float("nan")
        return Generation(self.decode(kept), kept, steps, mean, end is not None)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out; the ids themselves if there is no tokenizer."""
        if self.tokenizer is None:
            return " ".join(map(str, ids))
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def token_strings(self, ids: Sequence[int]) -> dict[str, str]:
        """Token strings by the text of their ids; the id in brackets if there is no tokenizer."""
        if self.tokenizer is None:
            return {str(i): f"<{i}>" for i in ids}
        pieces = self.tokenizer.convert_ids_to_tokens(list(ids))
        return {str(i): str(piece) for i, piece in zip(ids, pieces, strict=True)}

    # --- looking ------------------------------------------------------------------------------------------------------

    def trace(
        self,
        prompt: Prompt | str | Sequence[int],
        passages: Sequence[str | Passage] = (),
        *,
        gold: int | Sequence[int] | None = None,
        answers: Sequence[str] = (),
        sample_id: str = "",
        **options: Any,
    ) -> Trace:
        """Generate and record: one forward pass per step, all layers and heads unless told otherwise.

        `prompt` is a question (with `passages`, `gold` and `answers`), a `Prompt`, or token ids. Options are those of
        `traces` and of the sampler.
        """
        if isinstance(prompt, str):
            prompt = self.prompt(prompt, passages, gold=gold, answers=answers)
        elif passages or gold is not None:
            raise FloatLensError("passages and gold go with a question as text; a Prompt brings its own")
        elif not isinstance(prompt, Prompt):
            prompt = Prompt.from_ids(prompt)
        return self.traces([prompt], sample_ids=[sample_id], **options)[0]

    def traces(self, prompts: Sequence[Prompt | str | Sequence[int]], **options: Any) -> list[Trace]:
        """Trace a batch of prompts together; each trace equals the one that its prompt gives alone.

        Options are those of `watch`.
        """
        watch = self.watch(prompts, **options)
        for _ in watch:
            pass
        return watch.traces()

    def watch(
        self,
        prompts: Sequence[Prompt | str | Sequence[int]],
        *,
        sample_ids: Sequence[str] | None = None,
        **options: Any,
    ) -> Watch:
        """Trace a batch of prompts together, step by step: iterate for each step and what was seen, then `.traces()`.

        A run may be given up at any step; between two steps nothing of it is left in the model.

        Options are the sampler's settings and those of `Record`:

        record: names of statistics; the default is all that need no matrix.
        layers, heads, record_steps: what to keep; None keeps all.
        matrices: any of "attention", "attention_mean", "queries", "keys", for `matrix_layers` (default: `layers`).
        show: statistics or matrices to be seen at each step without being kept in the trace.
        implementation: "stream" (tiles, the default) or "exact" (whole matrices, the oracle).
        """
        record, settings = Record.apart(options)
        chosen = self.settings(**settings)
        record.check(self.shape, chosen.step_count)
        batch = self._batch(self._prompts(prompts))
        recorder = Recorder(
            batch,
            record.session(batch.layout(chosen.max_new_tokens, self.family.shifted), len(batch.prompts)),
            new_tokens=chosen.max_new_tokens,
            steps=sorted(range(chosen.step_count) if record.record_steps is None else record.record_steps),
            heads=None if record.heads is None else sorted(record.heads),
            shifted=self.family.shifted,
            special_ids=self.special_ids,
            passing=record.passing,
        )
        ids = sample_ids or [""] * len(batch.prompts)
        specs = [str(one) for one in interventions.in_force(self)]

        def made(recorder: Recorder) -> list[Trace]:
            return labelled(self, recorder, batch, chosen, sample_ids=ids, interventions=specs)

        alone = self.family.attention == "bidirectional" and not self.family.cached
        return Watch(self.model, self.steps(batch, chosen), recorder, made, alone)

    def check_record(self, settings: Settings, **options: Any) -> None:
        """Refuse to record what does not exist; no weight is needed for that. Options are those of `Record`."""
        Record(**options).check(self.shape, settings.step_count)
