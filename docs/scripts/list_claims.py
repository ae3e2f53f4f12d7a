"""Write docs/claims.md: every claim of the registry, by finding.

    python docs/scripts/list_claims.py

`tests/test_docs.py` checks that the page is current.
"""

from __future__ import annotations

from pathlib import Path

from floatlens.findings.finding import FINDINGS, Claim

PAGE = Path(__file__).parents[1] / "claims.md"
WHO = {
    ("mdm",): "each MDM",
    ("arm",): "each ARM",
    ("mdm", "arm"): "each pair of an MDM and an ARM",
    ("model",): "each model",
}
HEAD = """# All claims

A claim is a testable form of a paper's statement, in our words: a statistic with one value per sample, the smallest effect
that matters, and the result that would reject it. All of this was defined before the claim was run on a model.
[How to read a verdict](intervals.md) explains the words, [All verdicts](verdicts.md) has the results. MDM stands for masked
diffusion model, ARM for autoregressive model.

This page is generated from the registry by `python docs/scripts/list_claims.py`; `floatlens claims` prints the same. There
are {count} claims. Your own is a function decorated with `register_claim` ([how](howto/new-finding.md)).
"""


def page() -> str:
    """Return the page."""
    parts = [HEAD.format(count=sum(len(finding.registered_claims()) for finding in FINDINGS.values()))]
    for finding in FINDINGS.values():
        parts.append(f"## {finding.name}\n\n{finding.question} [The finding](findings/{finding.name}.md).\n")
        parts += [describe(claim) for claim in finding.registered_claims()]
    return "\n".join(parts)


def describe(claim: Claim) -> str:
    """Return a claim as Markdown."""
    rows = {
        "whose": claim.whose + (", primary" if claim.primary else ""),
        "source": claim.source,
        "tested on": WHO[claim.about],
        "statistic": claim.statistic,
        "smallest effect that matters": f"{claim.effect:g}: {claim.why}",
        "rejected if": claim.rejected_if,
        "needs": claim.needs,
    }
    lines = "\n".join(f"- {name}: {text}" for name, text in rows.items())
    return f"### {claim.sentence}\n\n`{claim.id}`\n\n{lines}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
