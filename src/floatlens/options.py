"""Every option that travels between layers, declared once: its type, its default and its help.

The command line lists these fields as options, the manifest stores them (`recorded`), and Python functions take them as
keywords (`keywords.py` has their types). `make` turns keywords into values; inside, only the values are passed on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from floatlens.errors import FloatLensError, check_known

if TYPE_CHECKING:
    import torch


def option(default: Any, help: str, *, flag: str | None = "", least: float | None = None, recorded: bool = True) -> Any:
    """Declare an option.

    `flag` is its name on the command line, by default that of the field; None keeps it off the command line. `least` is the
    smallest number that is allowed. `recorded` is whether results depend on it, so that it belongs to the manifest.
    """
    return field(default=default, metadata={"help": help, "flag": flag, "least": least, "recorded": recorded})


@dataclass(frozen=True)
class Load:
    """How models are loaded."""

    panel: ClassVar[str] = "Model"

    family: str | None = option(None, "Family of the model; detected from its config by default.", flag=None)
    mode: str | None = option(None, "arm or mdm, for models that write both ways (Nemotron).", flag=None)
    revision: str | None = option(None, "Branch, tag or commit of a Hub model.", flag=None)
    adapter: str | Path | None = option(
        None, "Folder of a LoRA adapter in peft's format, applied to the model.", flag=None
    )
    sampler: str | None = option(
        None, "Setting of the sampler; name=NAME chooses one where a family has several.", flag="sampler-set"
    )
    block_length: int | None = option(
        None, "Tokens per block of a block-causal model whose config does not define it (family a2d-block).", flag=None
    )
    dtype: str | torch.dtype = option(
        "auto", "Type of the weights: auto (the checkpoint's; float32 on a CPU), float32, bfloat16 or float16."
    )
    device_map: str | dict[str, Any] | None = option(
        None, "Device: cpu, cuda, …; auto distributes a large model over all GPUs.", flag="device", recorded=False
    )
    untrained: bool = option(
        False, "Draw the weights again: the same network without its training, as a null.", flag=None
    )
    quantization_config: Any = option(None, "Passed to transformers.", flag=None, recorded=False)
    attn_implementation: str | None = option(None, "Passed to transformers.", flag=None, recorded=False)
    tp_plan: str | dict[str, str] | None = option(
        None, "auto splits each layer over the processes of torchrun.", flag=None, recorded=False
    )
    allow_pickle: bool = option(False, "Allow pickled weights (.bin files) if there are no others.", recorded=False)


@dataclass(frozen=True)
class Data:
    """Which questions of the data are asked, with which passages, and in which words."""

    panel: ClassVar[str] = "Input"

    split: str | None = option(None, "Split of the data: train, validation or test.")
    limit: int | None = option(
        None, "Maximum number of questions or texts: the first ones, or with --seed a random draw."
    )
    seed: int | None = option(None, "Seed of every random draw and of the sampler.")
    passages: int | None = option(
        None, "Number of passages per question, including the gold one (0 = closed book).", least=0
    )
    max_passages: int | None = option(
        None, "Maximum number of passages per question, for data that has its own; the first ones are kept.", least=0
    )
    gold_at: Sequence[int] | None = option(
        None,
        "Positions of the gold passage, counted from 1, such as 1,5,10: every question of --data is asked once per "
        "position; with --passage, the numbers of the passages that have the answer.",
    )
    corpus: str | None = option(
        None, "File of passages (JSONL, CSV or parquet), from which those of each question are retrieved by BM25."
    )
    columns: Mapping[str, str] | None = option(
        None,
        "Columns of the data by role, such as question=ask,answers=target; or its layout: kilt, middle, hotpot, "
        "keyvalue, infill, continue or columns. Detected by default.",
    )
    layout: str | None = option(None, "Layout of the records; detected by default.", flag="columns")
    strict: bool = option(False, "Stop at the first line of the data that cannot be used.", flag=None)
    template: Any = option(None, "Text file with the slots {passages} and {question}.")
    order: str = option("last", "Position of the question: last, first, or both sides of the passages.", flag=None)
    chat: bool = option(True, "Whether the text is put into the model's chat template.", flag=None)

    def __post_init__(self) -> None:
        for name, value in (("passages", self.passages), ("max_passages", self.max_passages)):
            if value is not None and value < 0:
                raise FloatLensError(f"{name} must be 0 or more, got {value}")

    @property
    def closed_book(self) -> bool:
        """Whether questions are asked without passages."""
        return self.passages == 0 or self.max_passages == 0


@dataclass(frozen=True)
class Sampling:
    """How answers are generated; None is the sampler's own default."""

    panel: ClassVar[str] = "Decoding"

    max_new_tokens: int = option(32, "Maximum number of tokens per answer.")
    steps: int | None = option(None, "Denoising steps of a masked diffusion model; one per token by default.")
    block_length: int | None = option(None, "Tokens per block, for samplers that write in blocks.", flag=None)
    temperature: float = option(0.0, "Sampling temperature; 0 is greedy.", flag=None)
    seed: int | None = option(None, "Seed of every random draw and of the sampler.")
    sampler: Mapping[str, Any] | None = option(
        None,
        "Setting of the sampler, such as temperature=0.7, top_p=0.9 or block_length=32; `floatlens models NAME` lists them.",
        flag="sampler-set",
    )


DETAIL = "What traces keep: full (every head) or summary (means over heads)."


def check_detail(name: str) -> None:
    """Raise an error for an unknown level of detail."""
    check_known("detail", name, ("full", "summary"))


@dataclass(frozen=True)
class Recording:
    """What is recorded of a generation, and how it is stored."""

    panel: ClassVar[str] = "Recording"

    record: Sequence[str] = option(
        ("default",),
        "Statistics beyond the default ones, such as cache_drift,locality,massive,lens_token, and full matrices: "
        "attention, attention_mean, queries, keys.",
    )
    layers: Collection[int] | None = option(None, "Layers to record, such as 0,4-7 or 0:32:4.")
    heads: Collection[int] | None = option(None, "Heads to record.", flag=None)
    record_steps: Collection[int] | None = option(None, "Steps to record.", flag=None)
    matrices: Sequence[str] = option((), "Full matrices to record.", flag="record")
    matrix_layers: Collection[int] | None = option(
        None, "Layers of the full matrices; by default those of --layers.", flag=None
    )
    show: Sequence[str] = option(
        (), "Statistics or matrices that are shown at each step without being kept in the trace.", flag=None
    )
    implementation: str = option(
        "fused",
        "fused (default: attention computed once in float32 on a CPU, else as stream), stream (a second pass; output "
        "bit-equal), exact (slow reference) or kernel (GPU kernel; run floatlens doctor first).",
        flag=None,
    )
    detail: Literal["full", "summary"] = option("full", DETAIL)

    def __post_init__(self) -> None:
        check_detail(self.detail)


@dataclass(frozen=True)
class Run:
    """Where the work runs, and whether it resumes."""

    panel: ClassVar[str] = "Run"

    batch_size: int = option(16, "Number of questions decoded together.", least=1)
    engine: str = option(
        "local",
        "Where to run: local, or ray (RAY_ADDRESS names a cluster). local:4 has 4 workers, one model each; ray:8x2 has 8 "
        "with 2 GPUs each.",
        recorded=False,
    )
    resume: bool = option(False, "Resume the run in --out; what failed is tried again.", recorded=False)


@dataclass(frozen=True)
class Scope:
    """What a study tests, and on how many questions."""

    panel: ClassVar[str] = "Study"

    only: Sequence[str] = option(
        (), "Findings to run, such as drift,heads,stress; by default those of the paper and sink."
    )
    skip: Sequence[str] = option((), "Findings to leave out.")
    beyond: bool = option(False, "Also run the interventions (causes), and test the claims of other papers.")
    full: bool = option(False, "Use every question, and run every stress test on every data set.")
    setting: str = option(
        "paper",
        "Which questions are traced: paper (short ones for anchors, with passages for heads and flow), short, passages.",
    )
    texts: str = option(
        "prose", "Texts of the finding sink: prose (bundled), or data with the columns continue and answers.", flag=None
    )
    offset: int = option(0, "Number of questions to skip in each data set.", least=0)
    stress_interventions: Sequence[str] = option(
        (),
        'Also run the stress tests under an intervention, such as "mask-anchors"; repeat for several.',
        flag="stress-intervention",
    )
    detail: Literal["full", "summary"] = option("full", DETAIL)
    jobs: int | None = option(
        None,
        "Models to run in parallel; default: number of cores for small models, otherwise 1.",
        least=1,
        recorded=False,
    )
    interventions: Sequence[str] | None = option(
        None, "Interventions of the finding causes; by default those that the claims need.", flag=None
    )
    sizes: Mapping[str, int | None] | None = option(
        None, "Number of questions per data set: traces, short, knowledge, stress, causes; None for all.", flag=None
    )
    stresses: Sequence[str] | None = option(None, "Stress tests to run; by default all.", flag=None)

    def __post_init__(self) -> None:
        check_detail(self.detail)


# The arguments of the running command, after `floatlens`: manifests store them. Empty when FloatLens is used from Python.
ARGUMENTS: list[str] = []


def make(given: Mapping[str, Any], *kinds: type[Any]) -> tuple[Any, ...]:
    """Return one value per kind from keywords; an option that two kinds have goes to both.

    >>> make({"steps": 8, "layers": [0]}, Sampling, Recording)[0].steps
    8
    >>> make({"step": 8}, Sampling)
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: unknown option 'step'; did you mean 'steps'?
    """
    names = [[each.name for each in fields(kind)] for kind in kinds]
    known = {name for several in names for name in several}
    for name in given:
        if name not in known and Sampling in kinds and not get_close_matches(name, known, 1):
            raise FloatLensError(
                f"unknown option {name!r}; settings of one sampler are passed as sampler={{{name!r}: …}}"
            )
        check_known("option", name, sorted(known))
    return tuple(
        kind(**{name: given[name] for name in several if name in given})
        for kind, several in zip(kinds, names, strict=True)
    )


def recorded(value: Any) -> dict[str, Any]:
    """Return the options of a value that results depend on, for the manifest."""
    return {each.name: getattr(value, each.name) for each in fields(value) if each.metadata["recorded"]}
