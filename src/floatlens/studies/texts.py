"""Texts: prose that a model reads from left to right, as it is and with a token type taken out and put back.

The part of a study behind the finding `sink`. Some texts find the candidate token, the others are read under every
condition. Each result is a few numbers per layer; no trace is kept. The results are a separate run inside the model's run.
The text in which the token matters most is traced for the first films, and `make_switch` traces one for the explorer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from floatlens.data.prompt import Prompt
from floatlens.data.read import label, read
from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError
from floatlens.evaluation.answers import AnswerRecord
from floatlens.evaluation.loop import Case, Checksums, Experiment, ModelWorker, run_experiments
from floatlens.findings import sink
from floatlens.findings.sink import AS_IS, BACK, FIND, OUT, Text, conditions, find_candidate, measure_text
from floatlens.findings.window import LENGTH, reason_against
from floatlens.store.engine import as_one
from floatlens.store.runs import SWITCH, TEXTS

if TYPE_CHECKING:
    from floatlens.lens import Lens
    from floatlens.store.engine import ProgressCallback
    from floatlens.store.folder import RunFolder
    from floatlens.studies.parts import ModelStudy
    from floatlens.trace.trace import Trace

MARGIN = 400  # tokens of a text, so that enough are left when some are deleted
SHOWN_PROMPT, SHOWN_WRITTEN = 56, 24  # tokens of the text that is filmed, and of those the ones that are written
SEARCHED_FOR_FILM = 5  # texts in which the token of the explorer's first film is searched
SEARCHED = 0.4  # share of the texts in which the candidate is searched; the others are read under every condition


@dataclass(frozen=True)
class TextExperiment(Experiment):
    """Texts for one model under one condition; the samples are `Text`s by id. The numbers are those of `measure_text`."""

    def cases(self, lens: Lens, sample: Any) -> list[Case]:
        id_, text = sample
        names = {"model": self.model, "data": self.data, "condition": self.condition, "kind": lens.family.kind}
        prompt, numbers = Prompt.from_ids(text.ids), {"inserted": text.inserted}
        return [Case(AnswerRecord.before(Sample(id_, "", []), prompt, None, **names, numbers=numbers), prompt)]

    def decode(self, worker: ModelWorker, cases: list[Case]) -> list[dict[str, Any]]:
        lens = worker.lens(self.model)
        texts = [Text(self.condition, prompt.ids, each.numbers["inserted"]) for each, prompt in cases if prompt]
        return [measure_text(lens, text) for text in texts]

    def finish(self, lens: Lens, record: Any, made: Any, folder: RunFolder | None) -> tuple[AnswerRecord, Checksums]:
        return replace(record, numbers={name: made[name] for name in made if name != "condition"}), {}


def run_texts(shared: ModelStudy) -> None:
    """Find the model's candidate token on some texts, and read the others with and without it."""
    plan, lens, model = shared.plan, shared.lens, shared.model
    if reason := reason_against(lens):
        shared.notes.append(f"texts of {model} were left out: {reason}")
        return
    source = plan.scope.texts
    texts = token_texts(lens.tokenizer, read_texts(source, plan.sizes["texts"]))
    searched, tested = split_texts(texts)
    with shared.folder_inside(TEXTS, texts=source) as folder:

        def read_under(by_condition: Mapping[str, Mapping[str, Text]], why: str) -> list[AnswerRecord]:
            jobs = []
            for condition, several in by_condition.items():
                samples: list[Any] = list(several.items())
                jobs.append(TextExperiment(model, label(source), condition, samples, batch_size=1))
            watch = as_one(shared.watch, f"{model}, texts {why}", sum(map(len, by_condition.values())))
            return run_experiments(jobs, shared.worker, folder, engine=shared.engine, watch=watch)[0]

        found = read_under({FIND: {id_: Text(FIND, ids[:LENGTH]) for id_, ids in searched.items()}}, "to find the sink")
        sinks = [record.numbers["sink_id"] for record in found if not record.error]
        if not sinks:
            raise FloatLensError(f"no text could be read; the first failed because: {found[0].error}")
        candidate = find_candidate(sinks)
        removed = sink.same_type(lens.tokenizer, candidate)
        counts = Counter(i for ids in texts.values() for i in ids)
        controls = sink.choose_controls(lens.tokenizer, counts, candidate, removed)
        by_condition: dict[str, dict[str, Text]] = {}
        for id_, ids in tested.items():
            for text in conditions(lens.tokenizer, ids, candidate, controls, removed):
                by_condition.setdefault(text.condition, {})[id_] = text
        # a text that has no such token is the same without it, and is read once
        same = {id_ for id_, text in by_condition[OUT].items() if text.ids == by_condition[AS_IS][id_].ids}
        without = {id_: text for id_, text in by_condition[OUT].items() if id_ not in same}
        read_once = read_under(by_condition | {OUT: without}, "with and without its token")
        copies = [replace(r, condition=OUT) for r in read_once if r.condition == AS_IS and r.id in same]
        records = found + read_once + copies
        names = ("id", "model", "kind", "data", "condition", "error")
        rows = [{name: getattr(record, name) for name in names} | record.numbers for record in records]
        folder.write_table(TEXTS, pd.DataFrame(rows))
        folder.finish()
    if lens.family.kind == "mdm" and sinks.count(candidate) >= sink.FEWEST * len(sinks):
        floating = {(r.condition, r.id): r.numbers.get("floating") or 0.0 for r in records}
        most = max(tested, key=lambda id_: floating.get((OUT, id_), 0.0) - floating.get((BACK, id_), 0.0))
        record_switch(shared, by_condition[OUT][most], by_condition[BACK][most], sink.spell(lens.tokenizer, candidate))


def record_switch(shared: ModelStudy, without: Text, back: Text, token: str) -> None:
    """Trace the text in which floating differs most, without the token that becomes the sink and with one put back.

    These are the first two films of the report.
    """
    model = shared.model
    watch = as_one(shared.watch, f"{model}, the same text without and with {token!r}", 2)
    with shared.folder_inside(SWITCH) as folder:
        there = {result.key: result.value for result in folder.results()}
        for name, text in {"without": without, "with": back}.items():
            value = {"model": model, "id": name, "token": token, "ids": text.ids[:SHOWN_PROMPT]}
            if there.get((model, name)) != value:
                trace = trace_switch(shared.worker.lens(model), text, name, token)
                folder.put((model, name), value, folder.save_trace(name, trace))
            if watch is not None:
                watch(name, 1)()
        folder.finish()


def make_switch(lens: Lens, watch: ProgressCallback) -> list[Trace]:
    """Trace the first text of `prose` without the token that becomes the sink, and with one put back.

    The next texts find that token.
    """
    shown, *searched = token_texts(lens.tokenizer, read_texts("prose", 1 + SEARCHED_FOR_FILM)).values()
    advance = watch(f"{lens.name}, one text without and with the token that becomes the sink", len(searched) + 2)
    sinks, traces = [], []
    for ids in searched:
        sinks.append(measure_text(lens, Text(FIND, ids[:LENGTH]))["sink_id"])
        advance()
    candidate = find_candidate(sinks)
    if sinks.count(candidate) < sink.FEWEST * len(sinks):
        raise FloatLensError(f"no token type is the sink of {lens.name}")
    removed, token = sink.same_type(lens.tokenizer, candidate), sink.spell(lens.tokenizer, candidate)
    texts = {text.condition: text for text in conditions(lens.tokenizer, shown, candidate, (), removed)}
    for name, condition in {"without": OUT, "with": BACK}.items():
        traces.append(trace_switch(lens, texts[condition], name, token))
        advance()
    return traces


def trace_switch(lens: Lens, text: Text, name: str, token: str) -> Trace:
    """Trace the beginning of a text as the model writes its last tokens."""
    ids = text.ids[: SHOWN_PROMPT + SHOWN_WRITTEN + int(text.inserted >= 0)]
    start = replace(Prompt.from_ids(ids[:-SHOWN_WRITTEN]), question=f"One text, without and with {token!r}")
    return lens.replay(start, ids[-SHOWN_WRITTEN:], sample_id=name, record=("received",))


def split_texts(texts: Mapping[str, list[int]]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return the texts in which the candidate is searched, and those that are read under every condition."""
    count = max(1, round(SEARCHED * len(texts)))
    return dict(list(texts.items())[:count]), dict(list(texts.items())[count:])


def read_texts(source: str, limit: int | None) -> dict[str, str]:
    """Whole texts by id: samples to continue with their continuation, without a template."""
    found = {}
    for sample in read(source, limit=limit):
        if not sample.continuation:
            raise FloatLensError(
                f"{source} has questions, not texts; use prose, or a file with the columns continue and answers"
            )
        found[sample.id] = sample.question + (sample.answers[0] if sample.answers else "")
    if len(found) < 2:
        raise FloatLensError(
            f"{source} has {len(found)} text; at least 2 are needed, one of them to find the sink's token"
        )
    return found


def token_texts(tokenizer: Any, texts: Mapping[str, str], length: int = MARGIN) -> dict[str, list[int]]:
    """The first tokens of each text; a short one is continued by the texts after it, the last one by the first."""
    ids, every = list(texts), list(texts.values())
    found = {}
    for place, id_ in enumerate(ids):
        text, following = every[place], iter(every[place + 1 :] + every[:place])
        tokens: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        while len(tokens) < length and (more := next(following, None)) is not None:
            text = f"{text}\n{more}"
            tokens = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if len(tokens) < length:
            raise FloatLensError(f"the texts have {len(tokens)} tokens together; at least {length} are needed")
        found[id_] = tokens[:length]
    return found
