"""The parts of the results, each a list of command lines of floatlens or of a script here.

Every command writes one run folder. It is resumed if the folder exists, and skipped if it is finished.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from recipes.results.models import REAL, SMALL, available
from recipes.results.sizes import ResultSizes

# Test questions that were not looked at while claims and effects were written; the demo uses those before.
OFFSET = 300
WORLD = ("world:fresh", "world:hops")
LONG = "world:long"
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
NQ_TEN = "CONSTRUCTED-from-oracle-10docs-random-distractors_gold_at_4.first200.jsonl.gz"


@dataclass(frozen=True)
class Job:
    """One run: its folder, and the command that makes it. `title` names it in the results.

    For the plan of hours: answers per model, tokens of a prompt, new tokens, and whether traces are recorded.
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
    """Where results are made: the folder of the runs, and that of the data that is not ours to copy."""

    runs: Path
    data: Path | None = None
    adapters: Path | None = None


@dataclass(frozen=True)
class ResultPart:
    """A part: what it needs, and its jobs. `missing` says why something of it cannot be run."""

    name: str
    title: str
    jobs: Callable[[ResultSizes, Place], list[Job]]
    missing: Callable[[Place], dict[str, str]]


def small_jobs(sizes: ResultSizes, place: Place) -> list[Job]:
    """All findings on the small models: one study of attention, and one of answers and interventions."""
    models, _ = available(SMALL)
    asked = [word for data in WORLD for word in ("--data", data)]
    attending = [model for model in models if model != "tiny-ssm"]
    common = ("--passages", "5", "--offset", str(OFFSET), "--jobs", "1")
    return [
        Job(
            "small-attention",
            (
                "study",
                *models,
                *asked,
                "--data",
                LONG,
                "--skip",
                "knowledge,stress,causes",
                "--limit",
                str(sizes.traces),
                *common,
            ),
            "Attention of the small models",
            tuple(models),
            8 * sizes.traces,
            150,
            32,
            True,
        ),
        Job(
            "small-answers",
            (
                "study",
                *models,
                *asked,
                "--only",
                "knowledge,stress",
                "--limit",
                str(sizes.questions),
                "--max-new-tokens",
                "16",
                *common,
            ),
            "Answers of the small models",
            tuple(models),
            30 * sizes.questions,
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
                "--max-new-tokens",
                "16",
                *common,
            ),
            "Interventions on the small models",
            tuple(attending),
            3 * 27 * sizes.causes,
        ),
        Job(
            "small-robustness",
            (
                "stress",
                "noise",
                *attending,
                "--data",
                WORLD[0],
                "--levels",
                "0,2,8",
                "--limit",
                str(sizes.robustness),
                "--max-new-tokens",
                "16",
                *tuple(word for spec in INTERVENTIONS for word in ("--intervention", spec)),
            ),
            "Robustness of the small models under interventions",
            tuple(attending),
            3 * 11 * sizes.robustness,
        ),
        Job(
            "small-deployment",
            (
                "deploy",
                *attending,
                "--data",
                WORLD[0],
                "--limit",
                str(sizes.deployed),
                "--max-new-tokens",
                "16",
                "--trace",
            ),
            "A changing collection, small models",
            tuple(attending),
            6 * sizes.deployed,
            150,
            16,
            True,
        ),
    ]


def texts_jobs(sizes: ResultSizes, place: Place) -> list[Job]:
    """Attention beyond question answering, on texts of equal length."""
    models = [model for model in available(SMALL)[0] if model != "tiny-ssm"]
    jobs = [
        Job(
            "texts-small",
            ("texts", *models, "--limit", str(sizes.texts)),
            "Beyond question answering, small models",
            tuple(models),
            4 * sizes.texts,
            150,
            32,
            True,
        )
    ]
    real = available(REAL)[0]
    if place.data is not None and real:
        words = (
            "texts",
            *real,
            "--limit",
            str(sizes.real),
            "--plain",
            str(place.data / "wikitext-2.valid-test.txt.gz"),
        )
        jobs.append(
            Job("texts-real", words, "Beyond question answering, SmolLM2", tuple(real), 4 * sizes.real, 200, 32, True)
        )
    return jobs


def real_jobs(sizes: ResultSizes, place: Place) -> list[Job]:
    """All findings on SmolLM2 and its adapters, on real questions."""
    models, _ = available(REAL)
    if place.data is None or not models:
        return []
    nq, count = str(place.data / NQ_TEN), str(sizes.real)
    short = ("--max-new-tokens", "16", "--limit", count)
    return [
        Job(
            "real-attention",
            ("study", *models, "--data", nq, "--passages", "3", "--skip", "knowledge,stress,causes", "--limit", count),
            "Attention of SmolLM2",
            tuple(models),
            3 * sizes.real,
            400,
            32,
            True,
        ),
        Job(
            "real-answers",
            ("eval", *models, "--data", nq, "--passages", "3", "--both", *short),
            "Answers of SmolLM2",
            tuple(models),
            2 * sizes.real,
            300,
        ),
        Job(
            "real-noise",
            ("stress", "noise", *models, "--data", nq, "--levels", "0,2,4", *short),
            "Noise, SmolLM2",
            tuple(models),
            3 * sizes.real,
            500,
        ),
        Job(
            "real-position",
            ("stress", "position", *models, "--data", nq, "--passages", "5", "--levels", "0,2,4", *short),
            "Position of the gold passage, SmolLM2",
            tuple(models),
            3 * sizes.real,
            800,
        ),
        Job(
            "real-causes",
            (
                "ablate",
                *models,
                "--data",
                nq,
                "--passages",
                "3",
                "--controls",
                "0",
                *short,
                *tuple(word for spec in INTERVENTIONS for word in ("--intervention", spec)),
            ),
            "Interventions on SmolLM2",
            tuple(models),
            3 * 11 * sizes.real,
            500,
        ),
    ]


def deployment_jobs(sizes: ResultSizes, place: Place) -> list[Job]:
    """Real questions over a collection that changes."""
    models, _ = available(REAL)
    if place.data is None or not models:
        return []
    corpus = place.runs / "nq-corpus.jsonl"
    write_corpus(place.data / NQ_CORPUS, corpus)
    common = ("--passages", "3", "--max-new-tokens", "16", "--limit", str(sizes.deployed), "--trace")
    return [
        Job(
            "deployment-nq",
            ("deploy", *models, "--data", str(place.data / NQ), "--corpus", str(corpus), *common),
            "Natural Questions over a changing collection",
            tuple(models),
            6 * sizes.deployed,
            500,
            16,
            True,
        ),
        Job(
            "deployment-hotpot",
            ("deploy", *models, "--data", str(place.data / HOTPOT), *common),
            "HotpotQA over a changing collection",
            tuple(models),
            6 * sizes.deployed,
            500,
            16,
            True,
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
            16,
            True,
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
