"""DiffusionGemma's sampler: canvases of random tokens, one after another; each step accepts the tokens of lowest entropy.

The parts are transformers' own (temperature schedule, entropy bound, stopping rule), and the tokens equal those of its
`generate` with the same seed. At each step a token is drawn for every position. Those of lowest entropy are accepted, as
long as the sum of their entropies stays within a bound; all other positions get a new random token. The canvas is finished
when the most probable tokens no longer change and are certain; these tokens are then kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from floatlens.decode.blocks import Blocks
from floatlens.decode.network import ForwardPass, Passes
from floatlens.decode.sampler import ABOVE_0, AT_LEAST_0, AT_LEAST_1, Sampler, register_sampler, setting
from floatlens.decode.step import Step, write_step
from floatlens.errors import FloatLensError

STEPS = 48  # transformers' default number of denoising steps per canvas


@register_sampler("diffusion-gemma")
@dataclass(frozen=True)
class DiffusionGemma(Blocks):
    """DiffusionGemma's sampler, with transformers' names and defaults; `block_length` is the canvas length.

    Stops after a canvas that has an end token. A position is committed when it receives an accepted token that it did not
    already hold; the last step of a canvas commits the most probable token everywhere.
    """

    run = Sampler.run  # there is no mask that hides a token of a given text
    batched: ClassVar[bool] = False
    revises: ClassVar[bool] = True

    block_length: int = setting(256, "Tokens per canvas.", AT_LEAST_1)
    entropy_bound: float = setting(0.1, "Bound on the summed entropy of the tokens that a step accepts.", ABOVE_0)
    t_min: float = setting(0.4, "Temperature at the last step of a canvas.", ABOVE_0)
    t_max: float = setting(0.8, "Temperature at the first step of a canvas.", ABOVE_0)
    stability_threshold: int = setting(1, "Steps for which the most probable tokens must stay the same.", AT_LEAST_0)
    confidence_threshold: float = setting(
        0.005, "Mean entropy below which a canvas that no longer changes is finished.", ABOVE_0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.t_min >= self.t_max:
            raise FloatLensError(f"t_min {self.t_min} should be below t_max {self.t_max}")
        if self.temperature:
            raise FloatLensError(
                f"temperature {self.temperature} is not used by DiffusionGemma; pass t_min and t_max instead"
            )

    @property
    def passes_per_block(self) -> int:
        if self.steps is None and self.steps_per_block is None:
            return STEPS
        return super().passes_per_block

    def canvas(self, prompt_length: int) -> int:
        """Number of new positions: whole canvases."""
        return self.blocks * self.block_length

    def sample(self, passes: Passes) -> Iterator[Step]:
        from transformers.models.diffusion_gemma import generation_diffusion_gemma as own

        given, x_BT, index = passes.draws, passes.ids_BP, 0
        text, device = passes.model.config.get_text_config(decoder=True), x_BT.device
        L, most = self.block_length, self.passes_per_block
        bound = own.EntropyBoundSamplerConfig(entropy_bound=float(self.entropy_bound))
        sampler = own.EntropyBoundSampler(bound, L, text.vocab_size, most)
        sampler.initialize_canvas = lambda batch_size, device: torch.randint(
            text.vocab_size, (1, L), generator=given.generators[0]
        ).to(device)
        cool = own.LinearTemperatureScheduleLogitsProcessor(self.t_min, self.t_max, most)
        finished = own.StableAndConfidentStoppingCriteria(self.stability_threshold, self.confidence_threshold)

        for _ in range(self.blocks):
            first = x_BT.shape[1]
            encode(passes, x_BT)
            finished.reset()
            logits_BLV = None
            canvas_BL = sampler.initialize_canvas(1, device)
            held_BL = torch.zeros_like(canvas_BL, dtype=torch.bool)  # accepted at the previous step
            for left in range(most, 0, -1):
                seen_BT = torch.cat([x_BT, canvas_BL], 1)
                steps_left = torch.tensor(left, device=device, dtype=torch.int32)  # the dtype affects rounding
                logits_BLV = cool(x_BT, decode(passes, seen_BT, logits_BLV), cur_step=steps_left)
                probs_BLV = logits_BLV.softmax(-1, dtype=torch.float32)
                drawn_BL = given.choose(0, probs_BLV[0])[:, 0][None].to(device)
                best_BL = logits_BLV.argmax(-1)
                accepted_BL = sampler.accept_canvas(canvas_BL, drawn_BL, logits_BLV, steps_left)
                following_BL, chosen_BL = sampler.renoise_canvas(accepted_BL, steps_left), sampler.accepted_token_mask
                last = bool(finished(best_BL, logits_BLV).all()) or left == 1
                if last:
                    following_BL, chosen_BL = best_BL, torch.ones_like(chosen_BL)
                probability_BL = probs_BLV.gather(-1, following_BL[..., None])[..., 0].masked_fill(
                    ~chosen_BL, torch.nan
                )
                new_BL = chosen_BL & ~(held_BL & (following_BL == canvas_BL))
                everywhere_BL, active = torch.ones_like(chosen_BL), range(first, first + L)
                step = write_step(index, seen_BT, first, following_BL, everywhere_BL, probability_BL, active=active)
                step.committed_BT[:, first:] = new_BL  # the other positions also changed, to random tokens
                yield step
                index += 1
                held_BL, canvas_BL = chosen_BL, following_BL
                if last:
                    break
            x_BT = torch.cat([x_BT, canvas_BL], 1)
            if bool(torch.isin(canvas_BL, passes.end_ids).any()):
                return


def encode(passes: Passes, x_BT: torch.Tensor) -> None:
    """Have the encoder read the tokens that are not in the cache yet, before a new canvas."""
    from transformers import DynamicCache

    done = range(passes.final, x_BT.shape[1])
    if passes.cache is None:
        passes.cache = DynamicCache(config=passes.model.config.get_text_config(decoder=True))
    with passes.running(ForwardPass(x_BT, done.start, range(0), done)) as model:
        positions_BQ = torch.arange(done.start, done.stop, device=x_BT.device)[None]
        model.model.encoder(input_ids=x_BT[:, done.start :], past_key_values=passes.cache, position_ids=positions_BQ)
    passes.final = done.stop


def decode(passes: Passes, seen_BT: torch.Tensor, conditioning_BLV: torch.Tensor | None) -> torch.Tensor:
    """Logits (B, L, V) of the canvas after the encoded tokens, given those of the pass before it over this canvas."""
    first, end = passes.final, seen_BT.shape[1]
    if conditioning_BLV is not None:
        conditioning_BLV = conditioning_BLV.to(passes.model.get_input_embeddings().weight.dtype)
    with passes.running(ForwardPass(seen_BT, first, range(first, end), range(0))) as model:
        logits_BLV: torch.Tensor = model(
            decoder_input_ids=seen_BT[:, first:],
            past_key_values=passes.cache,
            self_conditioning_logits=conditioning_BLV,
            decoder_position_ids=torch.arange(first, end, device=seen_BT.device)[None],
        ).logits
    return logits_BLV
