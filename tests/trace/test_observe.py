"""`observe`: a trace of the user's own loop equals the trace of the lens, and eager attention."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import floatlens
from floatlens import FloatLensError
from tests.models import checkpoints

QUESTION, PASSAGES = "Where was Ada born?", ["Ada was born in Rome.", "Bob lives in Oslo."]
FACTS = ("prompt_length", "regions", "gold", "kind", "attention", "output", "vocabulary", "n_layers", "n_heads")


@pytest.fixture(scope="module", params=["tiny-mdm", "tiny-dream", "tiny-arm"])
def lens(request: pytest.FixtureRequest) -> floatlens.Lens:
    return floatlens.load(request.param)


@pytest.fixture(scope="module")
def mdm() -> floatlens.Lens:
    return floatlens.load("tiny-mdm")


@pytest.fixture(scope="module")
def arm() -> floatlens.Lens:
    return floatlens.load("tiny-arm")


def assert_same(
    found: floatlens.Trace, wanted: floatlens.Trace, facts: tuple[str, ...] = FACTS, atol: float = 1e-6
) -> None:
    """Every variable to 1e-6 of its largest value, and what is said of the run."""
    assert set(found.data.data_vars) == set(wanted.data.data_vars)
    for name in wanted.data.data_vars:
        one, other = found.data[name].values.astype(float), wanted.data[name].values.astype(float)
        scale = max(1.0, float(np.nanmax(np.abs(other), initial=0.0)))
        np.testing.assert_allclose(one / scale, other / scale, atol=atol, rtol=0, err_msg=str(name))
    for name in facts:
        assert found.data.attrs[name] == wanted.data.attrs[name], name


def received(matrix_HQT: torch.Tensor) -> np.ndarray[Any, Any]:
    return matrix_HQT.mean(1).numpy()


# --- the same as a lens ------------------------------------------------------------------------------------------------


def test_the_familys_own_sampler_gives_the_trace_of_the_lens(lens: floatlens.Lens) -> None:
    prompt = lens.prompt(QUESTION, PASSAGES, gold=0)
    with floatlens.observe(lens, regions=prompt) as watch:
        lens.generate(prompt, max_new_tokens=5)
    assert_same(watch.trace(), lens.trace(prompt, max_new_tokens=5))


BLOCKS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "sdar": (checkpoints.sdar, {}, {"confidence_threshold": 0.3, "max_new_tokens": 10}),
    "llada2": (checkpoints.llada2, {}, {"threshold": 0.3, "max_new_tokens": 10, "block_length": 4}),
    "a2d-block": (checkpoints.a2d, {"family": "a2d-block", "block_length": 4}, {"max_new_tokens": 10, "steps": 6}),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_sampler_of_a_block_model_gives_the_trace_of_the_lens(name: str, tmp_path: Path) -> None:
    """Its cache is filled by passes that are no steps, and its blocks are computed again and again."""
    make, options, settings = BLOCKS[name]
    lens, ids = floatlens.load(str(make(tmp_path / "model")), dtype="float32", **options), list(range(3, 16))
    with floatlens.observe(lens) as watch:
        lens.generate([ids], sampler=settings)
    assert_same(watch.trace(), lens.trace(ids, sampler=settings), ("prompt_length", "regions", "kind", "attention"))


def test_rows_of_a_padded_batch_give_the_traces_of_the_lens(lens: floatlens.Lens) -> None:
    prompts = [lens.prompt(QUESTION, PASSAGES, gold=0), lens.prompt("Who?")]
    with floatlens.observe(lens, regions=prompts) as watch:
        lens.generate(prompts, max_new_tokens=4)
    for found, wanted in zip(watch.traces(), lens.traces(prompts, max_new_tokens=4), strict=True):
        assert_same(found, wanted)


def test_lladas_published_loop_gives_the_trace_of_the_lens(mdm: floatlens.Lens) -> None:
    """The loop of LLaDA's generate.py: the most confident predictions replace masks, a block after another."""
    prompt, mask_id, new, block = mdm.prompt(QUESTION, PASSAGES, gold=0), mdm.mask_id, 6, 3
    with floatlens.observe(mdm.model, tokenizer=mdm.tokenizer, regions=prompt) as watch, torch.no_grad():
        x = torch.full((1, len(prompt) + new), mask_id)
        x[:, : len(prompt)] = torch.tensor(prompt.ids)
        for number in range(new // block):
            end = len(prompt) + (number + 1) * block
            for _ in range(block):
                logits = mdm.model(x).logits
                x0 = logits.argmax(-1)
                confidence = logits.softmax(-1).gather(-1, x0[..., None])[..., 0]
                confidence[:, end:] = -torch.inf
                confidence = torch.where(x == mask_id, confidence, -torch.inf)
                chosen = confidence[0].topk(1).indices
                x[0, chosen] = x0[0, chosen]  # in place, as the published code does
    assert_same(watch.trace(), mdm.trace(prompt, max_new_tokens=new, block_length=block))
    assert_same(watch.trace(output=x), mdm.trace(prompt, max_new_tokens=new, block_length=block))


def test_dreams_published_loop_gives_the_trace_of_the_lens() -> None:
    """The loop of Dream's generation_utils.py: row j - 1 writes position j, and certainty is negative entropy."""
    lens = floatlens.load("tiny-dream")
    prompt, mask_id, new, steps, eps = lens.prompt(QUESTION, PASSAGES, gold=0), lens.mask_id, 6, 6, 1e-3
    with floatlens.observe(lens.model, tokenizer=lens.tokenizer, regions=prompt, family="dream") as watch:
        x = torch.tensor([[*prompt.ids, *[mask_id] * new]])
        times = torch.linspace(1, eps, steps + 1)
        for i in range(steps):
            masked = x == mask_id
            with torch.no_grad():
                logits = lens.model(x).logits
            logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)[masked]
            probability = logits.softmax(-1)
            x0 = probability.max(-1).indices
            certainty = torch.sum(probability * torch.log(probability + 1e-10), dim=-1)
            count = int(masked.sum() * (1 - times[i + 1] / times[i])) if i < steps - 1 else int(masked.sum())
            if count > 0:
                places = masked[0].nonzero()[:, 0][certainty.topk(count).indices]
                x[0, places] = x0[certainty.topk(count).indices]
    assert_same(watch.trace(), lens.trace(prompt, max_new_tokens=new, steps=steps, sampler={"alg": "entropy"}))


@pytest.mark.parametrize("options", [{}, {"use_cache": False}, {"cache_implementation": "static"}])
def test_generate_with_any_cache_gives_the_trace_of_the_lens(arm: floatlens.Lens, options: dict[str, Any]) -> None:
    prompt = arm.prompt(QUESTION, PASSAGES, gold=0)
    with floatlens.observe(arm.model, tokenizer=arm.tokenizer, regions=prompt) as watch:
        arm.model.generate(torch.tensor([prompt.ids]), max_new_tokens=5, do_sample=False, **options)
    trace = watch.trace()
    assert trace.cached == options.get("use_cache", True)
    assert_same(trace, arm.trace(prompt, max_new_tokens=5))


# --- eager attention ---------------------------------------------------------------------------------------------------


def tiny(name: str, **fields: Any) -> Any:
    """A tiny random model with eager attention."""
    torch.manual_seed(0)
    kind, known = checkpoints.NATIVE[name]
    config = getattr(transformers, kind)(**known, **fields)
    auto = transformers.AutoModelForMaskedLM if name in checkpoints.MASKED else transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="eager").eval()
    checkpoints.roughen(model)
    return model


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_sliding_window_in_any_cache_is_measured_as_eager_attention(cache: str) -> None:
    model, ids = tiny("mistral-window"), torch.tensor([list(range(5, 15))])
    model.generation_config.eos_token_id = None
    with floatlens.observe(model, ["received", "entropy"]) as watch:
        written = model.generate(ids, max_new_tokens=6, do_sample=False, cache_implementation=cache)
    trace = watch.trace()
    assert trace.final_tokens.tolist() == written[0].tolist()
    with torch.no_grad():
        matrices = model(written[:, :-1], output_attentions=True).attentions
    last = trace.data["received"].isel(step=-1).values[..., :-1]
    for layer, matrix in enumerate(matrices):
        np.testing.assert_allclose(last[layer], received(matrix[0]), atol=1e-6)


def test_a_sampled_token_has_the_probability_that_it_was_drawn_with() -> None:
    model, ids = tiny("llama"), torch.tensor([list(range(5, 15))])
    model.generation_config.eos_token_id = None
    torch.manual_seed(3)
    with floatlens.observe(model, ["received"]) as watch:
        written = model.generate(ids, max_new_tokens=4, do_sample=True, top_k=0)
    trace = watch.trace()
    with torch.no_grad():
        wanted = model(written).logits[0, 9:-1].softmax(-1).gather(-1, written[0, 10:, None])[:, 0]
    found = [float(trace.data["confidence"][step, 10 + step]) for step in range(4)]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert trace.data["committed_at"].values[10:].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_an_encoder_is_left_out(side: str) -> None:
    """One pass of BERT over two sentences of different lengths: the shorter is measured as if it were alone."""
    model, short, long = tiny("bert"), [5, 6, checkpoints.MASK, 8], [9, 10, 11, checkpoints.MASK, 13, 14, 15]
    pads = [0] * 3
    row = pads + short if side == "left" else short + pads
    mask = torch.tensor([[int(i > 0) for i in row], [1] * 7])
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    with floatlens.observe(model, mask_id=checkpoints.MASK) as watch, torch.no_grad():
        model(torch.tensor([row, long]), attention_mask=mask, position_ids=positions)
    found = watch.trace(0)
    with torch.no_grad():
        alone = model(torch.tensor([short]), output_attentions=True)
    for layer, matrix in enumerate(alone.attentions):
        np.testing.assert_allclose(found.data["received"].values[0, layer], received(matrix[0]), atol=1e-6)
    assert (found.kind, found.attention_kind, found.prompt_length) == ("mdm", "bidirectional", 2)
    assert found.final_tokens[2] == int(alone.logits[0, 2].argmax())
    assert found.data["committed_at"].values.tolist() == [-1, -1, 0, -1]


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_an_encoder_decoder_model_has_three_kinds_of_attention(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "bart":
        sizes = {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in SIDES.items()}
        config: Any = transformers.BartConfig(vocab_size=64, d_model=32, max_position_embeddings=64, **sizes, **TOKENS)
        model: Any = transformers.BartForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    else:
        config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, **TOKENS)
        model = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    checkpoints.roughen(model)
    model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    source = torch.tensor([list(range(5, 14))])
    with floatlens.observe(model) as watch:
        written = model.generate(source, max_new_tokens=4, do_sample=False, num_beams=1)
    trace, encoder = watch.trace(), watch.encoder_trace()
    with torch.no_grad():
        eager = model(source, decoder_input_ids=written[:, :-1], output_attentions=True)
    assert trace.final_tokens.tolist() == written[0].tolist()
    assert encoder.data["tokens"].values.tolist() == source.tolist()
    last = trace.data.isel(step=-1)
    for layer in range(2):
        own, cross = eager.decoder_attentions[layer][0], eager.cross_attentions[layer][0]
        np.testing.assert_allclose(last["received"].values[layer][:, :-1], received(own), atol=1e-5)
        np.testing.assert_allclose(last["cross_received"].values[layer], cross[:, -1].numpy(), atol=1e-5)
        wanted = received(eager.encoder_attentions[layer][0])
        np.testing.assert_allclose(encoder.data["received"].values[0, layer], wanted, atol=1e-6)


SIDES = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}


# --- torch's own modules -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_multihead_attention_is_observed_in_both_of_its_paths(need_weights: bool, batch_first: bool) -> None:
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(16, 4, batch_first=batch_first).eval()
    x = torch.randn(2, 6, 16)
    x = x if batch_first else x.transpose(0, 1)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    with torch.no_grad():
        plain, weights = attention(x, x, x, key_padding_mask=padding, average_attn_weights=False)
        with floatlens.observe(attention, ["received"]) as watch:
            seen, _ = attention(x, x, x, key_padding_mask=padding, need_weights=need_weights)
    torch.testing.assert_close(plain, seen)
    found = watch.results["received"][0]
    torch.testing.assert_close(found[0], weights[0].mean(1))
    torch.testing.assert_close(found[1, :, :4], weights[1, :, :4, :4].mean(1))
    assert float(found[1, :, 4:].abs().max()) == 0.0


def test_cross_attention_of_torch_is_kept_apart() -> None:
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x, memory = torch.randn(1, 3, 16), torch.randn(1, 5, 16)
    with torch.no_grad(), floatlens.observe(attention, ["received"]) as watch:
        _, weights = attention(x, memory, memory, average_attn_weights=False)
    torch.testing.assert_close(watch.cross["received"][0], weights.mean(2))
    assert watch.results["received"] == {}


def test_the_padding_of_torchs_encoder_is_left_out_and_its_fast_path_does_not_hide_it() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 6, 16)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    with torch.no_grad(), floatlens.observe(model) as watch:
        model(x, src_key_padding_mask=padding)
        model(x[1:, :4])
    together, alone = watch.steps[0].results, watch.steps[1].results
    for name in ("received", "qk", "qk_norm", "qk_cos"):
        for number in (0, 1):
            torch.testing.assert_close(together[name][number][1, :, :4], alone[name][number][0], msg=name)
    torch.testing.assert_close(together["entropy"][1][1], alone["entropy"][1][0])


def test_torchs_transformer_has_three_kinds_of_attention() -> None:
    torch.manual_seed(0)
    model = torch.nn.Transformer(16, 4, 2, 2, 32, batch_first=True).eval()
    source, target = torch.randn(1, 5, 16), torch.randn(1, 5, 16)
    kept: dict[int, torch.Tensor] = {}
    causal = model.generate_square_subsequent_mask(5)
    with torch.no_grad(), floatlens.observe(model, ["received"]) as watch:
        model(source, target, tgt_mask=causal, tgt_is_causal=True)
    with torch.no_grad():
        memory, x = model.encoder(source), target
        for number, layer in enumerate(model.decoder.layers):
            y = layer.norm1(x + layer.self_attn(x, x, x, attn_mask=causal)[0])
            _, kept[number] = layer.multihead_attn(y, memory, memory, average_attn_weights=False)
            x = layer(x, memory, tgt_mask=causal)
    assert {len(found) for found in (watch.results["received"], watch.cross["received"])} == {2}
    assert set(watch.encoder[-1].results["received"]) == {0, 1}
    for number in (0, 1):
        torch.testing.assert_close(watch.cross["received"][number], kept[number].mean(2))
    assert float(watch.results["received"][0][0, :, 0].min()) > 1 / 5  # row 0 of a causal mask sees only itself


# --- what is kept, and what is refused ---------------------------------------------------------------------------------


def test_findings_explorer_and_storage_take_the_trace_of_an_own_loop(mdm: floatlens.Lens, tmp_path: Any) -> None:
    from floatlens.explorer.film import film

    prompt = mdm.prompt(QUESTION, PASSAGES, gold=0)
    with floatlens.observe(mdm.model, tokenizer=mdm.tokenizer, regions=prompt) as watch:
        mdm.generate(prompt, max_new_tokens=6)
    trace = watch.trace(sample_id="mine")
    wanted = mdm.trace(prompt, max_new_tokens=6)
    again = floatlens.Trace.open(trace.save(tmp_path / "mine", dtype="float32"))
    for finding in (floatlens.findings.absorption, floatlens.findings.drift):
        one, other = finding.measure([again]), finding.measure([wanted])
        assert set(one.data_vars) == set(other.data_vars)
        for name, values in other.data_vars.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(one[name], values, atol=1e-4, err_msg=str(name))
    assert film(trace)


def test_every_generation_in_the_block_has_its_own_trace(arm: floatlens.Lens) -> None:
    prompts = [arm.prompt(QUESTION), arm.prompt("Who?")]
    with floatlens.observe(arm) as watch:
        for prompt in prompts:
            arm.model.generate(torch.tensor([prompt.ids]), max_new_tokens=3, do_sample=False)
    for number, prompt in enumerate(prompts):
        assert watch.trace(generation=number).final_tokens[: len(prompt)].tolist() == prompt.ids
    with pytest.raises(FloatLensError, match="generation 2 does not exist; 2 were observed"):
        watch.trace(generation=2)


def test_generate_in_another_thread_is_observed(arm: floatlens.Lens) -> None:
    """Transformers' text streamers want it so."""
    ids = torch.tensor([arm.prompt(QUESTION).ids])
    with floatlens.observe(arm) as watch:
        thread = threading.Thread(
            target=arm.model.generate, args=(ids,), kwargs={"max_new_tokens": 3, "min_new_tokens": 3}
        )
        thread.start()
        thread.join()
    assert len(watch.steps) == 3
    assert watch.trace().data["received"].notnull().any()


def test_beam_search_and_embeddings_have_no_trace(arm: floatlens.Lens) -> None:
    ids = torch.tensor([arm.prompt(QUESTION).ids])
    with floatlens.observe(arm) as watch:
        arm.model.generate(ids, max_new_tokens=2, num_beams=2)
    with pytest.raises(FloatLensError, match="beam search with 2 beams moves rows"):
        watch.trace()
    with floatlens.observe(arm, ["received"]) as watch, torch.no_grad():
        arm.model(inputs_embeds=arm.model.get_input_embeddings()(ids))
    assert watch.results["received"][0].shape[-1] == ids.shape[1]
    with pytest.raises(FloatLensError, match="not called with token ids"):
        watch.trace()


def test_a_cache_from_before_the_block_has_no_trace(arm: floatlens.Lens) -> None:
    ids = torch.tensor([arm.prompt(QUESTION).ids])
    with torch.no_grad():
        cache = arm.model(ids[:, :-1], use_cache=True).past_key_values
        with floatlens.observe(arm) as watch:
            arm.model(ids[:, -1:], past_key_values=cache)
    with pytest.raises(FloatLensError, match="the cache held .* positions that were computed before"):
        watch.trace()


def test_a_diffusion_model_without_a_known_mask_is_refused(tmp_path: Path) -> None:
    said = "family 'llada' replaces mask tokens; pass the mask token"
    with pytest.raises(FloatLensError, match=said), floatlens.observe(tiny("llama"), family="llada"):
        pass
    lens = floatlens.load(str(checkpoints.diffusion_gemma(tmp_path / "model")))
    with floatlens.observe(lens) as watch:
        lens.generate([list(range(3, 12))], max_new_tokens=8)
    with pytest.raises(FloatLensError, match="no trace of DiffusionGemma"):
        watch.trace()


def test_a_model_without_attention_is_an_error() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softmax(-1))
    said = "no attention was observed in 1 forward passes of Sequential"
    with pytest.raises(FloatLensError, match=said), floatlens.observe(model):
        model(torch.ones(1, 3, 4))


def test_the_model_is_as_before_when_the_block_ends(arm: floatlens.Lens) -> None:
    before = arm.model.config._attn_implementation
    with pytest.raises(ZeroDivisionError), floatlens.observe(arm):
        raise ZeroDivisionError
    assert arm.model.config._attn_implementation == before
    assert "generate" not in arm.model.__dict__ and not arm.model._forward_hooks and not arm.model._forward_pre_hooks


def test_a_row_that_is_padded_on_the_right_is_traced_as_if_alone(tmp_path: Path) -> None:
    """Batches of a Trainer's evaluation are padded so."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoints.native(tmp_path, "llama")).eval()
    ids = torch.tensor([[5, 9, 40, 7, 0, 0], [8, 3, 17, 4, 9, 11]])
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])
    with floatlens.observe(model) as watch, torch.no_grad():
        model(ids, attention_mask=mask)
    with floatlens.observe(model) as alone, torch.no_grad():
        model(ids[:1, :4])
    short, expected = watch.traces()[0], alone.trace()
    assert short.final_tokens.tolist() == [5, 9, 40, 7] and short.prompt_length == 4
    for name, values in expected.data.data_vars.items():
        np.testing.assert_allclose(short.data[name].values, values.values, atol=1e-5, err_msg=str(name))


# --- training, and blocks that are refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointing", [None, {"use_reentrant": False}, {"use_reentrant": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_gradients_of_an_observed_training_step_are_bit_equal(
    dtype: torch.dtype, checkpointing: dict[str, bool] | None, tmp_path: Path
) -> None:
    """Gradient checkpointing computes each layer again in the backward pass, which is no step."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoints.native(tmp_path, "llama"), dtype=dtype
    ).train()
    if checkpointing is not None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=checkpointing)
        model.enable_input_require_grads()
    ids = torch.tensor([[5, 9, 40, 7, 3], [8, 3, 17, 4, 9]])

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        for _ in range(2):
            model(ids, labels=ids, use_cache=False).loss.backward()
        return [weight.grad.clone() for weight in model.parameters()]

    plain = gradients()
    with floatlens.observe(model) as watch:
        observed = gradients()
    assert all(torch.equal(one, other) for one, other in zip(plain, observed, strict=True))
    with floatlens.observe(model) as alone, torch.no_grad():
        model.eval()(ids)
    assert len(watch.steps) == 2
    for found in watch.steps:
        for layer, values in alone.results["received"].items():
            torch.testing.assert_close(found.results["received"][layer], values, atol=1e-5, rtol=0)


def test_a_refused_pass_leaves_nothing_behind(tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoints.native(tmp_path, "llama")).eval()
    refused, ids = torch.tensor([[8, 3, 17, 4], [1, 1, 1, 1]]), torch.tensor([[5, 9, 40, 7], [6, 2, 3, 11]])
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]])
    with torch.no_grad():
        with pytest.raises(FloatLensError, match="all padding"), floatlens.observe(model):
            model(refused, attention_mask=mask)
        with floatlens.observe(model) as watch:
            model(ids)
    assert [trace.final_tokens.tolist() for trace in watch.traces()] == ids.tolist()


@pytest.mark.parametrize("given", [True, False])
def test_left_padding_is_left_out_with_a_static_cache(arm: floatlens.Lens, given: bool) -> None:
    """A static cache makes `generate` pass masks of four dims to the model; without a mask it takes the pad token's."""
    prompts = [arm.prompt(QUESTION, PASSAGES, gold=0), arm.prompt("Who?")]
    pad = next(i for i in range(10, 1000) if not any(i in prompt.ids for prompt in prompts))
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt.ids) for prompt in prompts])
    options: dict[str, Any] = {"attention_mask": (ids != pad).long()} if given else {"pad_token_id": pad}
    with floatlens.observe(arm, regions=prompts) as watch:
        arm.model.generate(ids, max_new_tokens=4, do_sample=False, cache_implementation="static", **options)
    for found, wanted in zip(watch.traces(), arm.traces(prompts, max_new_tokens=4), strict=True):
        assert_same(found, wanted)


def test_layers_that_do_not_exist_and_nested_blocks_are_refused(arm: floatlens.Lens) -> None:
    with pytest.raises(FloatLensError, match="layer -1 does not exist"), floatlens.observe(arm, layers=[-1]):
        pass
    attention = torch.nn.MultiheadAttention(8, 2)
    with pytest.raises(FloatLensError, match="layer -1 does not exist"), floatlens.observe(attention, layers=[-1]):
        pass
    with floatlens.observe(arm) as watch:
        with pytest.raises(FloatLensError, match="is already observed"), floatlens.observe(arm):
            pass
        arm.generate(QUESTION, max_new_tokens=2)
    assert watch.steps and "generate" not in arm.model.__dict__


@pytest.mark.parametrize("span", [(0, 40), (4, 4), (-1, 3)])
def test_a_region_that_the_sequence_does_not_have_is_refused(arm: floatlens.Lens, span: tuple[int, int]) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    with (
        floatlens.observe(arm.model, tokenizer=arm.tokenizer, regions={"doc": span}),
        pytest.raises(FloatLensError, match=r"region 'doc' is .* but the sequence has 5 positions"),
        torch.no_grad(),
    ):
        arm.model(ids)
