"""`observe` around ordinary models: own classes, own loops, other parameter names, compiled models, no transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import floatlens
from floatlens import FloatLensError
from tests.trace.test_observe import PASSAGES, QUESTION, assert_same

# --- the engineer's walk: 40 lines of her own -----------------------------------------------------------------------------


class OwnModel(torch.nn.Module):
    """A Llama as one writes it: attention by einsum, token ids called `idx`, logits as a plain tensor."""

    def __init__(self, weights: dict[str, torch.Tensor], causal: bool, heads: int = 4) -> None:
        super().__init__()
        self.w, self.causal, self.heads = {name.removeprefix("model."): w for name, w in weights.items()}, causal, heads
        self.layers = sum(name.endswith("input_layernorm.weight") for name in weights)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.w[f"{name}.weight"]

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[1])[:, None] / 500000.0 ** (torch.arange(half) / half)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def attend(self, x: torch.Tensor, at: str) -> torch.Tensor:
        q, k, v = ((x @ self.w[f"{at}.{n}_proj.weight"].T).unflatten(-1, (self.heads, -1)) for n in "qkv")
        scores = torch.einsum("bqhd,bkhd->bhqk", self.rotate(q), self.rotate(k)) * q.shape[-1] ** -0.5
        if self.causal:
            scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2) @ self.w[f"{at}.o_proj.weight"].T

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        x = self.w["embed_tokens.weight"][idx]
        for layer in (f"layers.{n}" for n in range(self.layers)):
            x = x + self.attend(self.norm(x, f"{layer}.input_layernorm"), f"{layer}.self_attn")
            h = self.norm(x, f"{layer}.post_attention_layernorm")
            gate, up, down = (self.w[f"{layer}.mlp.{n}_proj.weight"].T for n in ("gate", "up", "down"))
            x = x + (torch.nn.functional.silu(h @ gate) * (h @ up)) @ down
        return self.norm(x, "norm") @ self.w["embed_tokens.weight"].T


def denoise(model: Any, x: torch.Tensor, mask_id: int) -> torch.Tensor:
    """Replace the mask of which the model is most certain, until there is none."""
    while (x == mask_id).any():
        probability, token = model(x).softmax(-1).max(-1)
        best = probability.masked_fill(x != mask_id, -1).argmax(-1)
        x[0, best] = token[0, best]
    return x


def append(model: Any, x: torch.Tensor, count: int) -> torch.Tensor:
    """Append the most likely token, without a cache."""
    for _ in range(count):
        x = torch.cat([x, model(x)[:, -1:].argmax(-1)], 1)
    return x


# ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mdm() -> floatlens.Lens:
    return floatlens.load("tiny-mdm", dtype="float32")


@pytest.fixture(scope="module")
def arm() -> floatlens.Lens:
    return floatlens.load("tiny-arm", dtype="float32")


def own(lens: floatlens.Lens) -> OwnModel:
    return OwnModel(dict(lens.model.state_dict()), lens.family.kind == "arm").eval()


FACTS = ("prompt_length", "regions", "gold", "kind", "attention", "output", "vocabulary")


def test_an_own_denoising_loop_over_an_own_class_gives_the_trace_of_the_lens(mdm: floatlens.Lens) -> None:
    model, prompt = own(mdm), mdm.prompt(QUESTION, PASSAGES, gold=0)
    x = torch.tensor([[*prompt.ids, *[mdm.mask_id] * 6]])
    with (
        floatlens.observe(model, tokenizer=mdm.tokenizer, regions=prompt, mask_id=mdm.mask_id) as watch,
        torch.no_grad(),
    ):
        denoise(model, x, mdm.mask_id)
    wanted = mdm.trace(prompt, max_new_tokens=6, steps=6, block_length=6)
    assert {"flow", "received_writing", "evidence_mass"} <= set(wanted.data.data_vars)
    assert_same(watch.trace(output=x), wanted, FACTS, atol=2e-5)


def test_an_own_appending_loop_over_an_own_class_gives_the_trace_of_the_lens(arm: floatlens.Lens) -> None:
    model, prompt = own(arm), arm.prompt(QUESTION, PASSAGES, gold=0)
    with floatlens.observe(model, tokenizer=arm.tokenizer, regions=prompt) as watch, torch.no_grad():
        x = append(model, torch.tensor([prompt.ids]), 5)
    wanted = arm.trace(prompt, max_new_tokens=5)
    assert wanted.data.sizes["step"] > 2
    assert_same(watch.trace(output=x), wanted, FACTS, atol=2e-5)


class CachedModel(OwnModel):
    """Keeps the keys and values of the positions before, in a cache that no argument shows; `room`: allocated at once."""

    room: int | None = None

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        self.past = {} if idx.shape[1] > 1 else self.past
        self.start = next(iter(self.past.values()))[0].shape[1] if self.past else 0
        return super().forward(idx)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        return super().rotate(torch.cat([x.new_zeros(len(x), self.start, *x.shape[2:]), x], 1))[:, self.start :]

    def attend(self, x: torch.Tensor, at: str) -> torch.Tensor:
        q, k, v = ((x @ self.w[f"{at}.{n}_proj.weight"].T).unflatten(-1, (self.heads, -1)) for n in "qkv")
        q, k = self.rotate(q), self.rotate(k)
        if at in self.past:
            k, v = (torch.cat([old, new], 1) for old, new in zip(self.past[at], (k, v), strict=True))
        self.past = self.past | {at: (k, v)}
        Q, T = q.shape[1], k.shape[1]
        mask = torch.ones(Q, T, dtype=torch.bool).tril(T - Q)
        if self.room is not None:
            k, v = (torch.nn.functional.pad(one, (0, 0, 0, 0, 0, self.room - T)) for one in (k, v))
            mask = torch.nn.functional.pad(mask, (0, self.room - T))
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out.transpose(1, 2).flatten(2) @ self.w[f"{at}.o_proj.weight"].T


@pytest.mark.parametrize("room", [None, 80])
def test_a_cache_inside_an_own_class_gives_the_trace_of_the_lens(arm: floatlens.Lens, room: int | None) -> None:
    model, prompt = (
        CachedModel(dict(arm.model.state_dict()), causal=True).eval(),
        arm.prompt(QUESTION, PASSAGES, gold=0),
    )
    model.room = room
    with floatlens.observe(model, tokenizer=arm.tokenizer, regions=prompt) as watch, torch.no_grad():
        for _ in range(2):  # a second generation begins where the first one began
            x = torch.tensor([prompt.ids])
            token = model(x)[:, -1:].argmax(-1)
            for _ in range(4):
                x = torch.cat([x, token], 1)
                token = model(token)[:, -1:].argmax(-1)
    wanted = arm.trace(prompt, max_new_tokens=5)
    for generation in (0, 1):
        assert_same(watch.trace(generation=generation), wanted, FACTS, atol=2e-5)
    assert watch.trace().cached


# --- the canvas without a mask -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, 7])
def test_a_denoising_loop_without_its_mask_is_refused_and_named(mdm: floatlens.Lens, given: int | None) -> None:
    """Its passes are no generations of one step each."""
    model, ids = own(mdm), mdm.prompt("Who?").ids
    with floatlens.observe(model, mask_id=given) as watch, torch.no_grad():
        denoise(model, torch.tensor([[*ids, *[mdm.mask_id] * 4]]), mdm.mask_id)
    assert len(watch.steps) == 4
    said = "no mask token is known" if given is None else "the mask token is 7"
    for generation in (-1, 0):
        with pytest.raises(FloatLensError, match=rf"replace token 2 in .* {said}; pass observe\(..., mask_id=2\)"):
            watch.trace(generation=generation)
    with pytest.raises(FloatLensError, match="generation 1 does not exist"):
        watch.trace(generation=1)


def test_separate_sequences_of_equal_length_are_separate_generations(mdm: floatlens.Lens, arm: floatlens.Lens) -> None:
    first, second, third = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[5, 9, 7, 8]]), torch.tensor([[11, 5, 5, 9]])
    for lens in (mdm, arm):
        model = own(lens)
        with floatlens.observe(model) as watch, torch.no_grad():
            for ids in (first, second, third):
                model(ids)
        for number, ids in enumerate((first, second, third)):
            assert watch.trace(generation=number).final_tokens.tolist() == ids[0].tolist()


# --- the finished sequence ---------------------------------------------------------------------------------------------


def test_a_wrong_output_is_refused_and_leaves_the_watch_usable(mdm: floatlens.Lens) -> None:
    model, prompt = own(mdm), mdm.prompt(QUESTION)
    x = torch.tensor([[*prompt.ids, *[mdm.mask_id] * 3]])
    with floatlens.observe(model, tokenizer=mdm.tokenizer, mask_id=mdm.mask_id) as watch, torch.no_grad():
        denoise(model, x, mdm.mask_id)
    before, other = watch.trace(), x.clone()
    other[0, 0] += 1
    wrong: list[Any] = [
        x[0, -3:], x[:, :2], x.float(), "Rome", other, x.clone().index_fill_(1, torch.tensor([-1]), 10**7),
    ]  # fmt: skip
    for output in wrong:
        with pytest.raises(
            FloatLensError, match=r"output= is .*; expected token ids \(1, at least \d+\) that continue"
        ):
            watch.trace(output=output)
        assert_same(watch.trace(), before, FACTS)
    with pytest.raises(FloatLensError, match="finishes the last generation, not generation 3"):
        watch.traces(output=x, generation=3)
    changed = x.clone()
    changed[0, -1] = 5  # another token of the answer: possible, and no longer so once the right one is given
    assert watch.trace(output=changed).final_tokens[-1] == 5
    assert_same(watch.trace(output=x), before, FACTS)


# --- tokens under any name ---------------------------------------------------------------------------------------------


class Named(torch.nn.Module):
    """A model whose forward is given at construction."""

    def __init__(self, inner: OwnModel, forward: Any) -> None:
        super().__init__()
        self.inner, self.run = inner, forward
        self.forward = forward.__get__(self)  # type: ignore[method-assign]


def two_names(self: Named, x: torch.Tensor, m: torch.Tensor | None = None, targets: Any = None) -> Any:
    return self.inner(x), None


def unclear(self: Named, source: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
    return self.inner(written)


def everything(self: Named, *args: Any, **kwargs: Any) -> torch.Tensor:
    return self.inner(args[0]["ids"] if args else kwargs["ids"])


IDS = torch.tensor([[5, 6, 7, 8, 9]])


@pytest.mark.parametrize(
    ("forward", "args", "kwargs"),
    [
        (two_names, (IDS, torch.ones_like(IDS), IDS), {}),
        (everything, ({"ids": IDS, "position_ids": IDS},), {}),
        (everything, (), {"ids": IDS}),
    ],
)
def test_token_ids_are_found_whatever_they_are_called(
    arm: floatlens.Lens, forward: Any, args: Any, kwargs: Any
) -> None:
    model = Named(own(arm), forward)
    with floatlens.observe(model) as watch, torch.no_grad():
        model(*args, **kwargs)
    trace = watch.trace()
    assert trace.final_tokens.tolist() == IDS[0].tolist() and {"flow", "received"} <= set(trace.data.data_vars)


def test_several_candidates_for_the_token_ids_are_asked_about(arm: floatlens.Lens) -> None:
    model = Named(own(arm), unclear)
    with floatlens.observe(model) as watch, torch.no_grad():
        model(IDS + 1, IDS)
    with pytest.raises(
        FloatLensError, match=r"several arguments may hold the token ids: source, written; .*tokens='source'"
    ):
        watch.trace()
    assert set(watch.results) == {"received", "entropy", "qk", "qk_norm", "qk_cos", "value_norm"}
    with floatlens.observe(model, tokens="written") as watch, torch.no_grad():
        model(IDS + 1, IDS)
    assert watch.trace().final_tokens.tolist() == IDS[0].tolist()
    with floatlens.observe(model, tokens="ids") as watch, torch.no_grad():
        model(IDS + 1, IDS)
    with pytest.raises(
        FloatLensError, match="called without the argument 'ids' that tokens= names; it has source, written"
    ):
        watch.trace()


class Padded(OwnModel):
    """Hides padded keys by its own mask, as scores of minus infinity."""

    def forward(self, ids: torch.Tensor, pad: torch.Tensor) -> torch.Tensor:
        self.pad = pad
        return super().forward(ids)

    def attend(self, x: torch.Tensor, at: str) -> torch.Tensor:
        q, k, v = ((x @ self.w[f"{at}.{n}_proj.weight"].T).unflatten(-1, (self.heads, -1)) for n in "qkv")
        scores = (q.transpose(1, 2) @ k.permute(0, 2, 3, 1)).masked_fill(self.pad[:, None, None], -torch.inf)
        return (scores.softmax(-1) @ v.transpose(1, 2)).transpose(1, 2).flatten(2) @ self.w[f"{at}.o_proj.weight"].T


@pytest.mark.parametrize("left", [True, False])
def test_padding_that_an_own_model_hides_is_left_out(mdm: floatlens.Lens, left: bool) -> None:
    model = Padded(dict(mdm.model.state_dict()), causal=False).eval()
    short, padding = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 1]])
    ids = torch.cat([torch.cat([padding, short] if left else [short, padding], 1), IDS])
    pad = ids == 1
    with floatlens.observe(model, regions={"start": (0, 2)}) as watch, torch.no_grad():
        model(ids, pad)
    with floatlens.observe(model, regions={"start": (0, 2)}) as alone, torch.no_grad():
        model(short, torch.zeros(1, 3, dtype=torch.bool))
    assert_same(watch.trace(0), alone.trace(), ("prompt_length", "regions", "kind"), atol=2e-5)


# --- compiled models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["wrapped", "in place", "inside"])
def test_a_compiled_model_is_observed(arm: floatlens.Lens, how: str) -> None:
    model: Any = own(arm)
    with floatlens.observe(model) as watch, torch.no_grad():
        model(IDS)
    wanted = watch.trace()
    if how == "wrapped":
        model = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    else:
        model.attend = torch.compile(model.attend, backend="eager")
    with torch.no_grad():
        model(IDS)
        with floatlens.observe(model) as watch:
            model(IDS)
        assert model(IDS).shape[:2] == IDS.shape  # and runs compiled again
    assert_same(watch.trace(), wanted, FACTS)
