"""The explorer as HTML: a fragment for the report, a self-contained file that opens from disk, or the live page.

The script is the same in every page, so its hash is enough for a Content-Security-Policy. Text from prompts and tokens
travels as JSON that the browser never parses as HTML; the script draws it on a canvas or sets it as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import TYPE_CHECKING, Any

from floatlens.errors import FloatLensError
from floatlens.models.bundled import BUNDLED

if TYPE_CHECKING:
    from floatlens.lens import Lens

ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
STYLE = "html, body { margin: 0 } #explorer { display: grid; min-height: 100vh }"
LIVE_STYLE = STYLE.replace("grid;", "grid; grid-template-columns: minmax(0, 1fr);")
ICON = '<link rel="icon" href="data:,">'  # otherwise browsers ask for /favicon.ico
# name, data, new tokens, and the first question: one that every bundled model of the world answers correctly
WORLD = (("one fact", "world:fresh", 16, 1), ("two hops", "world:hops", 16, 0), ("a life", "world:long", 48, 0))
REAL = (("a real fact", "atlas", 16, 0), ("two real facts", "atlas:hops", 16, 0))


@cache
def asset() -> str:
    """Return the script: one ES module that mounts the explorer in its elements."""
    return (files("floatlens.explorer") / "assets" / "explorer.js").read_text(encoding="utf-8")


def script_hashes() -> list[str]:
    """Return the script-src expressions that allow the embedded script."""
    return [source_hash(asset())]


def source_hash(text: str) -> str:
    """Return the expression of a Content-Security-Policy that allows a script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def policy() -> str:
    """Return the Content-Security-Policy of a page that contains only the explorer."""
    return (
        f"default-src 'none'; script-src {' '.join(script_hashes())}; style-src {source_hash(STYLE)}; base-uri 'none'"
    )


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
    if not re.fullmatch(r"[\w-]+", id, re.ASCII):
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
    head = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy())}">'
    return document(head, STYLE, embed(films, "explorer", state=state), title)


def document(head: str, style: str, body: str, title: str = "FloatLens") -> str:
    """Return an HTML page; `head`, `style` and `body` are markup of our own."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{head}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def escaped_json(value: Any) -> str:
    """Encode JSON so that it can be placed inside a script element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    for character, escape in ESCAPES.items():
        text = text.replace(character, escape)
    return text


def live_page(films: Sequence[dict[str, Any]], live: dict[str, Any]) -> str:
    """Return the page of the live explorer; everything that varies is passed as data."""
    script = '<script type="module" src="/assets/explorer.js"></script>'
    return document(ICON, LIVE_STYLE, embed(films, "explorer", script=False, live=live) + "\n" + script)


def live_policy(host: str) -> str:
    """Return the Content-Security-Policy of the live page: only our script and our socket."""
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            f"connect-src 'self' ws://{host} wss://{host}",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


@cache
def examples(world: bool) -> list[dict[str, Any]]:
    """Return example questions: test questions of the synthetic world and of atlas.

    `world`: the first model was trained on the world and knows no English beyond it; otherwise real facts come first.
    """
    from floatlens.data.read import read

    return [
        {
            "name": name,
            "question": sample.question,
            "passages": [{"title": p.title, "text": p.text, "gold": p.gold} for p in sample.passages],
            "answers": list(sample.answers),
            "max_new_tokens": tokens,
            "world": data.startswith("world"),
        }
        for name, data, tokens, first in (WORLD + REAL if world else REAL + WORLD)
        for sample in islice(read(data, split="test", limit=first + 2, passages=5), first, None)
    ]


def live_data(host: str, secure: bool, lenses: Iterable[Lens], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the data that the page needs to communicate with the server; no weights are read."""
    from floatlens.explorer.messages import shown_limits
    from floatlens.interventions.intervention import INTERVENTIONS

    models = [
        {
            "name": lens.name,
            "family": lens.family.name,
            "diffusion": lens.family.kind == "mdm",
            "block_length": hasattr(lens.settings(), "block_length"),
            "layers": lens.shape["layers"],
            "heads": lens.shape["heads"],
            "context": lens.context_length,
            "world": lens.name in BUNDLED,  # these know nothing else
        }
        for lens in lenses
    ]
    interventions = [
        {
            "name": name,
            "about": (kind.__doc__ or "").strip().splitlines()[0],
            "settings": [
                {
                    "name": field.name,
                    "default": None if field.default in (MISSING, None) else str(field.default),
                    "needed": field.default is MISSING,
                }
                for field in fields(kind)
            ],
        }
        for name, kind in (INTERVENTIONS.items() if models else ())
    ]
    return {
        "url": f"{'wss' if secure else 'ws'}://{host}/live",
        "token": "",  # the browser sends its cookie
        "models": models,
        "interventions": interventions,
        "examples": examples(str(models[0]["name"]).startswith("tiny-")) if models else [],
        "limits": shown_limits(),
        "runs": runs,
        "film": "/api/film",
        "trace": "/api/trace",
    }
