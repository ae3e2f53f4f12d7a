"""The families by name. Each file of this folder that defines one registers it with one line."""

from __future__ import annotations

from floatlens.errors import FloatLensError
from floatlens.models.family import Config, Family, architecture
from floatlens.registry import Registry

MODULES = (
    "a2d", "a2d_block", "a2d_shifted", "bimamba", "canvas", "causal", "diffusion_gemma", "dream", "llada", "llada2",
    "llada21", "llada_moe", "mamba", "masked", "sdar", "sdar_moe",
)  # fmt: skip
FAMILIES: Registry[Family] = Registry("family", "floatlens.models", MODULES)


def register_family(family: Family, *, priority: int = 0) -> Family:
    """Register a family and return it.

    Parameters
    ----------
    family
        The family; see `floatlens.models.family.Family`.
    priority
        Families with a higher priority are tried first when a checkpoint is recognised. Those that recognise any
        masked or causal language model have -10 and -20, so they are tried last.
    """
    return FAMILIES.add(family.name, family, priority=priority, source=family.recognises)


def check_family_name(name: str | None) -> None:
    """Raise an error for an unknown family; None means that the family is detected."""
    if name is not None:
        FAMILIES[name]


def family_of(config: Config, where: str = "config.json") -> Family:
    """The first family that recognises a checkpoint's config.

    >>> family_of({"model_type": "Dream"}).name, family_of({"model_type": "gpt2"}).name
    ('dream', 'causal')
    """
    if not isinstance(config.get("model_type", ""), str | None):
        raise FloatLensError(f"{where}: field 'model_type' is {config['model_type']!r}; expected a string")
    for family in FAMILIES.values():
        if family.recognises(config):
            return family
    raise FloatLensError(
        f"{where}: field 'model_type' is {config.get('model_type')!r} (architecture {architecture(config) or None!r}), "
        f"which belongs to none of the families {', '.join(FAMILIES)}"
    )
