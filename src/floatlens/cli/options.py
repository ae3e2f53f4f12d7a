"""Options that several commands share, as single options and as groups.

A command takes a group as one parameter; `@grouped` makes its help list the options one by one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.evaluation.planning import Asking
    from floatlens.evaluation.sources import EvaluationPlan
    from floatlens.models.checkpoint import Checkpoint
    from floatlens.store.engines.engine import Engine
    from floatlens.store.loader import Loader

DATA = "a file, a Hub data set, world, world:NAME or atlas"


def check_models(models: Any) -> Any:
    """Raise an error for models that do not exist while the command line is parsed, before slow imports."""
    from floatlens.models.checkpoint import check_name

    for name in [models] if isinstance(models, str) else models:
        check_name(name)
    return models


def check_family(name: str | None) -> str | None:
    """Raise an error for a family that does not exist, before torch is imported."""
    from floatlens.models.registry import check_family_name

    check_family_name(name)
    return name


Model = Annotated[
    str,
    typer.Argument(help="Model: a folder, a Hub id, a GGUF file or a bundled name.", callback=check_models),
]
Models = Annotated[
    list[str],
    typer.Argument(help="Models: folders, Hub ids, GGUF files or bundled names.", callback=check_models),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub model.")]
Family = Annotated[
    str | None, typer.Option(help="Family of the model; detected from its config by default.", callback=check_family)
]
Sampler = Annotated[str | None, typer.Option(help="Sampler, where the family has several, such as llada2.1.")]
Adapter = Annotated[str | None, typer.Option(help="Folder of a LoRA adapter in peft's format, applied to the model.")]
Device = Annotated[str | None, typer.Option(help="Device: auto, cpu, cuda, …")]
Dtype = Annotated[str, typer.Option(help="Type of the weights: auto, float32, bfloat16 or float16.")]
AllowPickle = Annotated[
    bool, typer.Option("--allow-pickle", help="Allow pickled weights (.bin files) if there are no others.")
]
OneData = Annotated[str | None, typer.Option(help=f"Data set: {DATA}.")]
Data = Annotated[list[str], typer.Option(help=f"Data set: {DATA}; repeat for several.")]
Split = Annotated[str | None, typer.Option(help="Split of the data: train, validation or test.")]
Limit = Annotated[
    int | None, typer.Option(help="Maximum number of questions: the first ones, or with --seed a random draw.")
]
LimitEach = Annotated[int | None, typer.Option(help="Maximum number of questions per data set, in every part.")]
Seed = Annotated[int | None, typer.Option(help="Seed of every random draw and of the sampler.")]
Passages = Annotated[
    int | None, typer.Option(min=0, help="Number of passages per question, including the gold one (0 = closed book).")
]
MaxPassages = Annotated[
    int | None,
    typer.Option(
        min=0, help="Maximum number of passages per question, for data that has its own; the first ones are kept."
    ),
]
Retriever = Annotated[str | None, typer.Option(help="bm25: retrieve passages from --corpus.")]
Corpus = Annotated[str | None, typer.Option(help="File of passages to retrieve from: JSONL, CSV or parquet.")]
Columns = Annotated[str | None, typer.Option(help="Columns of the data by role, such as question=ask,answers=target.")]
Layout = Annotated[
    str | None,
    typer.Option(
        help="Layout of the records: kilt, middle, hotpot, keyvalue, infill, continue or columns; detected by default."
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first line of the data that cannot be used.")]
TemplateFile = Annotated[Path | None, typer.Option(help="Text file with the slots {passages} and {question}.")]
TraceDtype = Annotated[str, typer.Option(help="Type of single heads and matrices on disk: float16 or float32.")]
Detail = Annotated[str, typer.Option(help="What traces keep: full (every head) or summary (means over heads).")]
Out = Annotated[str | None, typer.Option(help="Run folder for the results: a path, or a URL such as s3://….")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@dataclass(frozen=True)
class DataOptions:
    """Which questions of the data are asked, and with which passages."""

    split: Split = None
    passages: Passages = None
    max_passages: MaxPassages = None
    retriever: Retriever = None
    corpus: Corpus = None
    columns: Columns = None
    layout: Layout = None
    strict: Strict = False
    template: TemplateFile = None

    def __post_init__(self) -> None:
        if self.retriever not in (None, "bm25"):
            raise FloatLensError(f"--retriever {self.retriever!r} is not known; use bm25")
        if self.retriever is not None and self.corpus is None:
            raise FloatLensError("--retriever bm25 needs passages to search; name a file of them with --corpus")

    def plan(self, models: Sequence[str], data: Sequence[str], asking: Asking, **changes: Any) -> EvaluationPlan:
        """Return the evaluation plan."""
        from floatlens.data.readers.layouts import parse_columns
        from floatlens.evaluation.sources import EvaluationPlan

        given: dict[str, Any] = {
            "split": self.split,
            "passages": self.passages or None,
            "max_passages": self.max_passages,
            "corpus": self.corpus,
            "columns": parse_columns(self.columns) if self.columns else None,
            "layout": self.layout,
            "strict": self.strict,
        }
        named, sets = tuple(dict.fromkeys(models)), tuple(dict.fromkeys(data))
        return EvaluationPlan(models=named, data=sets, asking=asking, **{**given, **changes})


@dataclass(frozen=True)
class SamplerOptions:
    """How answers are generated."""

    batch_size: Annotated[int, typer.Option(min=1, help="Number of questions decoded together.")] = 32
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of tokens per answer.")] = 32
    steps: Annotated[int | None, typer.Option(help="Denoising steps of a masked diffusion model.")] = None
    block_length: Annotated[int | None, typer.Option(help="Tokens per block, for samplers that write in blocks.")] = (
        None
    )
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 0.0

    def asking(self, seed: int | None, template: Path | None = None, order: str = "last") -> Asking:
        """Return how questions are asked."""
        from floatlens.data.template import DEFAULT, read
        from floatlens.evaluation.planning import Asking

        return Asking(
            max_new_tokens=self.max_new_tokens,
            steps=self.steps,
            batch_size=self.batch_size,
            seed=seed or 0,
            order=order,
            template=read(template) if template else DEFAULT,
            sampler={"block_length": self.block_length, "temperature": self.temperature},
        )


@dataclass(frozen=True)
class ModelOptions:
    """How models are loaded."""

    family: Family = None
    adapter: Adapter = None
    sampler: Sampler = None
    device: Device = None
    dtype: Dtype = "auto"
    allow_pickle: AllowPickle = False

    def find(self, model: str, revision: str | None = None) -> Checkpoint:
        """Find a model without reading its weights."""
        return self.loader(revision).find(model)

    def loader(self, revision: str | None = None) -> Loader:
        """Return the loader of models, which works in any process."""
        from floatlens.store.loader import Loader

        return Loader(self.device, self.dtype, self.allow_pickle, revision, self.family, self.adapter, self.sampler)

    def recorded(self) -> dict[str, Any]:
        """Return the options that results depend on, for the manifest."""
        return self.loader().recorded()


@dataclass(frozen=True)
class RunOptions:
    """Where the work runs, and whether it resumes."""

    engine: Annotated[str, typer.Option(help="Where to run: local, or ray for a cluster.")] = "local"
    workers: Annotated[int | None, typer.Option(help="Number of processes, one model each; 1 by default.")] = None
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster: auto, host:port or ray://….")] = None
    gpus_per_worker: Annotated[float | None, typer.Option(help="Number of GPUs per worker.")] = None
    resume: Resume = False
    retry_errors: Annotated[bool, typer.Option("--retry-errors", help="With --resume: retry what failed.")] = False

    def check_out(self, out: str | None) -> None:
        """Raise an error if there is nothing to resume."""
        if self.resume and out is None:
            raise FloatLensError("--resume needs --out, the folder of the run to resume")

    def make_engine(self) -> Engine:
        """Return the engine; raise an error for invalid options."""
        from floatlens.store.engines import registry

        return registry.make_engine(
            self.engine, workers=self.workers, address=self.address, gpus_per_worker=self.gpus_per_worker
        )


MOST_NUMBERS = 1_000_000  # more than a model has layers or a generation has steps


def parse_numbers(text: str | None, option: str) -> list[int] | None:
    """Parse a list of numbers of the command line; None stays None.

    >>> parse_numbers("0,4-6", "--layers"), parse_numbers("0:8:2", "--layers")
    ([0, 4, 5, 6], [0, 2, 4, 6])
    """
    if text is None:
        return None
    found: list[int] = []
    try:
        for part in text.split(","):
            if ":" in part:
                numbers = range(*(int(word) for word in part.split(":")))
            elif "-" in part:
                first, last = part.split("-")
                numbers = range(int(first), int(last) + 1)
            else:
                numbers = range(int(part), int(part) + 1)
            if len(numbers) > MOST_NUMBERS:
                raise FloatLensError(f"{option} {text!r} is more than {MOST_NUMBERS:,} numbers; use a shorter range")
            found += numbers
    except (ValueError, TypeError, OverflowError):
        raise FloatLensError(
            f"{option} {text!r} is not understood; write numbers as 0,4-7 or start:end:step as 0:32:4"
        ) from None
    return sorted(set(found))


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Replace every parameter of a command that is a dataclass by the fields of the dataclass, as options.

    The default of the parameter gives the defaults of its options; without one, those of the fields are used.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Sampling:
    ...     steps: int = 8
    ...     temperature: float = 0.0
    >>> @grouped
    ... def command(model: str, sampling: Sampling = Sampling(steps=4)) -> None:
    ...     print(model, sampling.steps, sampling.temperature)
    >>> command(model="tiny-mdm", temperature=0.5)
    tiny-mdm 4 0.5
    >>> list(inspect.signature(command).parameters)
    ['model', 'steps', 'temperature']
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    flat: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if not (isinstance(kind, type) and is_dataclass(kind)):
            flat.append(_option(name, parameter.default, kind))
            continue
        groups[name] = kind
        given = kind() if parameter.default is parameter.empty else parameter.default
        own = get_type_hints(kind, include_extras=True)
        flat += [_option(field.name, getattr(given, field.name), own[field.name]) for field in fields(kind)]
    defaults = {each.name: each.default for each in flat if each.default is not each.empty}

    def called(**given: Any) -> None:
        values = {**defaults, **given}
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values)

    called.__doc__, called.__name__, called.__module__ = command.__doc__, command.__name__, command.__module__
    called.__annotations__ = {each.name: each.annotation for each in flat} | {"return": None}
    called.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return called


def _option(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
