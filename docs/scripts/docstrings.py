"""Convert docstrings to Markdown: doctests become code blocks, lists of parameters become lists.

An extension of Griffe, listed in mkdocs.yml.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

NAMES = r"\*{0,2}[a-z_]+(?:, \*{0,2}[a-z_]+)*"
SETTING = re.compile(rf"(?P<names>{NAMES})(?:\s{{2,}}|: )(?P<about>\S.*)")


class Readable(griffe.Extension):
    """Converts every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """Convert a docstring to Markdown.

    >>> markdown("Add.\\n\\nscore    how much")
    'Add.\\n\\n- `score`: how much'
    >>> markdown("Parameters\\n----------\\nscore, **more\\n    How much\\n    to add.")
    '**Parameters**\\n\\n- `score, **more`: How much\\n  to add.'
    """
    return "\n\n".join(_paragraph(part) for part in re.split(r"\n\s*\n", text.strip()))


def _paragraph(part: str) -> str:
    lines = part.splitlines()
    if lines[0].lstrip().startswith(">>>"):
        code = [re.sub(r"\s+# doctest: .*", "", line) for line in lines]
        return "\n".join(["```pycon", *code, "```"])
    if len(lines) > 2 and set(lines[1].strip()) == {"-"}:
        return f"**{lines[0]}**\n\n{_settings(_join_names(lines[2:]))}"
    listed = "  " in lines[0].strip() or sum(bool(SETTING.fullmatch(line)) for line in lines) > 1
    return _settings(lines) if listed and SETTING.fullmatch(lines[0]) else part


def _join_names(lines: list[str]) -> list[str]:
    """Put the name of a numpy-style parameter on the line of its description."""
    text = "\n".join(lines)
    return re.sub(rf"^({NAMES})\n\s+(?=\S)", r"\1: ", text, flags=re.MULTILINE).splitlines()


def _settings(lines: list[str]) -> str:
    found = [SETTING.fullmatch(line) for line in lines]
    if any(found):
        return "\n".join(
            f"- `{match['names']}`: {match['about']}" if match else f"  {line.strip()}"
            for match, line in zip(found, lines, strict=True)
        )
    return "\n".join(lines)
