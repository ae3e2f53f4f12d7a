"""Bidirectional Mamba: transformers' Mamba, in whose layers one mixer reads forwards and another one backwards.

    u -> u + mamba_fwd(norm(u)) + flip(mamba_rev(flip(norm(u))))

Its config has the fields of Mamba's or Mamba-2's. The names of the two mixers are those of Caduceus (arXiv 2403.03234).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM


class BiMambaConfig(MambaConfig):
    """The config of Mamba, for two mixers in a layer."""

    model_type = "bimamba"


class BiMamba2Config(Mamba2Config):
    """The config of Mamba-2, for two mixers in a layer."""

    model_type = "bimamba2"


class Bidirectional(nn.Module):
    """Two mixers over the same input, one of which reads it backwards."""

    def __init__(self, mixer: type[nn.Module], config: Any, layer: int) -> None:
        super().__init__()
        self.mamba_fwd = mixer(config, layer, initialize_mixer_weights=False)
        self.mamba_rev = mixer(config, layer, initialize_mixer_weights=False)

    def forward(self, u_BTD: Tensor, cache_params: None = None, attention_mask: Tensor | None = None) -> Tensor:
        turned = None if attention_mask is None else attention_mask.flip(1)
        reverse_BTD = self.mamba_rev(u_BTD.flip(1), attention_mask=turned).flip(1)
        return self.mamba_fwd(u_BTD, attention_mask=attention_mask) + reverse_BTD


def read_both_ways(model: Any) -> None:
    """Put two mixers in the place of each mixer of a model; a position then depends on all others, so nothing is cached."""
    model.config.use_cache = False
    for number, layer in enumerate(model.backbone.layers):
        layer.mixer = Bidirectional(type(layer.mixer), model.config, number)
    model.post_init()


class BiMambaForMaskedLM(MambaForCausalLM):
    """Mamba in both directions; the logits at a position predict the token there. The mask marks padding, on either side."""

    config_class = BiMambaConfig

    def __init__(self, config: BiMambaConfig) -> None:
        super().__init__(config)
        read_both_ways(self)


class BiMamba2ForMaskedLM(Mamba2ForCausalLM):
    """The same, of Mamba-2."""

    config_class = BiMamba2Config

    def __init__(self, config: BiMamba2Config) -> None:
        super().__init__(config)
        read_both_ways(self)


AutoModelForMaskedLM.register(BiMambaConfig, BiMambaForMaskedLM)
AutoModelForMaskedLM.register(BiMamba2Config, BiMamba2ForMaskedLM)
