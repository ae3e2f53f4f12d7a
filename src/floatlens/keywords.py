"""The keywords of Python functions that take options, with their types.

Written from options.py by `python -m tests.test_options`, because type checkers do not read dataclasses as keywords.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import torch


class LoadKeywords(TypedDict, total=False):
    """How models are loaded."""

    family: str | None
    mode: str | None
    revision: str | None
    adapter: str | Path | None
    sampler: str | None
    block_length: int | None
    dtype: str | torch.dtype
    device_map: str | dict[str, Any] | None
    untrained: bool
    quantization_config: Any
    attn_implementation: str | None
    tp_plan: str | dict[str, str] | None
    allow_pickle: bool


class DataKeywords(TypedDict, total=False):
    """Which questions of the data are asked, with which passages, and in which words."""

    split: str | None
    limit: int | None
    seed: int | None
    passages: int | None
    max_passages: int | None
    gold_at: Sequence[int] | None
    corpus: str | None
    columns: Mapping[str, str] | None
    layout: str | None
    strict: bool
    template: Any
    order: str
    chat: bool


class SamplingKeywords(TypedDict, total=False):
    """How answers are generated; None is the sampler's own default."""

    max_new_tokens: int
    steps: int | None
    block_length: int | None
    temperature: float
    seed: int | None
    sampler: Mapping[str, Any] | None


class RecordingKeywords(TypedDict, total=False):
    """What is recorded of a generation, and how it is stored."""

    record: Sequence[str]
    layers: Collection[int] | None
    heads: Collection[int] | None
    record_steps: Collection[int] | None
    matrices: Sequence[str]
    matrix_layers: Collection[int] | None
    show: Sequence[str]
    implementation: str
    detail: Literal["full", "summary"]


class TraceKeywords(SamplingKeywords, RecordingKeywords, total=False):
    """How an answer is generated, and what is recorded of it."""


class TrackKeywords(LoadKeywords, DataKeywords, total=False):
    """How checkpoints are loaded, and which texts they read."""


class EvaluateKeywords(SamplingKeywords, total=False):
    """How questions are asked and answered."""

    batch_size: int
    order: str
    template: Any
    chat: bool


class StudyKeywords(DataKeywords, total=False):
    """All options of a study; `sampler` is the name of a sampler, or settings of one."""

    only: Sequence[str]
    skip: Sequence[str]
    beyond: bool
    full: bool
    setting: str
    texts: str
    offset: int
    stress_interventions: Sequence[str]
    detail: Literal["full", "summary"]
    jobs: int | None
    interventions: Sequence[str] | None
    sizes: Mapping[str, int | None] | None
    stresses: Sequence[str] | None
    max_new_tokens: int
    steps: int | None
    block_length: int | None
    temperature: float
    sampler: str | Mapping[str, Any] | None
    batch_size: int
    resume: bool
    family: str | None
    mode: str | None
    revision: str | None
    adapter: str | Path | None
    dtype: str | torch.dtype
    device_map: str | dict[str, Any] | None
    untrained: bool
    quantization_config: Any
    attn_implementation: str | None
    tp_plan: str | dict[str, str] | None
    allow_pickle: bool
