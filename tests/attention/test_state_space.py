"""Implicit attention of state-space layers: the golden numbers, the mixers' own output, and the exact path."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import AutoModelForCausalLM, JambaConfig, Mamba2Config, MambaConfig
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

import floatlens as fl
from floatlens.attention.call import PositionLayout
from floatlens.attention.hook import observing
from floatlens.attention.session import Session
from floatlens.attention.state_space import RULE, Scan, scan_of, scans_of
from floatlens.errors import FloatLensError
from floatlens.models.bimamba_network import BiMamba2Config, BiMamba2ForMaskedLM, BiMambaConfig, BiMambaForMaskedLM
from floatlens.models.describe import attention_layers
from tests import golden_blocks

STATISTICS = ("received", "entropy", "qk", "qk_norm", "qk_cos", "value_norm", "flow", "attention")
COMMON = {"hidden_size": 8, "state_size": 3, "num_hidden_layers": 2, "vocab_size": 40}
SIZES = {**COMMON, "intermediate_size": 12, "time_step_rank": 2}
SIZES2 = {**COMMON, "expand": 2, "num_heads": 4, "head_dim": 4, "n_groups": 2, "chunk_size": 4}
golden = pytest.mark.parametrize("name", golden_blocks.names("models", "mamba"))


def randomised(module: nn.Module, seed: int) -> nn.Module:
    """The module with weights that make every part of it count."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return module.eval()


def reproduced(mixer: nn.Module, u_BTD: torch.Tensor) -> torch.Tensor:
    """The output of a mixer, from implicit attention times its input."""
    scan = scan_of(mixer, u_BTD)
    alpha = scan.alpha(0, u_BTD.shape[1])
    if isinstance(mixer, MambaMixer):
        x_BTC = scan.x_BTHP[:, :, 0]
        gate = mixer.in_proj(u_BTD)[..., mixer.intermediate_size :]
        y_BTC = torch.einsum("bcij,bjc->bic", alpha, x_BTC) + mixer.D * x_BTC
        return mixer.out_proj(y_BTC * mixer.act(gate))
    y_BTHP = torch.einsum("bhij,bjhp->bihp", alpha, scan.x_BTHP) + mixer.D[:, None] * scan.x_BTHP
    return mixer.out_proj(mixer.norm(y_BTHP.flatten(2), mixer.in_proj(u_BTD)[..., : mixer.intermediate_size]))


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "mamba2 with one group"])
@torch.no_grad()
def test_implicit_attention_times_its_input_is_the_output_of_the_mixer(kind: str) -> None:
    groups = 1 if "one" in kind else 2
    mixer = (
        MambaMixer(MambaConfig(**SIZES), 0)
        if kind == "mamba"
        else Mamba2Mixer(Mamba2Config(**SIZES2 | {"n_groups": groups}), 0)
    )
    randomised(mixer, 1)
    u = torch.randn(2, 13, 8, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(reproduced(mixer, u), mixer(u), atol=1e-5, rtol=1e-5)


@golden
@torch.no_grad()
def test_golden_implicit_attention_of_every_layer(name: str) -> None:
    lens = fl.load(str(golden_blocks.path(f"models/{name}")))
    stored = golden_blocks.arrays(f"attention/{name}.npz")
    layers = sorted({int(key[5 : key.index("_")]) for key in stored if key.startswith("layer")})
    assert layers
    for layer in layers:
        mixer = lens.model.backbone.layers[layer].mixer
        u = torch.from_numpy(stored[f"layer{layer}_input"])[None]
        scan = scan_of(mixer, u)
        for part, found in (("x", scan.x_BTHP[0, :, 0]), ("dt", scan.dt_BTU[0]), ("B", scan.b_BTGN[0, :, 0])):
            np.testing.assert_allclose(found, stored[f"layer{layer}_{part}"], atol=1e-5)
        np.testing.assert_allclose(scan.alpha(0, u.shape[1])[0], stored[f"layer{layer}_alpha"], atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(exact_alpha(scan)[0], stored[f"layer{layer}_alpha"], atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(reproduced(mixer, u)[0], stored[f"layer{layer}_output"], atol=1e-5)


@golden
@torch.no_grad()
def test_golden_bidirectional_sum_of_two_mixers(name: str) -> None:
    lens = fl.load(str(golden_blocks.path(f"models/{name}")))
    stored = golden_blocks.arrays(f"attention/{name}.npz")
    sums = sorted({key.removesuffix("_input") for key in stored if key.startswith("bi_") and key.endswith("_input")})
    assert sums
    for each in sums:
        forward, backward = (lens.model.backbone.layers[int(i)].mixer for i in stored[f"{each}_layers"])
        u = torch.from_numpy(stored[f"{each}_input"])[None]
        scans = scan_of(forward, u), scan_of(backward, u, reverse=True)
        for scan, direction in zip(scans, ("forward", "backward"), strict=True):
            np.testing.assert_allclose(
                scan.alpha(0, u.shape[1])[0], stored[f"{each}_alpha_{direction}"], atol=1e-5, rtol=1e-5
            )
            np.testing.assert_allclose(scan.x_BTHP[0, :, 0], stored[f"{each}_x_{direction}"], atol=1e-5)
        output = reproduced(forward, u) + reproduced(backward, u.flip(1)).flip(1)
        np.testing.assert_allclose(output[0], stored[f"{each}_output"], atol=1e-5)


@golden
@torch.no_grad()
def test_golden_logits_and_hidden_states(name: str) -> None:
    lens = fl.load(str(golden_blocks.path(f"models/{name}")))
    stored = golden_blocks.forward(name)
    out = lens.model(torch.from_numpy(stored["input_ids"]).long()[None], output_hidden_states=True, use_cache=False)
    np.testing.assert_allclose(out.logits[0], stored["logits"], atol=3e-5)
    np.testing.assert_allclose(torch.cat(out.hidden_states), stored["hidden_states"], atol=3e-5)


def test_the_convention_by_hand() -> None:
    """Two positions, one channel: α = [[c1 b1 dt1, 0], [c2 b1 dt1 exp(a dt2), c2 b2 dt2]]."""
    one = torch.ones(1, 2, 1, 1)
    dt = torch.tensor([[[0.5], [2.0]]])
    b, c = torch.tensor([1.0, -3.0]).view(1, 2, 1, 1), torch.tensor([2.0, 1.0]).view(1, 2, 1, 1)
    scan = Scan(one, dt, torch.tensor([[-0.25]]), b, c)
    kept = 0.5 * np.exp(-0.5)
    np.testing.assert_allclose(scan.alpha(0, 2)[0, 0], [[1.0, 0.0], [kept, -6.0]], rtol=1e-6)
    np.testing.assert_allclose(scan.weights(0, 2)[0, 0], [[1.0, 0.0], [kept / (6 + kept), 6 / (6 + kept)]], rtol=1e-6)


def exact_alpha(scan: Scan) -> torch.Tensor:
    """The full α (B, U, T, T) in float64, computed by running the scan on every input separately."""
    B, T, U = scan.dt_BTU.shape
    dt, b, c = scan.dt_BTU.double(), scan.b_BTGN.double(), scan.c_BTGN.double()
    decay_BTUN = (dt[..., None] * scan.a_UN.double()).exp()
    alpha = dt.new_zeros(B, U, T, T)
    state_BUTN = dt.new_zeros(B, U, T, b.shape[-1])
    for i in range(T - 1, -1, -1) if scan.reverse else range(T):
        state_BUTN = state_BUTN * decay_BTUN[:, i, :, None]
        state_BUTN[:, :, i] = dt[:, i, :, None] * b[:, i]
        alpha[:, :, i] = (state_BUTN * c[:, i, :, None]).sum(-1)
    return alpha


def exact_weights(scan: Scan, start: int, end: int) -> torch.Tensor:
    """Attention by `RULE` (B, H, end-start, T), from the full α."""
    alpha = exact_alpha(scan).abs()
    rows = alpha / alpha.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return rows.unflatten(1, (scan.H, -1)).mean(2).float()[:, :, start:end]


def layout(real_BN: torch.Tensor) -> PositionLayout:
    region = torch.arange(real_BN.shape[1]).div(3, rounding_mode="floor").clamp(max=2).expand(real_BN.shape).clone()
    region[~real_BN] = -1
    none = torch.zeros_like(real_BN)
    names = [["other", "query", "answer"]] * len(real_BN)
    return PositionLayout(None if bool(real_BN.all()) else real_BN, region, names, none, none)


@settings(max_examples=12, deadline=None)
@given(
    version=st.sampled_from([1, 2]),
    length=st.integers(2, 9),
    pads=st.integers(0, 3),
    tile=st.sampled_from([8, 64, 1 << 18]),
    seed=st.integers(0, 99),
)
@torch.no_grad()
def test_stream_equals_exact(version: int, length: int, pads: int, tile: int, seed: int) -> None:
    model = (
        BiMambaForMaskedLM(BiMambaConfig(**SIZES)) if version == 1 else BiMamba2ForMaskedLM(BiMamba2Config(**SIZES2))
    )
    randomised(model, seed)
    ids = torch.randint(0, 40, (2, length), generator=torch.Generator().manual_seed(seed))
    real = torch.ones(2, length, dtype=torch.bool)
    real[1, : min(pads, length - 1)] = False
    found = {}
    for way in ("stream", "exact"):
        session = Session(STATISTICS, layout=layout(real), implementation=way, tile=tile)
        with observing(model, session), pytest.MonkeyPatch.context() as patch:
            if way == "exact":
                patch.setattr(Scan, "weights", exact_weights)
            model(ids, attention_mask=real.long())
        found[way] = session.results
    for name in STATISTICS:
        assert sorted(found["stream"][name]) == [0, 1]
        for layer in (0, 1):
            stream, exact = found["stream"][name][layer], found["exact"][name][layer]
            if "position" in session.statistics[name].dims:  # what stands at padding is never recorded
                keep = real[:, None, :].expand_as(exact)
                stream, exact = stream[keep], exact[keep]
            torch.testing.assert_close(stream, exact, atol=2e-5, rtol=1e-4, msg=lambda m: f"{name}: {m}")  # noqa: B023


@torch.no_grad()
def test_rows_sum_to_one_and_look_one_way_in_each_direction() -> None:
    model = randomised(BiMamba2ForMaskedLM(BiMamba2Config(**SIZES2)), 3)
    with observing(model, Session(["attention"])) as session:
        model(torch.arange(7)[None])
    for weights_HQT in (found[0] for found in session.results["attention"].values()):
        assert weights_HQT.shape == (8, 7, 7)  # four heads forwards, four backwards
        torch.testing.assert_close(weights_HQT.sum(-1), torch.ones(8, 7))
        assert weights_HQT[:4].triu(1).eq(0).all() and weights_HQT[4:].tril(-1).eq(0).all()


@torch.no_grad()
def test_a_padded_row_is_observed_as_if_it_stood_alone() -> None:
    model = randomised(BiMambaForMaskedLM(BiMambaConfig(**SIZES)), 4)
    ids = torch.randint(1, 40, (1, 6), generator=torch.Generator().manual_seed(0))
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], 1)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1]])
    layer = model.backbone.layers[0]
    alone = scans_of(layer.mixer, layer.norm(model.backbone.embeddings(ids)))
    within = scans_of(layer.mixer, layer.norm(model.backbone.embeddings(padded)), mask)
    for one, other in zip(within, alone, strict=True):
        torch.testing.assert_close(one.weights(0, 9)[:, :, 3:, 3:], other.weights(0, 6), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(model(padded, mask).logits[:, 3:], model(ids).logits, atol=1e-5, rtol=1e-5)


@golden
def test_a_mamba_is_traced_without_a_cache_and_its_rule_is_named(name: str) -> None:
    lens = fl.load(str(golden_blocks.path(f"models/{name}")))
    assert (lens.family.name, lens.family.kind, lens.family.attention) == ("mamba", "arm", "causal")
    trace = lens.trace([5, 6, 7, 8], max_new_tokens=3)
    assert trace.data.attrs["rules"] == f'["{RULE}"]'
    received = trace.data["received"].isel(head=0).values
    np.testing.assert_allclose(np.nansum(received, -1), 1.0, atol=1e-5)
    written = trace.data["final_tokens"].values
    ids = torch.tensor([5, 6, 7, 8])[None]
    with torch.no_grad():
        for _ in range(3):
            ids = torch.cat([ids, lens.model(ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    assert written.tolist() == ids[0, : len(written)].tolist()  # it stops when the end token is written


@golden
def test_a_cached_loop_of_the_user_is_refused(name: str) -> None:
    lens = fl.load(str(golden_blocks.path(f"models/{name}")))
    ids = torch.tensor([[1, 2, 3]])
    with (
        torch.no_grad(),
        observing(lens.model, Session(["received"])),
        pytest.raises(FloatLensError, match="use_cache"),
    ):
        state = lens.model(ids, use_cache=True).cache_params
        lens.model(ids[:, :1], cache_params=state, use_cache=True)


def test_the_first_rows_of_a_guided_batch_are_observed() -> None:
    lens = fl.load("tiny-ssm")
    ids = torch.arange(24).view(4, 6)
    both, half = Session(["received"]), Session(["received"], rows=2)
    for session in (both, half):
        with torch.no_grad(), observing(lens.model, session):
            lens.model(ids)
    torch.testing.assert_close(half.results["received"][0], both.results["received"][0][:2])


@torch.no_grad()
def test_of_a_hybrid_model_the_attention_layers_are_observed() -> None:
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_experts": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_experts_per_tok": 1}
    layers = {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "mamba_dt_rank": 2}
    config = JambaConfig(**sizes, **heads, **layers)
    model = AutoModelForCausalLM.from_config(config).eval()
    with observing(model, Session(["received"])) as session:
        model(torch.arange(6)[None], use_cache=False)
    assert sorted(session.results["received"]) == attention_layers(config) == [1, 3]
