"""floatlens claims: the claims that studies test."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from floatlens.cli import options as common


def command(
    finding: Annotated[str | None, typer.Argument(help="Claims of one finding, such as drift; default: all.")] = None,
    as_json: common.AsJson = False,
) -> None:
    """List the claims with their source, the data they need, and the smallest effect that matters.

    Examples:

        floatlens claims

        floatlens claims drift --json
    """
    from rich.console import Console
    from rich.text import Text

    from floatlens.findings.finding import CLAIMS, FINDINGS

    names = FINDINGS.names() if finding is None else [FINDINGS[finding].name]
    found = [claim for name in names for claim in FINDINGS[name].registered_claims()]
    found += [claim for claim in CLAIMS.values() if finding is None and claim.finding not in names]
    if as_json:
        fields = (
            "id",
            "finding",
            "sentence",
            "whose",
            "source",
            "primary",
            "statistic",
            "effect",
            "why",
            "rejected_if",
            "needs",
        )
        print(json.dumps({"claims": [{name: getattr(claim, name) for name in fields} for claim in found]}))
        return
    console = Console(highlight=False)
    for claim in found:
        console.print(
            Text.assemble(
                (claim.id, "bold"), f"  {claim.sentence} ({claim.whose}{', primary' if claim.primary else ''})"
            )
        )
        about = {
            "source": claim.source,
            "statistic": claim.statistic,
            "smallest effect that matters": f"{claim.effect:g}" + (f": {claim.why}" if claim.why else ""),
            "rejected if": claim.rejected_if,
            "needs": claim.needs,
        }
        for name, text in about.items():
            if text:
                console.print(Text(f"    {name}: {text}"), style="dim")
