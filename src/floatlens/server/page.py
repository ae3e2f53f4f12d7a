"""The page of the live explorer and its Content-Security-Policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from functools import cache
from itertools import islice
from typing import Any

from floatlens.explorer.page import embed
from floatlens.lens import Lens
from floatlens.server import limits

# name, data, new tokens, and the first question: one that every bundled model of the world answers correctly
WORLD = (("one fact", "world:fresh", 16, 1), ("two hops", "world:hops", 16, 0), ("a life", "world:long", 48, 0))
REAL = (("a real fact", "atlas", 16, 0), ("two real facts", "atlas:hops", 16, 0))


def page(films: Sequence[dict[str, Any]], live: dict[str, Any]) -> str:
    """Return the whole page; everything that varies is passed as data."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>FloatLens</title>
<link rel="icon" href="data:,">
<style>body {{ margin: 0 }} #explorer {{ display: grid; grid-template-columns: minmax(0, 1fr); min-height: 100vh }}</style>
</head>
<body>
{embed(films, "explorer", script=False, live=live)}
<script type="module" src="/assets/explorer.js"></script>
</body>
</html>
"""


def policy(host: str) -> str:
    """Return the Content-Security-Policy of the page: only our script and our socket."""
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


def about_models(lenses: Iterable[Lens]) -> list[dict[str, Any]]:
    """Describe each model to the page, without reading weights."""
    return [
        {
            "name": lens.name,
            "family": lens.family.name,
            "diffusion": lens.family.kind == "mdm",
            "block_length": lens.takes_block_length,
            "layers": lens.shape["layers"],
            "heads": lens.shape["heads"],
            "context": lens.context_length,
        }
        for lens in lenses
    ]


def about_interventions() -> list[dict[str, Any]]:
    """Describe the interventions with their settings and defaults."""
    from floatlens.interventions.intervention import INTERVENTIONS

    return [
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
        for name, kind in INTERVENTIONS.items()
    ]


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
        }
        for name, data, tokens, first in (WORLD + REAL if world else REAL + WORLD)
        for sample in islice(read(data, split="test", limit=first + 2, passages=5), first, None)
    ]


def live_data(host: str, secure: bool, lenses: Iterable[Lens], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the data that the page needs to communicate with the server."""
    models = about_models(lenses)
    return {
        "url": f"{'wss' if secure else 'ws'}://{host}/live",
        "token": "",  # the browser sends its cookie
        "models": models,
        "interventions": about_interventions() if models else [],
        "examples": examples(str(models[0]["name"]).startswith("tiny-")) if models else [],
        "limits": limits.shown(),
        "runs": runs,
        "film": "/api/film",
        "trace": "/api/trace",
    }
