"""DiffusionGemma's sampler: canvases of random tokens, one after another; each step accepts the tokens of lowest entropy.

The parts are transformers' own (temperature schedule, entropy bound, stopping rule), and the tokens equal those of its
`generate` with the same seed. At each step a token is drawn for every position. Those of lowest entropy are accepted, as
long as the sum of their entropies stays within a bound; all other positions get a new random token. The canvas is finished
when the most probable tokens no longer change and are certain, and these are what it becomes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from floatlens.decode.blocks import BlockSettings, block_step, check_alone
from floatlens.decode.draws import Draws
from floatlens.decode.network import ForwardPass, Network
from floatlens.decode.registry import register_sampler
from floatlens.decode.settings import check_whole
from floatlens.decode.special_tokens import SpecialTokens
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError

STEPS = 48  # transformers' default number of denoising steps per canvas


@dataclass(frozen=True)
class DiffusionGemmaSettings(BlockSettings):
    """Settings of DiffusionGemma's sampler, with transformers' names and defaults; `block_length` is the canvas length.

    steps_per_block       the largest number of denoising steps per canvas (48)
    entropy_bound         bound on the summed entropy of the tokens that a step accepts
    t_min, t_max          temperature at the last and at the first step; `temperature` has no meaning here
    stability_threshold   number of steps for which the most probable tokens must stay the same
    confidence_threshold  mean entropy below which a canvas that no longer changes is finished
    """

    revises: ClassVar[bool] = True

    block_length: int = 256
    entropy_bound: float = 0.1
    t_min: float = 0.4
    t_max: float = 0.8
    stability_threshold: int = 1
    confidence_threshold: float = 0.005

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self.stability_threshold, "stability_threshold", least=0)
        for name in ("entropy_bound", "confidence_threshold"):
            if getattr(self, name) <= 0:
                raise FloatLensError(f"{name} {getattr(self, name)} should be above 0")
        if not 0 < self.t_min < self.t_max:
            raise FloatLensError(f"t_min {self.t_min} should lie above 0 and below t_max {self.t_max}")
        if self.temperature:
            raise FloatLensError(
                f"temperature {self.temperature} has no meaning for DiffusionGemma; give t_min and t_max instead"
            )
        if not self.cache:
            raise FloatLensError(
                "cache False does not work for DiffusionGemma, whose decoder reads the encoder's cache"
            )

    @property
    def passes_per_block(self) -> int:
        if self.steps is None and self.steps_per_block is None:
            return STEPS
        return super().passes_per_block

    def canvas(self, prompt_length: int) -> int:
        """Number of new positions: whole canvases."""
        return self.blocks * self.block_length


@register_sampler("diffusion-gemma", DiffusionGemmaSettings, batched=False)
def sample(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    settings: DiffusionGemmaSettings,
    *,
    special: SpecialTokens,
    draws: Draws | None = None,
) -> Iterator[Step]:
    """Write canvases after a prompt, one Step per pass of the decoder; stop after a canvas that has an end token.

    A position is committed when it receives an accepted token that it did not already hold; the last step of a canvas
    commits the most probable token everywhere.
    """
    from transformers import DynamicCache
    from transformers.models.diffusion_gemma import generation_diffusion_gemma as own

    check_alone(ids_BP, "diffusion-gemma")
    given = draws or Draws([settings.seed])
    text, device = network.model.config.get_text_config(decoder=True), ids_BP.device
    L, most = settings.block_length, settings.passes_per_block
    bound = own.EntropyBoundSamplerConfig(entropy_bound=float(settings.entropy_bound))
    sampler = own.EntropyBoundSampler(bound, L, text.vocab_size, most)
    sampler.initialize_canvas = lambda batch_size, device: given.integers(0, text.vocab_size, (1, L)).to(device)
    cool = own.LinearTemperatureScheduleLogitsProcessor(settings.t_min, settings.t_max, most)
    finished = own.StableAndConfidentStoppingCriteria(settings.stability_threshold, settings.confidence_threshold)
    dtype = network.model.get_input_embeddings().weight.dtype
    ends = torch.tensor(special.end_ids, dtype=torch.long, device=device)
    cache, x_BT, encoded, index = DynamicCache(config=text), ids_BP, 0, 0

    for _ in range(settings.blocks):
        first = x_BT.shape[1]
        with network.running(ForwardPass(x_BT, encoded, range(0), range(encoded, first))) as model:
            positions_BQ = torch.arange(encoded, first, device=device)[None]
            model.model.encoder(input_ids=x_BT[:, encoded:], past_key_values=cache, position_ids=positions_BQ)
        encoded, conditioning_BLV = first, None
        finished.reset()
        canvas_BL = sampler.initialize_canvas(1, device)
        held_BL = torch.zeros_like(canvas_BL, dtype=torch.bool)  # accepted at the step before
        positions_BL = torch.arange(first, first + L, device=device)[None]
        for left in range(most, 0, -1):
            seen_BT = torch.cat([x_BT, canvas_BL], 1)
            with network.running(ForwardPass(seen_BT, first, range(first, first + L), range(0))) as model:
                logits_BLV = model(
                    decoder_input_ids=canvas_BL,
                    past_key_values=cache,
                    self_conditioning_logits=conditioning_BLV,
                    decoder_position_ids=positions_BL,
                ).logits
            steps_left = torch.tensor(
                left, device=device, dtype=torch.int32
            )  # as transformers: it decides the rounding
            logits_BLV = cool(x_BT, logits_BLV, cur_step=steps_left)
            probs_BLV = logits_BLV.softmax(-1, dtype=torch.float32)
            drawn_BL = given.choose(0, probs_BLV[0])[:, 0][None].to(device)
            best_BL = logits_BLV.argmax(-1)
            accepted_BL = sampler.accept_canvas(canvas_BL, drawn_BL, logits_BLV, steps_left)
            following_BL, chosen_BL = sampler.renoise_canvas(accepted_BL, steps_left), sampler.accepted_token_mask
            last = bool(finished(best_BL, logits_BLV).all()) or left == 1
            if last:
                following_BL, chosen_BL = best_BL, torch.ones_like(chosen_BL)
            probability_BL = probs_BLV.gather(-1, following_BL[..., None])[..., 0].masked_fill(~chosen_BL, torch.nan)
            new_BL = chosen_BL & ~(held_BL & (following_BL == canvas_BL))
            step = block_step(index, seen_BT, first, following_BL, torch.ones_like(chosen_BL), probability_BL)
            step.committed_BT[:, first:] = new_BL  # the other positions were written too, with noise
            yield step
            index += 1
            held_BL, canvas_BL, conditioning_BLV = chosen_BL, following_BL, logits_BLV.to(dtype)
            if last:
                break
        x_BT = torch.cat([x_BT, canvas_BL], 1)
        if bool(torch.isin(canvas_BL, ends).any()):
            return
