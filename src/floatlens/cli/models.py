"""floatlens models: list the supported families of models, and the bundled models."""

from __future__ import annotations

import json

from floatlens.cli import options as common


def command(as_json: common.AsJson = False) -> None:
    """List the supported families of models, and the bundled models.

    Example: floatlens models
    """
    from rich.console import Console
    from rich.table import Table

    from floatlens.models.bundled import BUNDLED, SMOLLM2, available_adapters
    from floatlens.models.family import FAMILIES

    extra = [SMOLLM2, *available_adapters()]
    if as_json:
        families = [
            {
                "name": f.name,
                "about": f.about,
                "example": f.example,
                "kind": f.kind,
                "attention": f.attention,
                "sampler": f.sampler,
                "other_samplers": list(f.other_samplers),
            }
            for f in FAMILIES.values()
        ]
        print(json.dumps({"families": families, "bundled": list(BUNDLED), "extra": extra}))
        return
    table = Table("family", "description", "attention", "sampler", "example", box=None, pad_edge=False)
    for family in FAMILIES.values():
        samplers = ", ".join((family.sampler, *family.other_samplers))
        table.add_row(family.name, family.about, family.attention, samplers, family.example)
    console = Console()
    console.print(table)
    console.print(
        f"\nBundled, without download: {', '.join(BUNDLED)}. With pip install 'floatlens[smollm2]': {', '.join(extra)}.",
        markup=False,
    )
