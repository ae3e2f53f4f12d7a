"""Options that several commands have in common: one by one, and in groups (see grouped.py) that belong together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from floatlens.evaluation.evaluate import Asking
    from floatlens.runs.engines.engine import Engine
    from floatlens.runs.loader import Loader

Model = Annotated[str, typer.Argument(help="A folder, a hub id, a GGUF file or a bundled name.")]
Models = Annotated[list[str], typer.Argument(help="Models: folders, hub ids or bundled names.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]
OneData = Annotated[str | None, typer.Option(help="A file, a hub data set, world or world:NAME.")]
Data = Annotated[list[str], typer.Option(help="A file, a hub data set, world or world:NAME; may repeat.")]
Split = Annotated[str | None, typer.Option(help="train, validation or test.")]
Limit = Annotated[int | None, typer.Option(help="So many questions: the first, or with --seed a fair draw.")]
LimitEach = Annotated[int | None, typer.Option(help="At most so many questions a data set, in every part.")]
Seed = Annotated[int | None, typer.Option(help="Seed of every draw and of the sampler.")]
Passages = Annotated[int | None, typer.Option(help="Gold among so many passages.")]
MaxPassages = Annotated[int | None, typer.Option(min=0, help="At most the first so many of the data's passages.")]
Retriever = Annotated[str | None, typer.Option(help="bm25: retrieve passages from --corpus.")]
Corpus = Annotated[str | None, typer.Option(help="Passages to retrieve from: JSONL, CSV or parquet.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, …")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
TraceDtype = Annotated[str, typer.Option(help="float32 or float16 on disk.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@dataclass(frozen=True)
class Sampling:
    """How answers are written."""

    batch_size: Annotated[int, typer.Option(min=1, help="Questions decoded together.")] = 32
    max_new_tokens: Annotated[int, typer.Option(help="Tokens an answer may have.")] = 32
    steps: Annotated[int | None, typer.Option(help="Denoising steps of a diffusion model.")] = None
    block_length: Annotated[int | None, typer.Option(help="Block length of LLaDA's sampler.")] = None
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0

    def settings(self, seed: int) -> dict[str, Any]:
        """What the sampler is told."""
        return {name: value for name, value in vars(self).items() if name != "batch_size"} | {"seed": seed}


@dataclass(frozen=True)
class Records:
    """How the records of a data file are read, and put into words."""

    template: Annotated[Path | None, typer.Option(help="A text file with the slots {passages} and {question}.")] = None
    columns: Annotated[str | None, typer.Option(help="Columns by role, such as question=ask,answers=target.")] = None
    layout: Annotated[str | None, typer.Option(help="kilt, middle, hotpot, keyvalue or columns; else found out.")] = (
        None
    )
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad line of the data.")] = False

    def reading(self) -> dict[str, Any]:
        """What a Plan wants to know of them."""
        from floatlens.data.readers.columns import parse_names

        names = parse_names(self.columns) if self.columns else None
        return {"layout": self.layout, "names": names, "strict": self.strict}


@dataclass(frozen=True)
class Running:
    """Where the work is done, and how often."""

    device: Device = None
    dtype: Dtype = "auto"
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Open weights in .bin files if there are no others.")
    ] = False
    engine: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local"
    workers: Annotated[int | None, typer.Option(help="Processes, one model each; 1 unless told otherwise.")] = None
    address: Annotated[str | None, typer.Option(help="Ray cluster: auto, host:port or ray://….")] = None
    gpus_per_worker: Annotated[float | None, typer.Option(help="GPUs of each worker.")] = None
    resume: Resume = False
    retry_errors: Annotated[bool, typer.Option("--retry-errors", help="With --resume: try again what failed.")] = False

    def chosen_engine(self) -> Engine:
        """The engine; one that cannot work is refused here."""
        from floatlens.runs.engines import registry

        return registry.make_engine(
            self.engine, workers=self.workers, address=self.address, gpus_per_worker=self.gpus_per_worker
        )

    def loader(self, revision: str | None = None) -> Loader:
        from floatlens.runs.loader import Loader

        return Loader(self.device, self.dtype, self.allow_pickle, revision)


def asking(sampling: Sampling, records: Records, seed: int | None, order: str = "last") -> Asking:
    """How questions are put, from the options."""
    from floatlens.data.template import DEFAULT, read
    from floatlens.evaluation.evaluate import Asking

    return Asking(
        max_new_tokens=sampling.max_new_tokens,
        steps=sampling.steps,
        batch_size=sampling.batch_size,
        seed=seed or 0,
        order=order,
        template=read(records.template) if records.template else DEFAULT,
        sampler={"block_length": sampling.block_length, "temperature": sampling.temperature},
    )
