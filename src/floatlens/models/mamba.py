"""Mamba and Mamba-2 (state-spaces/mamba-130m-hf, mamba2 checkpoints in transformers' layout): autoregressive, no attention;
and bidirectional Mamba: masked diffusion, one mixer forwards and one backwards in every layer.

Traces record the implicit attention of the mixers. The config.json of bidirectional Mamba has the fields of Mamba or
Mamba-2, with `"model_type": "bimamba"` and `"mixer": "mamba"` or `"mamba2"`; its keys are those of transformers' mixers
below `backbone.layers.N.mixer.mamba_fwd` and `mamba_rev`.
"""

from typing import Any

from floatlens.models.family import Config, Family, expect, register_family

TYPES = ("mamba", "mamba2")


def with_heads(kind: type, config: Config, directions: int = 1) -> Any:
    """The native config with the number of heads in a trace: Mamba-2's own, or one for Mamba; per direction."""
    fields = {name: value for name, value in config.items() if name not in ("model_type", "architectures", "mixer")}
    made = kind(**fields)
    made.num_attention_heads = directions * getattr(made, "num_heads", 1)
    return made


def native_mamba(config: Config) -> Any:
    from transformers import Mamba2Config, MambaConfig

    return with_heads(Mamba2Config if config["model_type"] == "mamba2" else MambaConfig, config)


def native_bimamba(config: Config) -> Any:
    from floatlens.models.bimamba_network import BiMamba2Config, BiMambaConfig

    mixer = config.get("mixer")
    expect(mixer in TYPES, config, "mixer", f"one of {', '.join(TYPES)}")
    made = with_heads(BiMamba2Config if mixer == "mamba2" else BiMambaConfig, config, directions=2)
    made.is_causal = False
    made.mask_token_id = config.get("mask_token_id")
    return made


MAMBA = register_family(
    Family(
        name="mamba",
        about="autoregressive without attention, Mamba and Mamba-2",
        example="state-spaces/mamba-130m-hf",
        types=TYPES,
        native=native_mamba,
        kind="arm",
        attention="causal",
        sampler="autoregressive",
        shifted=True,
    )
)
BIMAMBA = register_family(
    Family(
        name="bimamba",
        about="masked diffusion without attention, Mamba in both directions",
        example="tiny-ssm",
        types=("bimamba",),
        native=native_bimamba,
        head="masked",
        attention="two-way",
        sampler="llada",
        positions="plain",
    )
)
