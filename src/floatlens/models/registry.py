"""The families, the most particular first: the first that recognises a config has it."""

from __future__ import annotations

from floatlens.errors import FloatLensError
from floatlens.models import a2d, causal, dream, llada, llada_moe, masked
from floatlens.models.family import Config, Family, architecture

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY for module in (llada_moe, llada, dream, a2d, masked, causal)
}


def family_of(config: Config, where: str = "config.json") -> Family:
    """The family of a checkpoint, from its config.

    >>> family_of({"model_type": "Dream"}).name, family_of({"model_type": "gpt2"}).name
    ('dream', 'causal')
    """
    if not isinstance(config.get("model_type", ""), str | None):
        raise FloatLensError(f"{where}: field 'model_type' is {config['model_type']!r}; expected a string")
    for family in FAMILIES.values():
        if family.recognises(config):
            return family
    known = ", ".join(FAMILIES)
    raise FloatLensError(
        f"{where}: field 'model_type' is {config.get('model_type')!r} (architecture {architecture(config) or None!r}), "
        f"which belongs to none of the families {known}"
    )
