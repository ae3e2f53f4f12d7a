"""The likelihood of a given answer: exact for autoregressive models, a lower bound for masked diffusion models.

A diffusion model has no order of writing, so its likelihood is bounded: with l masks in an answer of N tokens,

    log p(answer) >= E over l = 1..N, and over which l tokens are masked, of  N / l * sum of log p(masked token | the rest)

This is the bound of LLaDA's evaluation (eval_llada.py of ML-GSAI/LLaDA, arXiv 2502.09992), and the mean over all orders of
writing the answer token by token. It is estimated from random maskings, or computed exactly if the answer has no more
maskings than requested. For a model that writes in blocks, the bound is computed block by block.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby, islice

import torch

from floatlens.attention.prompt_batch import PromptBatch
from floatlens.data.prompt import Prompt
from floatlens.decode.draws import most_confident
from floatlens.decode.network import Passes, guided, input_device
from floatlens.decode.sampler import SAMPLERS, Denoising, Sampler, check_whole
from floatlens.errors import FloatLensError
from floatlens.lens import Lens
from floatlens.options import Run

CANVAS = "canvas"  # the sampler that reads the prompt causally and denoises what follows it


@dataclass(frozen=True, eq=False)
class Row:
    """Tokens that are scored together, a whole answer or its part in one block, as an input of the model.

    pair       index of the answer
    before     the tokens before them
    masked_N   which of them are replaced by masks
    weight     weight of their log-probabilities
    """

    pair: int
    before: list[int]
    tokens: list[int]
    masked_N: torch.Tensor
    weight: float = 1.0


def loglikelihood(
    lens: Lens,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    samples: int = 128,
    batch_size: int = Run.batch_size,
    seed: int = 0,
    cfg_scale: float = 0.0,
    greedy: bool = True,
) -> list[tuple[float, bool | None]]:
    """Score answers: log p(answer | prompt), exact for an autoregressive model and a lower bound for a diffusion model.

    `pairs` are the token ids of each prompt and its answer. Returns the natural logarithm per answer, and whether greedy
    decoding, the most confident token first, would write it (None without `greedy`; one more pass per token of a diffusion
    model).

    `samples` is the number of maskings per answer, or per block of a model that writes in blocks; an answer with fewer
    possible maskings is scored by all of them. Maskings depend on `seed` and the tokens of the pair, not on other pairs.
    `cfg_scale` is the classifier-free guidance of a diffusion model, as in LLaDA's evaluation; 0 for none.
    """
    check_whole(samples, "samples")
    check_whole(batch_size, "batch_size")
    check(lens, pairs, cfg_scale)
    exact = lens.family.kind == "arm"
    parts = sorted(split(lens, pairs), key=lambda row: (len(row.tokens), len(row.before)))
    logprobs, certain = [0.0] * len(pairs), [True] * len(pairs)
    for batch in batches(lens, rows(parts, 0 if exact else samples, seed), batch_size):
        logits_BNV = answer_logits(lens, batch, cfg_scale)
        for row, logits_NV in zip(batch, logits_BNV, strict=True):
            tokens_N = torch.tensor(row.tokens, device=logits_NV.device)
            logprob_N = logits_NV.float().log_softmax(-1).gather(-1, tokens_N[:, None])[:, 0].double().cpu()
            counted_N = logprob_N if exact else logprob_N[row.masked_N]
            logprobs[row.pair] += row.weight * float(counted_N.sum())
            if exact:
                certain[row.pair] = bool((logits_NV.argmax(-1) == tokens_N).all())
    if greedy and not exact:
        for batch in batches(lens, parts, batch_size):
            for row, same in zip(batch, writes_them(lens, batch, cfg_scale), strict=True):
                certain[row.pair] &= same
    return [(value, same if greedy else None) for value, same in zip(logprobs, certain, strict=True)]


def check(lens: Lens, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], cfg_scale: float) -> None:
    """Raise an error for samplers without a defined likelihood, and for texts that cannot be scored."""
    whole, context = reads_whole(lens), lens.context_length
    if not (whole or (lens.has_mask and (lens.sampler == CANVAS or SAMPLERS[lens.sampler].aligned))):
        raise FloatLensError(
            f"the likelihood of an answer is not defined for the {lens.sampler} sampler of {lens.name}; "
            f"compare generated answers instead"
        )
    if cfg_scale and not (whole and lens.has_mask):
        raise FloatLensError(
            f"cfg_scale {cfg_scale} needs a model that denoises whole sequences; use 0 for {lens.name}"
        )
    for prompt, answer in pairs:
        if not answer:
            raise FloatLensError("an answer has no tokens, so it has no likelihood; leave it out")
        if not prompt and lens.family.shifted:
            raise FloatLensError(
                f"{lens.name} predicts each token from the previous one, so the first needs a prompt of at least one token"
            )
        length = len(prompt) + len(answer)
        if context is not None and length > context:
            raise FloatLensError(
                f"prompt and answer have {length} tokens, more than {lens.name}'s context of {context}"
            )


def reads_whole(lens: Lens) -> bool:
    """Whether a pass over the whole sequence gives the prediction of each of its tokens."""
    family = lens.family
    return family.kind == "arm" or (
        lens.has_mask and not family.cached and family.attention in ("bidirectional", "two-way")
    )


def split(lens: Lens, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Iterator[Row]:
    """Yield the parts of each answer, all masked: one, or one per block."""
    block = asdict(lens.settings())["block_length"] if SAMPLERS[lens.sampler].aligned else None
    for index, (prompt, answer) in enumerate(pairs):
        ids, start = [*map(int, prompt), *map(int, answer)], len(prompt)
        while start < len(ids):
            end = len(ids) if block is None else min(start // block * block + block, len(ids))
            yield Row(index, ids[:start], ids[start:end], torch.ones(end - start, dtype=torch.bool))
            start = end


def rows(parts: Iterable[Row], samples: int, seed: int) -> Iterator[Row]:
    """Yield each part with its maskings, or unmasked if `samples` is 0."""
    for part in parts:
        if samples == 0:
            yield replace(part, masked_N=~part.masked_N)
            continue
        text = f"{seed} {part.before} {part.tokens}".encode()
        digest = int.from_bytes(hashlib.sha256(text).digest()[:8], "big", signed=True)
        masked_SN, weight_S = maskings(len(part.tokens), samples, torch.Generator().manual_seed(digest))
        for masked_N, weight in zip(masked_SN, weight_S.tolist(), strict=True):
            yield replace(part, masked_N=masked_N, weight=weight)


def maskings(length: int, samples: int, draws: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Maskings (S, N) of an answer, and the weight (S) of each in the bound.

    All possible maskings if there are at most `samples`; otherwise random ones, whose numbers of masks are spread evenly
    over 1..N from a random start. LLaDA's evaluation also spreads them evenly within each batch, but rounds half to even,
    so some numbers of masks occur more often than others; here they are equally likely.

    >>> masked, weight = maskings(2, 3, torch.Generator())
    >>> masked.int().tolist(), weight.tolist()
    ([[1, 0], [0, 1], [1, 1]], [0.5, 0.5, 0.5])
    """
    if length < 63 and 2**length - 1 <= samples:
        numbers_S = torch.arange(1, 2**length)
        masked_SN = (numbers_S[:, None] >> torch.arange(length) & 1).bool()
        weight_S = torch.tensor([1 / (n * math.comb(length, n)) for n in masked_SN.sum(1).tolist()])
        return masked_SN, weight_S.double()
    start = int(torch.randint(length, (), generator=draws))
    count_S = (start + torch.arange(samples) * length // samples) % length + 1
    ranks_SN = torch.rand(samples, length, generator=draws).argsort(1).argsort(1)
    return ranks_SN < count_S[:, None], length / (count_S * samples).double()


def batches(lens: Lens, given: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """Yield rows that run together: with the same number of tokens to score and, without padding, before them."""

    def shape(row: Row) -> tuple[int, int]:
        padded = row.before and not SAMPLERS[lens.sampler].aligned  # blocks are counted from the start of the prompt
        return len(row.tokens), -1 if padded else len(row.before)

    for _, group in groupby(given, shape):
        while together := list(islice(group, size)):
            yield together


def answer_logits(lens: Lens, batch: Sequence[Row], cfg_scale: float) -> torch.Tensor:
    """Logits (B, N, V) that write the tokens of each row's part."""
    N, device = len(batch[0].tokens), input_device(lens.model)
    prompts = [Prompt(text="", ids=row.before, tail=()) for row in batch]
    padded = PromptBatch.of(prompts, lens.pad_id, device)
    tokens_BN = torch.tensor([row.tokens for row in batch], device=device)
    masked_BN = torch.stack([row.masked_N for row in batch]).to(device)
    if lens.has_mask:
        tokens_BN = tokens_BN.masked_fill(masked_BN, lens.mask_id)
    ids_BP, real_BP = padded.ids_BP, padded.real_BP
    x_BT = torch.cat([ids_BP, tokens_BN], 1)
    if cfg_scale:
        ids_BP, x_BT = torch.cat([ids_BP, ids_BP]), torch.cat([x_BT, x_BT])
        x_BT[len(batch) :, : ids_BP.shape[1]] = lens.mask_id
        real_BP = None if real_BP is None else torch.cat([real_BP, real_BP])
    # One pass gives the predictions of all tokens of an autoregressive model; a block is run once, so without a cache.
    settings: Sampler = Denoising(max_new_tokens=N)
    if not reads_whole(lens):
        own = {"cache": False} if SAMPLERS[lens.sampler].aligned else {}
        settings = lens.settings(max_new_tokens=N, sampler=own)
    passes = Passes(lens.model, lens.family, ids_BP, real_BP, settings, special=lens.special_tokens)
    logits_BNV = passes(x_BT)[1][:, -N:]
    return guided(logits_BNV, cfg_scale) if cfg_scale else logits_BNV


def writes_them(lens: Lens, batch: Sequence[Row], cfg_scale: float) -> list[bool]:
    """Whether the model writes exactly each part into its masks, one pass per token, the most confident token first.

    A row stops at the first different token, since tokens are never replaced.
    """
    running = {index: row for index, row in enumerate(batch)}
    for _ in range(len(batch[0].tokens)):
        if not running:
            break
        logits_BNV = answer_logits(lens, list(running.values()), cfg_scale).float()
        confidence_BN, token_BN = (values.cpu() for values in logits_BNV.softmax(-1).max(-1))
        for (index, row), confidence_N, token_N in zip(list(running.items()), confidence_BN, token_BN, strict=True):
            [best] = most_confident(confidence_N.masked_fill(~row.masked_N, -1.0), 1).tolist()
            if int(token_N[best]) != row.tokens[best]:
                del running[index]
                continue
            masked_N = row.masked_N.clone()
            masked_N[best] = False
            running[index] = replace(row, masked_N=masked_N)
    return [index in running for index in range(len(batch))]
