"""Bidirectional Mamba: in every layer one of transformers' own mixers reads forwards and another one backwards.

    u -> u + mamba_fwd(norm(u)) + flip(mamba_rev(flip(norm(u))))

Its config has the fields of Mamba's or Mamba-2's. The names of the two mixers are those of Caduceus (arXiv 2403.03234).
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, Mamba2Config, MambaConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput
from transformers.models.mamba.modeling_mamba import MambaMixer, MambaPreTrainedModel, MambaRMSNorm
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer, Mamba2PreTrainedModel


class BiMambaConfig(MambaConfig):
    """The config of Mamba, for two mixers in a layer."""

    model_type = "bimamba"


class BiMamba2Config(Mamba2Config):
    """The config of Mamba-2, for two mixers in a layer."""

    model_type = "bimamba2"


class Bidirectional(nn.Module):
    """Two mixers over the same input, one of which reads it backwards."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        mixer = Mamba2Mixer if isinstance(config, Mamba2Config) else MambaMixer
        self.mamba_fwd = mixer(config, layer, initialize_mixer_weights=False)
        self.mamba_rev = mixer(config, layer, initialize_mixer_weights=False)

    def forward(self, u_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        turned = None if mask_BT is None else mask_BT.flip(1)
        reverse_BTD = self.mamba_rev(u_BTD.flip(1), attention_mask=turned).flip(1)
        return self.mamba_fwd(u_BTD, attention_mask=mask_BT) + reverse_BTD


class Layer(nn.Module):
    """A norm and the two mixers, with a residual connection around them."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.norm = MambaRMSNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.mixer = Bidirectional(config, layer)

    def forward(self, h_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        return h_BTD + self.mixer(self.norm(h_BTD), mask_BT)


class Backbone(nn.Module):
    """Embeddings, layers and the last norm."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config, layer) for layer in range(config.num_hidden_layers)])
        self.norm_f = MambaRMSNorm(config.hidden_size, eps=config.layer_norm_epsilon)

    def forward(self, ids_BT: Tensor, mask_BT: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the embeddings, the input of every further layer, and the states after the last norm."""
        states = [self.embeddings(ids_BT)]
        for layer in self.layers:
            states.append(layer(states[-1], mask_BT))
        return (*states[:-1], self.norm_f(states[-1]))


class Head(PreTrainedModel):
    """A masked language model of bidirectional Mamba layers; the logits at a position predict the token there."""

    _no_split_modules = ("Layer",)
    _tied_weights_keys: ClassVar = {"lm_head.weight": "backbone.embeddings.weight"}
    _is_stateful = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.backbone = Backbone(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.embeddings

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
        **_: Any,
    ) -> MaskedLMOutput:
        """Return the logits (B, T, V), and the hidden states if requested. The mask marks padding, on either side."""
        if attention_mask is not None and bool((attention_mask == 1).all()):
            attention_mask = None
        states = self.backbone(input_ids, attention_mask)
        return MaskedLMOutput(logits=self.lm_head(states[-1]), hidden_states=states if output_hidden_states else None)


class BiMambaForMaskedLM(Head, MambaPreTrainedModel):
    """With the mixers of Mamba."""

    config_class = BiMambaConfig


class BiMamba2ForMaskedLM(Head, Mamba2PreTrainedModel):
    """With the mixers of Mamba-2."""

    config_class = BiMamba2Config


AutoModelForMaskedLM.register(BiMambaConfig, BiMambaForMaskedLM)
AutoModelForMaskedLM.register(BiMamba2Config, BiMamba2ForMaskedLM)
