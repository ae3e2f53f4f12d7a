"""The canvas sampler: a prompt read by the unchanged model, a canvas denoised with the adapter.

The expected tokens come from a loop without cache, hooks or adapter: one model with the base's weights and one with the
merged weights run side by side, layer by layer, under one explicit mask.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import floatlens as fl
from tests.models import checkpoints

pytest.importorskip("peft")
from tests.models import adapters

NEW, MASK = 8, checkpoints.MASK
PROMPT, SHORT = list(range(3, 16)), [40, 7, 22, 9]
MATRICES = ["attention", "queries", "keys"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = checkpoints.native(tmp_path_factory.mktemp("base"), "llama")
    checkpoints.edit_config(base, mask_token_id=MASK)
    adapter = adapters.random_adapter(base, tmp_path_factory.mktemp("adapter"))
    adapters.add_mask(adapter)
    return base, adapter


@pytest.fixture(scope="module")
def lens(folders: tuple[Path, Path]) -> fl.Lens:
    base, adapter = folders
    return fl.load(str(base), adapter=adapter, family="canvas", dtype="float32")


def test_an_ablation_runs_the_passes_of_the_canvas(lens: fl.Lens) -> None:
    from floatlens.evaluation.ablate import replay

    settings = lens.settings(max_new_tokens=NEW)
    batch = lens._batch(lens._prompts([PROMPT, SHORT]), settings)
    with lens.intervene("mask-positions(positions=1)"):
        steps = list(lens.steps(batch, settings))
        again = list(replay(lens, batch, settings, [step.tokens_BT for step in steps]))
    for step, (first, logits_BNV) in zip(steps, again, strict=True):
        for row, column in step.committed_BT.nonzero().tolist():
            said = logits_BNV[row, column - first].softmax(-1)[step.after_BT[row, column]]
            assert float(said) == pytest.approx(float(step.confidence_BT[row, column]), abs=1e-5)


class ByHand:
    """Rows of the prompt but its last through the base, the others through the merged weights."""

    def __init__(self, base: Path, adapter: Path) -> None:
        import peft
        from safetensors.torch import load_file

        self.base = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
        other = transformers.AutoModelForCausalLM.from_pretrained(base)
        self.merged = peft.PeftModel.from_pretrained(other, adapter).merge_and_unload().eval()
        self.vector = load_file(adapter / "mask.safetensors")["mask"]

    @torch.no_grad()
    def run(self, ids: list[int], prompt: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (T, V) of all rows, and weights (L, H, T, T)."""
        T, first = len(ids), prompt - 1
        ids_T = torch.tensor(ids)
        x_TW = torch.where((ids_T == MASK)[:, None], self.vector, self.base.model.embed_tokens.weight[ids_T])
        rotary = self.base.model.rotary_emb(x_TW[None], torch.arange(T)[None])
        visible_TT = torch.ones(T, T, dtype=torch.bool).tril()
        visible_TT[first:] = True

        def rows(i: int, name: str, x: torch.Tensor) -> torch.Tensor:
            parts = (
                model.get_submodule(f"model.layers.{i}.{name}")(part)
                for model, part in ((self.base, x[:first]), (self.merged, x[first:]))
            )
            return torch.cat(list(parts))

        seen = []
        for i in range(checkpoints.SIZES["num_hidden_layers"]):
            normed = rows(i, "input_layernorm", x_TW)
            q, k, v = (
                rows(i, f"self_attn.{name}", normed).view(1, T, -1, 8).transpose(1, 2)
                for name in ("q_proj", "k_proj", "v_proj")
            )
            q, k = apply_rotary_pos_emb(q, k, *rotary)
            k, v = (part.repeat_interleave(2, 1) for part in (k, v))
            weights = (q @ k.transpose(2, 3) * 8**-0.5).masked_fill(~visible_TT, -torch.inf).softmax(-1)
            seen.append(weights[0])
            mixed_TW = (weights @ v)[0].transpose(0, 1).reshape(T, -1)
            x_TW = x_TW + rows(i, "self_attn.o_proj", mixed_TW)
            x_TW = x_TW + rows(i, "mlp", rows(i, "post_attention_layernorm", x_TW))
        return self.base.lm_head(self.base.model.norm(x_TW)), torch.stack(seen)

    def generate(self, prompt: list[int]) -> tuple[list[int], list[int], list[torch.Tensor]]:
        """Tokens, the step of each, and the weights of each step: one token per step, the lowest entropy first."""
        ids, order, seen = [*prompt, *[MASK] * NEW], [-1] * NEW, []
        for step in range(NEW):
            logits_TV, weights = self.run(ids, len(prompt))
            seen.append(weights)
            left = [n for n in range(NEW) if order[n] < 0]
            probs = logits_TV[[len(prompt) + n - 1 for n in left]].softmax(-1)
            best = int((-(probs * probs.log()).sum(-1)).argmin())
            ids[len(prompt) + left[best]] = int(probs[best].argmax())
            order[left[best]] = step
        return ids[len(prompt) :], order, seen


@pytest.fixture(scope="module")
def by_hand(folders: tuple[Path, Path]) -> ByHand:
    return ByHand(*folders)


@pytest.mark.parametrize("prompt", [PROMPT, SHORT, [5]], ids=["long", "short", "one token"])
def test_it_writes_what_the_loop_by_hand_writes(lens: fl.Lens, by_hand: ByHand, prompt: list[int]) -> None:
    tokens, order, seen = by_hand.generate(prompt)
    trace = lens.trace(prompt, max_new_tokens=NEW)
    assert trace.final_tokens[len(prompt) :].tolist() == tokens
    assert trace.data["committed_at"].values[len(prompt) :].tolist() == order
    for step, weights in enumerate(seen):  # the rows of a step are those of the canvas
        expected = weights[:, :, len(prompt) - 1 :].mean(2).numpy()
        np.testing.assert_allclose(trace.data["received"].sel(step=step), expected, atol=2e-6)
        if len(prompt) > 1:
            first = len(prompt) - 1
            final = weights[:, :, :first, :first].mean(2).numpy()
            np.testing.assert_allclose(trace.data["received_final"].sel(step=step)[..., :first], final, atol=2e-6)


def test_fewer_steps_commit_several_tokens_each_the_larger_shares_first(lens: fl.Lens) -> None:
    trace = lens.trace(PROMPT, max_new_tokens=NEW, steps=3)
    steps = trace.data["committed_at"].values[len(PROMPT) :]
    assert np.bincount(steps).tolist() == [3, 3, 2]


def test_the_prompt_is_read_by_the_unchanged_model(lens: fl.Lens, folders: tuple[Path, Path]) -> None:
    """Its rows attend as those of the base do, and the adapter is on again afterwards."""
    final = lens.trace(PROMPT, max_new_tokens=2).data["received_final"].isel(step=0).values
    base = fl.load(str(folders[0]), dtype="float32").trace(PROMPT[:-1], max_new_tokens=1).data["received"]
    np.testing.assert_allclose(final[..., : len(PROMPT) - 1], base.isel(step=0)[..., : len(PROMPT) - 1], atol=2e-6)
    assert not any(layer.disable_adapters for layer in lens.model.modules() if hasattr(layer, "base_layer"))


def test_a_batch_writes_and_shows_what_its_rows_do_alone(lens: fl.Lens) -> None:
    together = lens.traces([PROMPT, SHORT], max_new_tokens=NEW, matrices=MATRICES)
    for prompt, trace in zip((PROMPT, SHORT), together, strict=True):
        alone = lens.trace(prompt, max_new_tokens=NEW, matrices=MATRICES)
        assert trace.final_tokens.tolist() == alone.final_tokens.tolist()
        for name in alone.data.data_vars:
            np.testing.assert_allclose(trace.data[name], alone.data[name], atol=1e-5, rtol=1e-4, err_msg=str(name))


def test_every_statistic_equals_its_exact_definition(lens: fl.Lens) -> None:
    prompt = lens._prompts([PROMPT])[0]
    stream, exact = (
        lens.trace(prompt, max_new_tokens=NEW, matrices=MATRICES, implementation=way) for way in ("stream", "exact")
    )
    for name in stream.data.data_vars:
        np.testing.assert_allclose(stream.data[name], exact.data[name], atol=1e-5, rtol=1e-4, err_msg=str(name))


def test_tracing_changes_no_token(lens: fl.Lens) -> None:
    plain = lens.generate([PROMPT, SHORT], max_new_tokens=NEW)
    for made, trace in zip(plain, lens.traces([PROMPT, SHORT], max_new_tokens=NEW), strict=True):
        written = trace.final_tokens[trace.prompt_length :].tolist()
        assert written[: len(made.ids)] == made.ids


def test_a_seeded_draw_is_repeated_in_any_batch(lens: fl.Lens) -> None:
    options: dict[str, Any] = {"max_new_tokens": NEW, "temperature": 1.0, "seed": 5}
    assert lens.generate([SHORT, PROMPT], sampler=options)[1].ids == lens.generate([PROMPT], sampler=options)[0].ids


@pytest.mark.parametrize("positions", [[2], [len(PROMPT) + 3]], ids=["of the prompt", "of the canvas"])
def test_what_is_masked_receives_nothing_from_the_canvas(lens: fl.Lens, positions: list[int]) -> None:
    with lens.intervene(f"mask-positions(positions={positions})"):
        received = lens.trace(PROMPT, max_new_tokens=NEW).data["received"].values
    assert not received[..., positions].any() and received[..., 0].all()


def test_the_anchors_that_are_masked_are_those_of_the_canvas_rows(lens: fl.Lens) -> None:
    with lens.intervene("mask-anchors(top(2), layers=0)"):
        masked = lens.trace(PROMPT, max_new_tokens=NEW)
    plain = lens.trace(PROMPT, max_new_tokens=NEW).anchors("top(2)").isel(step=0, layer=0)
    nothing = (masked.data["received"].isel(step=0, layer=0) == 0).all("head")
    np.testing.assert_array_equal(np.flatnonzero(nothing), np.flatnonzero(plain))


def test_a_measure_that_is_not_known_is_refused(lens: fl.Lens) -> None:
    with pytest.raises(fl.FloatLensError, match="unknown alg 'origin'; use one of entropy, maskgit_plus"):
        lens.settings(sampler={"alg": "origin"})
