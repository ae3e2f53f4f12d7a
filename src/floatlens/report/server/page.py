"""The page of the live explorer, and the policy that it carries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any
from urllib.parse import quote

from floatlens.lens import Lens
from floatlens.report.explorer.page import embed
from floatlens.report.server import limits

EXAMPLES = (("one fact", "world:fresh", 16), ("two hops", "world:hops", 16), ("a life", "world:long", 48))


def page(films: Sequence[dict[str, Any]], live: dict[str, Any], token: str) -> str:
    """The whole page; everything that varies travels as data, except for the token in the address of the script."""
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
<script type="module" src="/assets/explorer.js?token={quote(token, safe="")}"></script>
</body>
</html>
"""


def policy(host: str) -> str:
    """The Content-Security-Policy of the page: our script, our socket, nobody else."""
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
    """What the page offers of each model; no weight is read for it."""
    return [
        {
            "name": lens.name,
            "family": lens.family.name,
            "diffusion": lens.family.diffusion,
            "block_length": lens.family.sampler == "llada",
            "layers": lens.shape["layers"],
            "heads": lens.shape["heads"],
            "context": lens.context_length,
        }
        for lens in lenses
    ]


def about_interventions() -> list[dict[str, Any]]:
    """The interventions by name: what each does, and its settings with their defaults."""
    from floatlens.interventions import INTERVENTIONS

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
def examples() -> list[dict[str, Any]]:
    """Something to ask at once: the first test questions of the bundled world, which the bundled models can read."""
    from floatlens.tasks.readers.registry import read

    return [
        {
            "name": name,
            "question": sample.question,
            "passages": [{"title": p.title, "text": p.text, "gold": p.gold} for p in sample.passages],
            "answers": list(sample.answers),
            "max_new_tokens": tokens,
        }
        for name, data, tokens in EXAMPLES
        for sample in read(data, split="test", limit=2, passages=5)
    ]


def live_data(
    host: str, secure: bool, token: str, lenses: Iterable[Lens], runs: list[dict[str, Any]]
) -> dict[str, Any]:
    """What the page needs to talk to the server."""
    models = about_models(lenses)
    return {
        "url": f"{'wss' if secure else 'ws'}://{host}/live",
        "token": token,
        "models": models,
        "interventions": about_interventions() if models else [],
        "examples": examples() if models else [],
        "limits": limits.shown(),
        "runs": runs,
        "film": "/api/film",
        "trace": "/api/trace",
    }
