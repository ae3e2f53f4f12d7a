"""Docstrings as Markdown: doctests become blocks of code, and aligned lists of settings become lists.

An extension of Griffe, named in mkdocs.yml. The source keeps the form that reads well in an editor.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

SETTING = re.compile(r"(?P<names>[a-z_]+(?:, [a-z_]+)*)(?:\s{2,}|: )(?P<about>\S.*)")


class Readable(griffe.Extension):
    """Every docstring, as it is to be shown."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """A docstring as it is to be shown.

    >>> markdown("Add.\\n\\nscore    how much")
    'Add.\\n\\n- `score`: how much'
    """
    return "\n\n".join(_paragraph(part) for part in re.split(r"\n\s*\n", text.strip()))


def _paragraph(part: str) -> str:
    lines = part.splitlines()
    if lines[0].lstrip().startswith(">>>"):
        code = [re.sub(r"\s+# doctest: .*", "", line) for line in lines]
        return "\n".join(["```pycon", *code, "```"])
    if len(lines) > 2 and set(lines[1].strip()) == {"-"}:
        return f"**{lines[0]}**\n\n{_settings(lines[2:])}"
    listed = "  " in lines[0].strip() or sum(bool(SETTING.fullmatch(line)) for line in lines) > 1
    return _settings(lines) if listed and SETTING.fullmatch(lines[0]) else part


def _settings(lines: list[str]) -> str:
    found = [SETTING.fullmatch(line) for line in lines]
    if any(found):
        return "\n".join(
            f"- `{match['names']}`: {match['about']}" if match else f"  {line.strip()}"
            for match, line in zip(found, lines, strict=True)
        )
    return "\n".join(lines)
