"""Coverage of the 95 % intervals of `floatlens.stats`.

    python -m benchmarks.coverage

Real values are simulated; 0/1 values are computed exactly (every outcome with its probability) over a grid of shares.
The goal is 95 ± 1.5 % for means of normal and skewed values and for paired differences; for 0/1 values on average over the
shares, and never below 90 %.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats as scipy_stats
from scipy.special import gammaln, xlogy

from floatlens import stats

Array = NDArray[np.float64]
SIZES = (12, 24, 50)
REPEATS = 40_000
ROUNDING = 1e-12  # a true value of 0 or 1 lies on the end of its interval

Draw = Callable[[np.random.Generator, tuple[int, int]], Array]

# name: how to draw, the true mean
MEANS: dict[str, tuple[Draw, float]] = {
    "normal": (lambda rng, size: rng.normal(size=size), 0.0),
    "uniform": (lambda rng, size: rng.random(size), 0.5),
    "t, 5 degrees of freedom": (lambda rng, size: rng.standard_t(5, size), 0.0),
    "gamma, shape 2": (lambda rng, size: rng.gamma(2, size=size), 2.0),
    "exponential": (lambda rng, size: rng.exponential(size=size), 1.0),
    "chi-squared, 1 degree": (lambda rng, size: rng.chisquare(1, size), 1.0),
    "lognormal, sigma 0.5": (lambda rng, size: rng.lognormal(0, 0.5, size), float(np.exp(0.125))),
    "lognormal, sigma 1 (hard)": (lambda rng, size: rng.lognormal(0, 1, size), float(np.exp(0.5))),
    "shares in [0, 1], beta(0.3, 2)": (lambda rng, size: rng.beta(0.3, 2, size), 0.3 / 2.3),
    "shares in [0, 1], beta(0.5, 0.5)": (lambda rng, size: rng.beta(0.5, 0.5, size), 0.5),
}

# the same for differences of two values of one sample, which share the sample's difficulty
DIFFERENCES: dict[str, tuple[Draw, float]] = {
    "normal": (lambda rng, size: rng.normal(0.2, 1, size) - rng.normal(0, 2, size), 0.2),
    "exponential, equal scales": (lambda rng, size: rng.exponential(size=size) - rng.exponential(size=size), 0.0),
    "exponential, 2 against 1": (lambda rng, size: 2 * rng.exponential(size=size) - rng.exponential(size=size), 1.0),
    "one side constant": (lambda rng, size: rng.exponential(size=size) - 1, 0.0),
    "difficulty times exponentials": (
        lambda rng, size: rng.lognormal(0, 0.5, size) * (1.5 * rng.exponential(size=size) - rng.exponential(size=size)),
        0.5 * float(np.exp(0.125)),
    ),
}


def share_covered(draw: Draw, truth: float, n: int, repeats: int = REPEATS, seed: int = 0) -> float:
    """Share of simulated samples of size n whose interval of the mean contains the true value."""
    low, high = stats.student_hall(draw(np.random.default_rng([seed, n]), (repeats, n)))
    return float(((low <= truth) & (truth <= high)).mean())


def coverage_of_shares(n: int, points: int = 1001) -> Array:
    """Exact coverage of the interval of a share, for shares from 0 to 1."""
    share = np.linspace(0, 1, points)
    ones = np.arange(n + 1)
    low, high = (end[:, None] for end in stats.agresti_coull(ones, n))
    holds = (low <= share + ROUNDING) & (share <= high + ROUNDING)
    return np.asarray((scipy_stats.binom.pmf(ones[:, None], n, share) * holds).sum(axis=0))


def coverage_of_paired_shares(n: int, points: int = 21) -> Array:
    """Exact coverage of the interval of a paired difference, over all shares of gains and losses on a grid."""
    grid = np.linspace(0, 1, points)
    up, down = np.array([(a, b) for a in grid for b in grid if a + b < 1 + 1e-9]).T
    gained, lost = np.array([(i, j) for i in range(n + 1) for j in range(n + 1 - i)]).T[:, :, None]
    rest = n - gained - lost
    ways = gammaln(n + 1) - gammaln(gained + 1) - gammaln(lost + 1) - gammaln(rest + 1)
    chance = np.exp(ways + xlogy(gained, up) + xlogy(lost, down) + xlogy(rest, np.maximum(1 - up - down, 0)))
    low, high = stats.bonett_price(gained, lost, n)
    holds = (low <= up - down + ROUNDING) & (up - down <= high + ROUNDING)
    return np.asarray((chance * holds).sum(axis=0))


def coverage_of_contrasts(n: int, worlds: int = 120, repeats: int = 2000, seed: int = 0) -> Array:
    """Simulated coverage of gain − 2·gain over random settings: four shares, and the agreement between conditions."""
    rng = np.random.default_rng([seed, n])
    weights = np.array([1.0, -1.0, -2.0, 2.0])
    found = []
    for number in range(worlds):
        share = rng.random(4) if number % 3 else rng.choice([0.02, 0.05, 0.5, 0.9, 0.98], 4)
        common = rng.choice([0.0, 0.5, 0.8])
        latent = np.sqrt(common) * rng.normal(size=(repeats, n, 1))
        latent = latent + np.sqrt(1 - common) * rng.normal(size=(repeats, n, 4))
        low, high = stats.padded_wald((latent < scipy_stats.norm.ppf(share)) @ weights, weights)
        found.append(((low <= share @ weights) & (share @ weights <= high)).mean())
    return np.array(found)


def coverage_of_rank_correlation(correlation: float, n: int, repeats: int = 10_000, seed: int = 0) -> float:
    """Share of simulated normal pairs whose interval of the rank correlation contains the true one."""
    rng = np.random.default_rng([seed, n])
    x = rng.normal(size=(repeats, n))
    y = correlation * x + np.sqrt(1 - correlation**2) * rng.normal(size=(repeats, n))
    ranks = [scipy_stats.rankdata(v, axis=1) - (n + 1) / 2 for v in (x, y)]
    found = (ranks[0] * ranks[1]).sum(axis=1) / ((n**3 - n) / 12)
    low, high = stats.bonett_wright(found, n)
    truth = 6 / np.pi * np.arcsin(correlation / 2)
    return float(((low <= truth) & (truth <= high)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=REPEATS, help="Simulated samples per cell.")
    repeats = parser.parse_args().repeats
    print(f"Coverage of 95 % intervals, in percent ({repeats} simulated samples per cell; 0/1 values exact)\n")
    print("| " + " | ".join(["", *(f"n = {n}" for n in SIZES)]) + " |")
    print("| --- |" + " ---: |" * len(SIZES))
    for what, cases in (("mean", MEANS), ("paired difference", DIFFERENCES)):
        for name, (draw, truth) in cases.items():
            show(f"{what}: {name}", [f"{100 * share_covered(draw, truth, n, repeats):.1f}" for n in SIZES])
    for name, coverage in (
        ("share of ones", coverage_of_shares),
        ("paired difference of shares", coverage_of_paired_shares),
        ("gain − 2·gain of 0/1 scores", coverage_of_contrasts),
    ):
        found = [coverage(n) for n in SIZES]
        show(f"{name}: average (lowest)", [f"{100 * c.mean():.1f} ({100 * c.min():.1f})" for c in found])
    for correlation in (0.0, 0.3, 0.6):
        shares = [coverage_of_rank_correlation(correlation, n) for n in SIZES]
        show(f"rank correlation: normal pairs, r = {correlation}", [f"{100 * s:.1f}" for s in shares])


def show(name: str, cells: list[str]) -> None:
    print("| " + " | ".join(itertools.chain([name], cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
