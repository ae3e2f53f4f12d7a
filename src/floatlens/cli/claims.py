"""floatlens claims: the claims that studies test."""

from __future__ import annotations

from typing import Annotated

import typer

from floatlens.cli import options as common
from floatlens.cli import shared

FIELDS = (
    "id", "finding", "sentence", "whose", "source", "primary", "statistic", "effect", "why", "rejected_if", "needs",
)  # fmt: skip


def command(
    finding: Annotated[str | None, typer.Argument(help="Claims of one finding, such as drift; default: all.")] = None,
    as_json: common.AsJson = False,
) -> None:
    """List the claims with their source, the data they need, and the smallest effect that matters.

    Examples:

        floatlens claims

        floatlens claims drift --json
    """
    from floatlens.findings.finding import CLAIMS, FINDINGS

    name = finding and FINDINGS[finding].name
    claims = [claim for claim in CLAIMS.values() if name in (None, claim.finding)]
    if as_json:
        return shared.print_json({"claims": [{name: getattr(claim, name) for name in FIELDS} for claim in claims]})
    for claim in claims:
        about = {
            "source": claim.source,
            "statistic": claim.statistic,
            "smallest effect that matters": f"{claim.effect:g}" + (f": {claim.why}" if claim.why else ""),
            "rejected if": claim.rejected_if,
            "needs": claim.needs,
        }
        shared.print_lines([f"{claim.id}  {claim.sentence} ({claim.whose}{', primary' if claim.primary else ''})"])
        shared.print_lines(f"    {name}: {text}" for name, text in about.items() if text)
