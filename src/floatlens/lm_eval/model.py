"""The model `floatlens` of EleutherAI's lm-evaluation-harness.

    lm_eval --model floatlens --model_args pretrained=GSAI-ML/LLaDA-8B-Instruct,mc_num=128 --tasks arc_easy

The harness finds the class by the entry point `lm_eval.models`. Releases up to 0.4.13 do not read entry points:
`python -m floatlens.lm_eval` takes the arguments of `lm_eval` and registers the class first.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any

import lm_eval.models  # noqa: F401  (the harness registers its own models only while its registry is empty)
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from floatlens.data.chat_template import render
from floatlens.data.prompt import Prompt
from floatlens.errors import FloatLensError
from floatlens.evaluation.likelihood import loglikelihood
from floatlens.lens import Generation, load
from floatlens.options import Load, check_detail
from floatlens.store import manifest
from floatlens.store.folder import RunFolder
from floatlens.trace.summarise import Detail
from floatlens.trace.trace import Trace

NUCLEUS = ("top_p", "top_k", "min_p")  # not used in greedy decoding
DEFAULT_LENGTH = 2048  # context length of a model whose config does not define it

log = logging.getLogger(__name__)


@register_model("floatlens")
class FloatLensLM(TemplateLM):
    """Any model that FloatLens loads, for the harness; docs/howto/lm-eval.md describes the arguments.

    `options` are those of `floatlens.load`, such as dtype, and settings of the sampler, such as steps or cfg_scale.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        batch_size: int | str | None = 1,
        max_batch_size: int | None = None,
        device: str | None = None,
        mc_num: int = 128,
        is_check_greedy: bool = True,
        seed: int = 0,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        trace_to: str | None = None,
        detail: Detail = "full",
        **options: Any,
    ) -> None:
        super().__init__()
        loading = {field.name: options.pop(field.name) for field in fields(Load) if field.name in options}
        loading["device_map"] = loading.get("device_map") or available(device)
        try:
            self.batch_size = int(batch_size or 1)
        except ValueError:
            raise FloatLensError(f"batch_size {batch_size!r} is not a number; use one such as 8") from None
        self.lens = load(str(pretrained), **loading)
        if self.lens.tokenizer is None:
            raise FloatLensError(f"{pretrained} has no tokenizer, so it cannot read the harness's texts")
        self.tokenizer = self.lens.tokenizer
        self.mc_num, self.is_check_greedy, self.seed = mc_num, is_check_greedy, seed
        self.max_length = max_length or self.lens.context_length or DEFAULT_LENGTH
        self.max_gen_toks = max_gen_toks
        self.settings = options
        self.lens.settings(max_new_tokens=max_gen_toks, sampler=options)  # raises an error for an unknown setting
        check_detail(detail)
        self.detail, self.folder = detail, None  # the folder stays locked until the process ends
        if trace_to:
            asked = {"model": pretrained, "seed": seed, "mc_num": mc_num, "max_gen_toks": max_gen_toks, **options}
            about = manifest.describe("lm-eval", asked, checkpoints=[self.lens.checkpoint])
            self.folder = RunFolder.create(trace_to, about)

    @property
    def eot_token_id(self) -> int:
        if not self.lens.end_ids:
            raise FloatLensError(f"{self.lens.name} has no end token; config.json should have the field 'eos_token_id'")
        return self.lens.end_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context."""
        found = getattr(self.tokenizer, "bos_token_id", None)
        return self.eot_token_id if found is None else int(found)

    @property
    def tokenizer_name(self) -> str:
        return self.lens.name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        if add_special_tokens is None:  # a chat template may have already added the first token
            first = getattr(self.tokenizer, "bos_token", None)
            add_special_tokens = not (first and string.startswith(first))
        return [int(i) for i in self.tokenizer.encode(string, add_special_tokens=add_special_tokens)]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        ending = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
        try:
            return render(self.tokenizer, chat_history, **ending)
        except ValueError as error:
            raise FloatLensError(f"the chat template of {self.lens.name} cannot be rendered: {error}") from error

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Token ids of a context and its continuation; an empty context is replaced by the prefix token."""
        if context:
            return self._encode_pair(context, continuation)
        ids = self.tok_encode(continuation, add_special_tokens=False)
        return (ids[:1], ids[1:]) if ids[:1] == [self.prefix_token_id] else ([self.prefix_token_id], ids)

    def _fitted(self, context: list[int], new_tokens: int) -> list[int]:
        """The end of a context that leaves room for `new_tokens`."""
        room = self.max_length - new_tokens
        if room < 1:
            raise FloatLensError(
                f"{new_tokens} tokens after a prompt do not fit max_length {self.max_length}; use fewer, such as "
                f"--gen_kwargs max_gen_toks={self.max_length // 2}"
            )
        if len(context) > room:
            log.warning("a context of %d tokens loses its first %d", len(context), len(context) - room)
        return context[-room:]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        pairs = [self._pair(*request.args) for request in requests]
        named = [(sample_name(request, choice=True), *pair) for request, pair in zip(requests, pairs, strict=True)]
        self._replay(named)
        return self._loglikelihood_tokens(
            [(request.args, *pair) for request, pair in zip(requests, pairs, strict=True)], disable_tqdm=disable_tqdm
        )

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        totals = []
        for request in tqdm(requests, desc="floatlens: whole texts", disable=disable_tqdm):
            windows = [
                make_disjoint_window(window)
                for window in get_rolling_token_windows(
                    token_list=self.tok_encode(request.args[0]),
                    prefix_token=self.prefix_token_id,
                    max_seq_len=self.max_length - 1,  # the prefix token counts
                    context_len=1,
                )
            ]
            name = sample_name(request)
            self._replay([(f"{name}/{number}", *window) for number, window in enumerate(windows)])
            scores = self._loglikelihood_tokens([(None, *window) for window in windows], disable_tqdm=True)
            totals.append(sum(logprob for logprob, _ in scores))
        return totals

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """Scores of (texts, context, continuation), in their order; similar lengths run together."""
        order = sorted(range(len(requests)), key=lambda i: (len(requests[i][2]), len(requests[i][1])))
        found: dict[int, tuple[float, bool]] = {}
        with tqdm(total=len(requests), desc="floatlens: likelihoods", disable=disable_tqdm) as bar:
            for part in chunks(order, 4 * self.batch_size):
                scores = loglikelihood(
                    self.lens,
                    [(self._fitted(requests[i][1], len(requests[i][2])), requests[i][2]) for i in part],
                    samples=self.mc_num,
                    batch_size=self.batch_size,
                    seed=self.seed,
                    cfg_scale=self.settings.get("cfg_scale", 0.0),
                    greedy=self.is_check_greedy,
                )
                for i, (logprob, is_greedy) in zip(part, scores, strict=True):
                    found[i] = logprob, bool(is_greedy)
                    if requests[i][0] is not None:
                        self.cache_hook.add_partial("loglikelihood", requests[i][0], found[i])
                bar.update(len(part))
        return [found[i] for i in range(len(requests))]

    def _replay(self, named: Sequence[tuple[str, list[int], list[int]]]) -> None:
        """Keep traces of the answers that are scored: revealed from left to right, nothing is sampled."""
        for name, context, continuation in named if self.folder is not None else ():
            prompt = Prompt.from_ids(self._fitted(context, len(continuation)))
            self._save([name], [self.lens.replay(prompt, continuation, sample_id=name)])

    def _save(self, names: Sequence[str], traces: Sequence[Trace]) -> None:
        assert self.folder is not None
        for name, trace in zip(names, traces, strict=True):
            checksums = self.folder.save_trace(name, trace, detail=self.detail)
            self.folder.put((self.lens.name, name), {"error": None}, checksums)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        seen: Counter[int] = Counter()
        asked = []  # index, context, settings as text, repetition
        for index, request in enumerate(requests):
            repetition, seen[id(request)] = seen[id(request)], seen[id(request)] + 1
            context, kwargs = request.args
            asked.append((index, self.tok_encode(context), json.dumps(kwargs, sort_keys=True), repetition))
        asked.sort(key=lambda each: (each[2], each[3], len(each[1])))
        texts: dict[int, str] = {}
        with tqdm(total=len(requests), desc="floatlens: generations", disable=disable_tqdm) as bar:
            for (kwargs, repetition), group in groupby(asked, key=lambda each: (each[2], each[3])):
                until, settings = self._task_settings(json.loads(kwargs))
                settings["seed"] = self.seed + repetition
                for part in chunks(list(group), self.batch_size):
                    prompts = [self._fitted(context, settings["max_new_tokens"]) for _, context, _, _ in part]
                    names = [sample_name(requests[index], repetition) for index, *_ in part]
                    for (index, *_), made in zip(part, self._generate(names, prompts, settings), strict=True):
                        texts[index] = self._cut(made.ids, until)
                        self.cache_hook.add_partial("generate_until", requests[index].args, texts[index])
                    bar.update(len(part))
        return [texts[index] for index in range(len(requests))]

    def _generate(self, names: list[str], prompts: list[list[int]], settings: dict[str, Any]) -> list[Generation]:
        if self.folder is None:
            return self.lens.generate(prompts, sampler=settings)
        traces = self.lens.traces([Prompt.from_ids(ids) for ids in prompts], sample_ids=names, sampler=settings)
        self._save(names, traces)
        return [Generation.from_trace(self.lens, trace) for trace in traces]

    def _task_settings(self, kwargs: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
        """The texts at which a task stops, and the sampler's settings for it."""
        options = normalize_gen_kwargs(kwargs, self.max_gen_toks)
        given = {name: value for name, value in options.items() if name not in ("until", "max_gen_toks", "do_sample")}
        if not {"do_sample", "temperature"} & kwargs.keys():
            del given["temperature"]
        settings = {**self.settings, **given, "max_new_tokens": int(options["max_gen_toks"])}
        if not settings.get("temperature"):
            settings = {name: value for name, value in settings.items() if name not in NUCLEUS}
        return list(options["until"]), settings

    def _cut(self, ids: list[int], until: Sequence[str]) -> str:
        """The generated text up to the first stop. Special tokens may be stops, and are left out."""
        specials = {token: i for token, i in self.tokenizer.get_vocab().items() if i in self.lens.special_ids}
        ends = [ids.index(specials[stop]) for stop in until if specials.get(stop) in ids]
        text = str(self.tokenizer.decode(ids[: min(ends, default=len(ids))], skip_special_tokens=True))
        return text[: min((text.index(stop) for stop in until if stop and stop in text), default=len(text))]

    def get_model_info(self) -> dict[str, Any]:
        """The information about the model that the harness writes to its results."""
        lens = self.lens
        exact = lens.family.kind == "arm"
        return {
            "model_family": lens.family.name,
            "model_sampler": lens.sampler,
            "model_likelihood": "exact" if exact else f"lower bound, {self.mc_num} maskings",
            "model_seed": self.seed,
            "model_revision": lens.checkpoint.revision,
        }


def available(device: str | None) -> str | None:
    """The harness's device. Its default is the first GPU; a machine without one uses the CPU."""
    if device and str(device).startswith("cuda") and not torch.cuda.is_available():
        log.warning("%s is not available; running on the CPU", device)
        return None
    return device


def sample_name(request: Instance, repetition: int = 0, choice: bool = False) -> str:
    """Name a request after its task, its document, its answer choice and its repetition."""
    parts = [request.task_name or "task", str(request.doc_id if request.doc_id is not None else request.idx)]
    return "/".join([*parts, *([str(request.idx)] if choice else []), *([f"again{repetition}"] if repetition else [])])


def chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Yield pieces of at most `size` items."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
