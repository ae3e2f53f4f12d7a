"""The explorer as HTML: a fragment for the report, or a self-contained file that opens from disk.

The script is the same in every page, so its hash is enough for a Content-Security-Policy. Text from prompts and tokens
travels as JSON that the browser never parses as HTML; the script draws it on a canvas or sets it as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from floatlens.errors import FloatLensError

ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
STYLE = "html, body { margin: 0 } #explorer { display: grid; min-height: 100vh }"
ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


@cache
def asset() -> str:
    """Return the script: one ES module that mounts the explorer in its elements."""
    return (files("floatlens.explorer") / "assets" / "explorer.js").read_text(encoding="utf-8")


def script_hashes() -> list[str]:
    """Return the script-src expressions that allow the embedded script."""
    return [_source(asset())]


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def policy() -> str:
    """Return the Content-Security-Policy of a page that contains only the explorer."""
    return f"default-src 'none'; script-src {' '.join(script_hashes())}; style-src {_source(STYLE)}; base-uri 'none'"


def embed(
    films: Sequence[dict[str, Any]],
    id: str,
    *,
    script: bool = True,
    live: dict[str, Any] | None = None,
    state: dict[str, Any] | None = None,
) -> str:
    """Return an HTML fragment that shows films in an element `id`; with several per page, include the script once.

    `state` is where the film starts: step, layer, head, rule, colour, pin, direction.

    >>> print(embed([], "films", script=False))
    <div id="films" data-floatlens-explorer="films-data"></div>
    <script type="application/json" id="films-data">{"films": [], "live": null}</script>
    """
    if not id or not set(id) <= ID_CHARACTERS:
        raise FloatLensError(f"{id!r} is not a valid element id; use letters, digits, - and _")
    data = escaped_json({"films": list(films), "live": live} | ({"state": state} if state else {}))
    parts = [
        f'<div id="{id}" data-floatlens-explorer="{id}-data"></div>',
        f'<script type="application/json" id="{id}-data">{data}</script>',
    ]
    if script:
        parts.append(f'<script type="module">{asset()}</script>')
    return "\n".join(parts)


def page(films: Sequence[dict[str, Any]], title: str = "FloatLens", state: dict[str, Any] | None = None) -> str:
    """Return a self-contained page with the explorer."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{html.escape(policy())}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
{embed(films, "explorer", state=state)}
</body>
</html>
"""


def escaped_json(value: Any) -> str:
    """Encode JSON so that it can be placed inside a script element.

    >>> escaped_json("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    for character, escape in ESCAPES.items():
        text = text.replace(character, escape)
    return text
