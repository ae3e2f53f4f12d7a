"""Write docs/claims.md: every claim of the registry, by finding.

    python docs/list_claims.py

`tests/test_docs.py` checks that the page is current.
"""

from __future__ import annotations

from pathlib import Path

from floatlens.findings.finding import FINDINGS, Claim

PAGE = Path(__file__).parent / "claims.md"
WHO = {
    ("mdm",): "each MDM",
    ("arm",): "each ARM",
    ("mdm", "arm"): "each pair of an MDM and an ARM",
    ("model",): "each model",
}
HEAD = """# All claims

A claim is a testable form of a paper's statement, in our words: a statistic with one value per sample, the smallest effect
that matters, and the result that would reject it. All of this was defined before the claim was run on a model. A claim is
*supported* if the whole 95 % [interval](intervals.md) lies above the smallest effect, *not supported* if it lies below,
and *inconclusive* otherwise. With {count} claims and several models, some would be decided by chance: a study corrects for
all of them together ([how](intervals.md#many-claims-together)). MDM stands for masked diffusion model, ARM for
autoregressive model.

This page is generated from the registry by `python docs/list_claims.py`; `floatlens claims` prints the same.
`floatlens study` tests all claims for which it has data. Your own claim is a function decorated with `register_claim`
([how](howto/new-finding.md)).
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
