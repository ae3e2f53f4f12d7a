"""The parts of the results, each a list of command lines of floatlens or of a script here.

Every command writes one run folder. It is resumed if the folder exists, and skipped if it is finished.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.results.models import ANSWERING, REAL, SMALL, available
from recipes.results.sizes import ResultSizes

# Test questions that were not looked at while claims and effects were written; the demo uses those before.
OFFSET = 300
WORLD = ("world:fresh", "world:hops")
LONG = "world:long"
ATTENTION = (
    "--full",
    "--skip",
    "knowledge,stress,causes",
)  # with --full, a study takes as many questions as --limit says
# What the review of the paper asks for: anchors masked, pinned over steps and over layers, moved; the best heads removed.
INTERVENTIONS = (
    "mask-anchors(rule=sigma(3))",
    "pin-anchors(rule=sigma(3))",
    "pin-anchors(rule=sigma(3), across=layers)",
    "move-anchors(by=8, rule=sigma(3))",
    "ablate-heads(heads=top(4))",
)
NQ, NQ_CORPUS, HOTPOT = (
    "nq-open-oracle.first200.jsonl.gz",
    "nq-open-oracle.train2055.jsonl.gz",
    "hotpotqa-dev.first200.jsonl.gz",
)
# Stress tests of the real models, three levels each: name, data (None: HotpotQA, whose evidence is in two passages), levels.
REAL_STRESSES = (
    ("noise", "atlas", "0,2,4"),
    ("position", "atlas", "0,2,4"),
    ("query", "atlas", ""),
    ("masks", "atlas", "4,8,16"),
    ("layout", None, "1"),
)
STRESSES = {"noise": WORLD[0], "position": WORLD[0], "layout": WORLD[1], "query": WORLD[0], "masks": WORLD[0]}


@dataclass(frozen=True)
class Job:
    """One run: its folder, and the command that makes it. `title` names it in the results.

    Jobs whose results can be put side by side have one model each, so that each takes an hour or less; a study whose
    claims compare models has all of them. For the plan of hours: answers per model, tokens of a prompt, new tokens, and
    whether traces are recorded.
    """

    name: str
    words: tuple[str, ...]
    title: str
    models: tuple[str, ...] = ()
    answers: int = 0
    prompt: int = 150
    new: int = 16
    traced: bool = False


@dataclass(frozen=True)
class Place:
    """Where results are made.

    Parameters
    ----------
    runs: folder of the runs, which is not part of the repository.
    kept: folder of what is kept of finished runs, in the repository.
    data: folder of the real questions, which are not ours to copy.
    adapters: folder of the checkpoints of the adaptation.
    """

    runs: Path
    kept: Path
    data: Path | None = None
    adapters: Path | None = None


@dataclass(frozen=True)
class ResultPart:
    """A part: what it needs, and its jobs. `missing` says why something of it cannot be run."""

    name: str
    title: str
    jobs: Callable[[ResultSizes, Place], list[Job]]
    missing: Callable[[Place], dict[str, str]]


# A batch of a masked diffusion model runs until its last answer is complete, with padding; on a CPU this is slower.
ONE_BY_ONE = {"smollm2-mdm": ("--batch-size", "1")}


def per_model(
    name: str,
    models: Sequence[str],
    before: tuple[str, ...],
    after: tuple[str, ...],
    title: str,
    more: Mapping[str, tuple[str, ...]] | None = None,
    **cost: Any,
) -> list[Job]:
    """Return one job per model: the command `before`, the model, `after`, and what `more` has for this model."""
    words = {model: (*before, model, *after, *(more or {}).get(model, ())) for model in models}
    return [Job(f"{name}-{model}", words[model], f"{title}, {model}", (model,), **cost) for model in models]


def under(specs: Sequence[str]) -> tuple[str, ...]:
    """Return the options that name interventions."""
    return tuple(word for spec in specs for word in ("--intervention", spec))


def small_jobs(sizes: ResultSizes, place: Place) -> list[Job]:
    """All findings on the small models: attention, answers, stress tests, interventions, a changing collection."""
    models = tuple(available(SMALL)[0])
    attending = tuple(model for model in models if model != "tiny-ssm")
    asked = tuple(word for data in WORLD for word in ("--data", data))
    common = ("--passages", "5", "--offset", str(OFFSET), "--jobs", "1")
    short = ("--max-new-tokens", "16")
    return [
        Job(
            "small-attention",
            ("study", *models, *asked, "--data", LONG, *ATTENTION, "--limit", str(sizes.traces), *common),
            "Attention of the small models",
            models,
            12 * sizes.traces,
            new=32,
            traced=True,
        ),
        Job(
            "small-knowledge",
            (
                "study",
                *models,
                *asked,
                "--full",
                "--only",
                "knowledge",
                "--limit",
                str(sizes.questions),
                *short,
                *common,
            ),
            "Answers of the small models",
            models,
            4 * sizes.questions,
        ),
        *per_model(
            "small-robustness",
            attending,
            ("stress", "noise"),
            ("--data", WORLD[0], "--levels", "0,2,8", "--limit", str(sizes.robustness), *short, *under(INTERVENTIONS)),
            "Robustness under interventions",
            answers=3 * 11 * sizes.robustness,
        ),
        *per_model(
            "small-deployment",
            attending,
            ("stress", "collection"),
            ("--data", WORLD[0], "--limit", str(sizes.deployed), *short, "--trace"),
            "A changing collection",
            answers=6 * sizes.deployed,
            traced=True,
        ),
        Job(
            "small-causes",
            (
                "study",
                *attending,
                "--data",
                WORLD[0],
                "--only",
                "causes",
                "--limit",
                str(sizes.causes),
                *short,
                *common,
            ),
            "Interventions on the small models",
            attending,
            3 * 27 * sizes.causes,
        ),
        Job(
            "small-links",
            (
                *("study", "tiny-arm", *asked, "--full", "--only", "links,stress"),
                *("--limit", str(sizes.links), *short, *common),
            ),
            "The sink and the loss in the middle",
            ("tiny-arm",),
            40 * sizes.links,
            traced=True,
        ),
        *(
            Job(
                f"small-stress-{test}",
                ("stress", test, *models, "--data", data, "--limit", str(sizes.questions), "--passages", "5", *short),
                f"Stress test of the small models: {test}",
                models,
                4 * sizes.questions,
            )
            for test, data in STRESSES.items()
        ),
    ]


def texts_jobs(sizes: ResultSizes, place: Place) -> list[Job]:
    """Attention beyond question answering, on texts of equal length."""
    small = [model for model in available(SMALL)[0] if model != "tiny-ssm"]
    cost: dict[str, Any] = {"new": 32, "traced": True}
    title = "Beyond question answering"
    limit = ("--limit", str(sizes.texts))
    jobs = per_model("texts-small", small, ("texts",), limit, title, answers=4 * sizes.texts, **cost)
    if place.data is not None:
        plain = ("--limit", str(sizes.real_texts), "--plain", str(place.data / "wikitext-2.valid-test.txt.gz"))
        cost = {"answers": 4 * sizes.real_texts, "prompt": 200, **cost}
        jobs += per_model("texts-real", available(REAL)[0], ("texts",), plain, title, **cost)
    return jobs


def real_jobs(sizes: ResultSizes, place: Place) -> list[Job]:
    """All findings on SmolLM2 and its adapters: attention on the atlas, answers on the atlas and on real questions."""
    models = tuple(available(REAL)[0])
    if not models:
        return []
    count = ("--limit", str(sizes.real))
    atlas = ("--data", "atlas", "--passages", "3")
    brief = ("--max-new-tokens", "8", "--dtype", "bfloat16")
    jobs = [
        Job(
            "real-attention",
            (
                *("study", *models, *atlas, *ATTENTION, *count, "--max-new-tokens", "16", "--jobs", "1"),
                *("--batch-size", "1", "--dtype", "bfloat16"),  # padding makes batches slower on a CPU
            ),
            "Attention of SmolLM2",
            models,
            3 * sizes.real,
            200,
            16,
            True,
        )
    ]
    answers = ("--both", "--max-new-tokens", "16", "--dtype", "bfloat16", "--limit")
    sets: dict[str, tuple[tuple[str, ...], int]] = {
        "atlas": (("--data", "atlas", "--passages", "5"), sizes.real_answers)
    }
    if place.data is not None:
        sets["nq"] = (("--data", str(place.data / NQ)), sizes.real_nq)
    for name, (words, limit) in sets.items():
        jobs += per_model(
            f"real-answers-{name}",
            available(ANSWERING)[0],
            ("eval",),
            (*words, *answers, str(limit)),
            "Answers",
            more=ONE_BY_ONE if name == "nq" else None,
            answers=2 * limit,
            prompt=200,
        )
    one = ("--batch-size", "1")  # as above
    hotpot = str(place.data / HOTPOT) if place.data is not None else ""
    for test, data, levels in REAL_STRESSES:
        if data is None and place.data is None:
            continue
        words = ("--data", data or hotpot, "--passages", "5", *(("--levels", levels) if levels else ()), *count)
        jobs.append(
            Job(
                f"real-{test}",
                ("stress", test, *models, *words, *brief, *one),
                f"Stress test of SmolLM2: {test}",
                models,
                3 * sizes.real,
                300,
                8,
            )
        )
    words = (*atlas, "--controls", "0", "--limit", str(sizes.real_causes), *brief, *one, *under(INTERVENTIONS))
    causes = ("ablate", *models, *words)
    return [*jobs, Job("real-causes", causes, "Interventions on SmolLM2", models, 33 * sizes.real_causes, 200, 8)]


def deployment_jobs(sizes: ResultSizes, place: Place) -> list[Job]:
    """Real questions over a collection that changes."""
    models, _ = available(REAL)
    if place.data is None or not models:
        return []
    corpus = place.runs / "nq-corpus.jsonl"
    write_corpus(place.data / NQ_CORPUS, corpus)
    common = ("--passages", "3", "--max-new-tokens", "16", "--dtype", "bfloat16")
    common += ("--limit", str(sizes.real_deployed), "--trace")
    cost: dict[str, Any] = {"answers": 6 * sizes.real_deployed, "prompt": 500, "traced": True}
    nq = ("--data", str(place.data / NQ), "--corpus", str(corpus), *common)
    hotpot = ("--data", str(place.data / HOTPOT), *common)
    return [
        *per_model(
            "deployment-nq",
            models,
            ("stress", "collection"),
            nq,
            "Natural Questions, a changing collection",
            ONE_BY_ONE,
            **cost,
        ),
        *per_model(
            "deployment-hotpot",
            models,
            ("stress", "collection"),
            hotpot,
            "HotpotQA, a changing collection",
            ONE_BY_ONE,
            **cost,
        ),
    ]


def film_jobs(sizes: ResultSizes, place: Place) -> list[Job]:
    """Attention while SmolLM2 is turned into a diffusion model, over the checkpoints of that training."""
    if place.adapters is None or not available(("smollm2",))[0]:
        return []
    return [
        Job(
            "film",
            ("film", str(place.adapters), "--limit", str(sizes.film)),
            "SmolLM2 becomes a diffusion model",
            ("smollm2",),
            6 * sizes.film,
            200,
            traced=True,
        ),
    ]


def write_corpus(source: Path, target: Path) -> None:
    """Write the passages of a lost-in-the-middle file as a corpus, beside the runs and never into the repository."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    lines = {}
    with gzip.open(source, "rt", encoding="utf-8") as file:
        for record in map(json.loads, file):
            for passage in record["ctxs"]:
                lines[passage["text"]] = json.dumps({"title": passage["title"], "text": passage["text"]})
    target.write_text("\n".join(lines.values()) + "\n", encoding="utf-8")


def lacking(*names: str) -> Callable[[Place], dict[str, str]]:
    """Return the function that says which models, data or adapters are missing."""

    def missing(place: Place) -> dict[str, str]:
        found = available(tuple(name for name in names if name not in ("data", "adapters")))[1]
        if "data" in names and place.data is None:
            found["data"] = "name the folder of the real questions with --data"
        if "adapters" in names and place.adapters is None:
            found["adapters"] = "name the folder of the checkpoints with --adapters"
        return found

    return missing


PARTS = {
    part.name: part
    for part in (
        ResultPart("small", "Small models", small_jobs, lacking(*SMALL)),
        ResultPart("texts", "Beyond question answering", texts_jobs, lacking(*SMALL, *REAL, "data")),
        ResultPart("real", "SmolLM2 and its adapters", real_jobs, lacking(*REAL, "data")),
        ResultPart("deployment", "Deployment", deployment_jobs, lacking(*REAL, "data")),
        ResultPart("film", "Adaptation as a film", film_jobs, lacking("smollm2", "adapters")),
    )
}
