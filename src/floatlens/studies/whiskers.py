"""A word-sized drawing of a statistic, its interval and the smallest effect that matters."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

WIDTH, HEIGHT, EDGE = 132, 18, 5


def reach(claims: Iterable[dict[str, Any]]) -> float:
    """Return the largest distance from the smallest effect among the claims, so that a row shares one scale."""
    numbers = [
        abs(x - effect(claim)) for claim in claims for x in (claim["value"], *claim["interval"]) if x is not None
    ]
    return max(numbers, default=0.0) or 1.0


def effect(claim: dict[str, Any]) -> float:
    """Return the smallest effect that matters, 0 for a claim without one."""
    return float(claim.get("effect") or 0.0)


def drawn(claim: dict[str, Any], most: float, said: str) -> str:
    """Return the drawing as SVG; only the line of the effect if there is no number."""

    def x(value: float) -> float:
        return round(WIDTH / 2 + (value - effect(claim)) / most * (WIDTH / 2 - EDGE), 1)

    middle = HEIGHT / 2
    parts = [f'<line class="zero" x1="{WIDTH / 2}" x2="{WIDTH / 2}" y1="1" y2="{HEIGHT - 1}"/>']
    low, high = claim["interval"]
    if low is not None and high is not None:
        parts.append(f'<line class="range" x1="{x(low)}" x2="{x(high)}" y1="{middle}" y2="{middle}"/>')
    if claim["value"] is not None:
        parts.append(f'<circle class="dot" cx="{x(claim["value"])}" cy="{middle}" r="3.4"/>')
    kind = html.escape(str(claim["verdict"]).replace(" ", "-"))
    label = html.escape(said)
    return (
        f'<svg class="whisker {kind}" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
    )
