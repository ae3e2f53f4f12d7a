"""The likelihood of a given answer: the chain rule for autoregressive models, LLaDA's bound for diffusion models."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floatlens as fl
from floatlens.evaluation.likelihood import loglikelihood, maskings
from tests.models import checkpoints

PROMPT, OTHER = [5, 9, 40, 7, 22], [8, 3, 17]
ANSWER, SHORT = [11, 30, 12], [45]
MAKE = {"llada": checkpoints.llada, "dream": checkpoints.dream, "sdar": checkpoints.sdar, "a2d": checkpoints.a2d}


@pytest.fixture(scope="module")
def lenses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fl.Lens]:
    made: dict[str, fl.Lens] = {}
    for name, make in MAKE.items():
        made[name] = fl.load(str(make(tmp_path_factory.mktemp(name))))
    llama = checkpoints.native(tmp_path_factory.mktemp("llama"), "llama")
    checkpoints.edit_config(llama, mask_token_id=checkpoints.MASK)
    made["llama"], made["canvas"] = fl.load(str(llama)), fl.load(str(llama), family="canvas")
    made["gpt2"] = fl.load(str(checkpoints.native(tmp_path_factory.mktemp("gpt2"), "gpt2")))
    made["bert"] = fl.load(str(checkpoints.native(tmp_path_factory.mktemp("bert"), "bert")))
    return made


def logprobs(model: Any, ids: list[int]) -> torch.Tensor:
    """Log-probabilities (T, V) from the model's own forward pass."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_an_autoregressive_model_is_scored_exactly(name: str, lenses: dict[str, fl.Lens]) -> None:
    lens, pairs = lenses[name], [(PROMPT, ANSWER), (OTHER, ANSWER), (OTHER, SHORT), (PROMPT, [11, 30, 12, 4, 9])]
    found = loglikelihood(lens, pairs, batch_size=3)
    for (prompt, answer), score in zip(pairs, found, strict=True):
        rows = logprobs(lens.model, [*prompt, *answer])[len(prompt) - 1 : -1]
        assert score[0] == pytest.approx(float(rows[range(len(answer)), answer].sum()), abs=1e-4)
    greedy = lens.generate([PROMPT], max_new_tokens=4)[0].ids
    told = loglikelihood(lens, [(PROMPT, greedy), (PROMPT, [*greedy[:-1], (greedy[-1] + 1) % 60])])
    assert [score[1] for score in told] == [True, False]


def over_all_orders(lens: fl.Lens, prompt: list[int], answer: list[int], block: int | None) -> float:
    """Mean over the orders of writing of the sum of log-probabilities, from replays that reveal one token per step."""
    numbers = [0 if block is None else (len(prompt) + i) // block for i in range(len(answer))]
    orders = [
        order
        for order in itertools.permutations(range(len(answer)))
        if all(numbers[a] <= numbers[b] for a, b in itertools.pairwise(order))
    ]
    sums = []
    for order in orders:
        trace = lens.replay(prompt, answer, [[i] for i in order], record=["received"], layers=[0])
        step = trace.data["committed_at"].values[len(prompt) :]
        sums.append(sum(math.log(trace.data["confidence"].values[s, len(prompt) + i]) for i, s in enumerate(step)))
    return float(np.mean(sums))


@pytest.mark.parametrize("name", ["llada", "dream", "a2d", "bert", "canvas", "sdar"])
def test_the_bound_is_the_mean_over_all_orders_of_writing(name: str, lenses: dict[str, fl.Lens]) -> None:
    lens, block = lenses[name], lenses[name].block_length
    pairs = [(PROMPT, ANSWER), (OTHER, ANSWER), (PROMPT, SHORT), (PROMPT, [11, 30, 12, 45])]
    found = loglikelihood(lens, pairs, batch_size=4, greedy=False)
    for (prompt, answer), score in zip(pairs, found, strict=True):
        assert score[0] == pytest.approx(over_all_orders(lens, prompt, answer, block), abs=2e-4)
        assert score[1] is None


def test_the_bound_enumerates_the_maskings_of_a_plain_forward_pass(lenses: dict[str, fl.Lens]) -> None:
    lens, P, N = lenses["llada"], len(PROMPT), len(ANSWER)
    expected = 0.0
    for masked in itertools.product([False, True], repeat=N):
        if n := sum(masked):
            ids = [*PROMPT, *(lens.mask_id if hidden else token for hidden, token in zip(masked, ANSWER, strict=True))]
            rows = logprobs(lens.model, ids)
            total = sum(float(rows[P + i, ANSWER[i]]) for i in range(N) if masked[i])
            expected += (1 / N) * (N / n) * total / math.comb(N, n)
    [found] = loglikelihood(lens, [(PROMPT, ANSWER)], samples=7)
    assert found[0] == pytest.approx(expected, abs=1e-4)


def test_random_maskings_estimate_the_whole_bound(lenses: dict[str, fl.Lens]) -> None:
    lens, answer = lenses["llada"], [11, 30, 12, 45, 6, 50]
    [whole] = loglikelihood(lens, [(PROMPT, answer)], samples=63, greedy=False)
    estimates = [
        loglikelihood(lens, [(PROMPT, answer)], samples=32, seed=seed, batch_size=32, greedy=False)[0][0]
        for seed in range(40)
    ]
    error = np.std(estimates, ddof=1) / math.sqrt(len(estimates))
    assert error > 0 and abs(np.mean(estimates) - whole[0]) < 4 * error
    assert len(set(estimates)) == len(estimates)


@pytest.mark.parametrize(("length", "samples"), [(5, 4), (5, 16), (7, 32), (3, 5)])
def test_every_number_of_masks_is_equally_likely(length: int, samples: int) -> None:
    """The mean weight of an answer whose masked log-probabilities are their number squared has a closed form."""
    expected = length * sum(n**2 / n for n in range(1, length + 1)) / length
    found, position = [], np.zeros(length)
    for seed in range(3000):
        masked_SN, weight_S = maskings(length, samples, torch.Generator().manual_seed(seed))
        count_S = masked_SN.sum(1)
        assert float((weight_S * count_S).sum()) == pytest.approx(length)
        found.append(float((weight_S * count_S.double() ** 2).sum()))
        position += (weight_S[:, None] * masked_SN).sum(0).numpy()
    error = np.std(found) / math.sqrt(len(found))
    assert abs(np.mean(found) - expected) < 4 * error + 1e-9
    assert position / 3000 == pytest.approx(np.ones(length), abs=0.05)


def test_a_score_depends_on_its_seed_and_not_on_its_batch(lenses: dict[str, fl.Lens]) -> None:
    lens, long = lenses["llada"], [11, 30, 12, 45, 6, 50]
    pairs = [(PROMPT, long), (OTHER, long[:5]), (PROMPT, SHORT), (OTHER, long)]
    together = loglikelihood(lens, pairs, samples=8, batch_size=5)
    alone = [loglikelihood(lens, [pair], samples=8, batch_size=1)[0] for pair in pairs]
    assert [score[0] for score in together] == pytest.approx([score[0] for score in alone], abs=1e-4)
    assert [score[1] for score in together] == [score[1] for score in alone]
    assert loglikelihood(lens, pairs, samples=8, batch_size=5) == together
    other = loglikelihood(lens, pairs, samples=8, batch_size=5, seed=1)
    assert other[0][0] != together[0][0]
    assert other[2][0] == together[2][0]  # one token has one masking


@pytest.mark.parametrize("name", ["llada", "dream", "sdar"])
def test_what_a_diffusion_model_writes_is_greedy(name: str, lenses: dict[str, fl.Lens]) -> None:
    lens = lenses[name]
    settings = {"sdar": {"confidence_threshold": 1.0}}.get(name, {})
    length = 4 if name != "sdar" else -len(PROMPT) % (lens.block_length or 1) + (lens.block_length or 0)
    written = lens.trace(PROMPT, max_new_tokens=length, record=["received"], layers=[0], sampler=settings).written[
        :length
    ]
    if name == "dream":  # its sampler commits by a schedule of its own
        written = []
        ids = [*PROMPT, *[lens.mask_id] * length]
        while lens.mask_id in ids:
            rows = logprobs(lens.model, ids)
            best, token = max(
                (float(rows[i - 1].max()), -i, int(rows[i - 1].argmax()))
                for i, t in enumerate(ids)
                if t == lens.mask_id
            )[1:]
            ids[-best] = token
        written = ids[len(PROMPT) :]
    other = [*written[:-1], (written[-1] + 1) % 60]
    found = loglikelihood(lens, [(PROMPT, written), (PROMPT, other)], samples=2)
    assert [score[1] for score in found] == [True, False]


def test_guidance_sets_the_model_without_the_prompt_aside(lenses: dict[str, fl.Lens]) -> None:
    lens, P = lenses["llada"], len(PROMPT)
    with torch.no_grad():
        given = lens.model(input_ids=torch.tensor([[*PROMPT, lens.mask_id]])).logits[0, P].double()
        without = lens.model(input_ids=torch.tensor([[lens.mask_id] * (P + 1)])).logits[0, P].double()
    expected = (without + 1.5 * (given - without)).log_softmax(-1)[SHORT[0]]
    [found] = loglikelihood(lens, [(PROMPT, SHORT)], cfg_scale=0.5)
    assert found[0] == pytest.approx(float(expected), abs=1e-4)


def test_what_has_no_likelihood_is_refused(lenses: dict[str, fl.Lens], tmp_path: Path) -> None:
    with pytest.raises(fl.FloatLensError, match="an answer has no tokens"):
        loglikelihood(lenses["llada"], [(PROMPT, [])])
    with pytest.raises(fl.FloatLensError, match="the first needs a prompt"):
        loglikelihood(lenses["dream"], [([], ANSWER)])
    with pytest.raises(fl.FloatLensError, match="130 tokens, more than .* context of 128"):
        loglikelihood(lenses["llama"], [([5] * 127, ANSWER)])
    with pytest.raises(fl.FloatLensError, match="needs a model that denoises whole sequences"):
        loglikelihood(lenses["llama"], [(PROMPT, ANSWER)], cfg_scale=1.0)
    with pytest.raises(fl.FloatLensError, match="not defined for the diffusion-gemma sampler"):
        loglikelihood(fl.load(str(checkpoints.diffusion_gemma(tmp_path))), [(PROMPT, ANSWER)])
    assert loglikelihood(lenses["llada"], [([], ANSWER)])[0][0] < 0  # a diffusion model needs no prompt
