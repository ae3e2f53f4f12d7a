"""Options are declared once: `keywords.py` is written from `options.py` by `python -m tests.test_options`."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from floatlens import options
from floatlens.errors import FloatLensError

GROUPS = (options.Load, options.Data, options.Sampling, options.Recording, options.Run, options.Scope)
KEYWORDS = Path(options.__file__).with_name("keywords.py")
HEAD = '''"""The keywords of Python functions that take options, with their types.

Written from options.py by `python -m tests.test_options`, because type checkers do not read dataclasses as keywords.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import torch

'''
TAIL = '''

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
'''
STUDY = '''

class StudyKeywords(DataKeywords, total=False):
    """All options of a study; `sampler` is the name of a sampler, or settings of one."""

'''


def keywords() -> str:
    """Return the text of keywords.py."""
    parts = [HEAD]
    for kind in (options.Load, options.Data, options.Sampling, options.Recording):  # the others: of a study only
        parts.append(f'\nclass {kind.__name__}Keywords(TypedDict, total=False):\n    """{kind.__doc__}"""\n\n')
        parts += [f"    {each.name}: {each.type}\n".replace("'", '"') for each in fields(kind)]
    flat: dict[str, str] = {}
    inherited = {each.name for each in fields(options.Data)}
    for kind in (options.Scope, options.Sampling, options.Run, options.Load):
        for each in fields(kind):
            if each.name not in inherited:
                flat.setdefault(each.name, str(each.type).replace("'", '"'))
    del flat["engine"]  # a study takes an engine, or its name
    flat["sampler"] = "str | Mapping[str, Any] | None"
    study = "".join(f"    {name}: {kind}\n" for name, kind in flat.items())
    text = "".join(parts).replace("\nclass", "\n\nclass").replace("\n\n\n\nclass", "\n\n\nclass")
    return text + TAIL + STUDY + study


def test_the_keywords_are_those_of_the_options() -> None:
    assert KEYWORDS.read_text(encoding="utf-8") == keywords()


def test_every_option_has_a_help_text_of_its_own() -> None:
    helps = [each.metadata["help"] for kind in GROUPS for each in fields(kind)]
    assert all(re.fullmatch(r"[\w-].*[.]", text) for text in helps), helps


def test_an_unknown_keyword_is_refused_with_the_closest_one() -> None:
    with pytest.raises(FloatLensError, match="unknown option 'tempreature'; did you mean 'temperature'"):
        options.make({"tempreature": 1.0}, options.Sampling, options.Recording)
    with pytest.raises(FloatLensError, match="passed as sampler={'top_p': …}"):
        options.make({"top_p": 0.9}, options.Sampling)


def test_only_options_that_results_depend_on_are_recorded() -> None:
    assert options.recorded(options.Run(batch_size=4, engine="local:2")) == {"batch_size": 4}


if __name__ == "__main__":
    KEYWORDS.write_text(keywords(), encoding="utf-8")
