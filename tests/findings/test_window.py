"""The window statistic sees a planted movement, and nothing where nothing moves."""

from __future__ import annotations

import numpy as np
import pytest

from floatlens.findings.window import ROWS, moves, profile

FIRST = 64  # position of the first written token
WINDOWS = 12


def test_the_keys_next_to_a_window_do_not_count() -> None:
    rows = np.full((1, ROWS, FIRST + ROWS), 1.0)
    rows[..., FIRST - ROWS :] = 50.0  # locality: much attention near the window, and inside it
    [profile_T] = profile(rows, FIRST)
    assert len(profile_T) == FIRST - ROWS and np.allclose(profile_T, 1 / (FIRST - ROWS))


def planted(sinks: list[int], share: float = 0.5, layers: int = 2) -> list[np.ndarray]:
    """Profiles of windows whose rows give one key about `share` of their attention, and all other keys alike."""
    profiles = []
    for w, sink in enumerate(sinks):
        rows = np.full((layers, ROWS, FIRST + ROWS * (w + 1)), 1.0)
        rows[..., sink] = share / (1 - share) * FIRST
        profiles.append(profile(rows / rows.sum(axis=-1, keepdims=True), FIRST + ROWS * w))
    return profiles


def by_hand(profiles: list[np.ndarray], layer: int) -> tuple[float, float]:
    """Floating and moved attention of one layer, pair by pair and key by key."""
    floating, moved = [], []
    for s in range(len(profiles)):
        for t in range(s + 1, len(profiles)):
            keys = profiles[s].shape[-1]
            pair = []
            for a in (profiles[s][layer], profiles[t][layer]):
                a = [float(x) for x in a[:keys]]
                a = [x / sum(a) for x in a]
                mean = sum(a) / keys
                deviation = (sum((x - mean) ** 2 for x in a) / keys) ** 0.5
                pair.append([x if x > mean + 3 * deviation else 0.0 for x in a])
            moved.append(sum(abs(x - y) for x, y in zip(*pair, strict=True)) / 2)
            sums = [sum(side) for side in pair]
            if all(sums):
                shares = [[x / total for x in side] for side, total in zip(pair, sums, strict=True)]
                floating.append(sum(abs(x - y) for x, y in zip(*shares, strict=True)) / 2)
    return float(np.mean(floating)), float(np.mean(moved))


def test_a_sink_that_stays_does_not_float_though_new_keys_appear() -> None:
    found = moves(planted([3] * WINDOWS))
    assert found is not None
    np.testing.assert_allclose(found[0], 0, atol=1e-12)
    np.testing.assert_allclose(found[1], 0, atol=1e-12)
    assert not found[2].any()


def test_a_sink_that_is_elsewhere_in_every_window_floats_wholly() -> None:
    found = moves(planted(list(range(WINDOWS))))
    assert found is not None
    np.testing.assert_allclose(found[0], 1)


def test_a_weak_anchor_floats_as_much_as_a_strong_one_but_moves_less_attention() -> None:
    weak, strong = moves(planted(list(range(WINDOWS)), 0.05)), moves(planted(list(range(WINDOWS)), 0.5))
    assert weak is not None and strong is not None
    np.testing.assert_allclose(weak[0], strong[0])
    assert (weak[1] < strong[1] / 5).all()


def test_random_attention_agrees_with_a_computation_by_hand() -> None:
    rng = np.random.default_rng(0)
    profiles = [profile(rng.pareto(1.5, (3, ROWS, FIRST + 8 * w + 8)), FIRST + 8 * w) for w in range(WINDOWS)]
    found = moves(profiles)
    assert found is not None
    for layer in range(3):
        floating, moved = by_hand(profiles, layer)
        assert found[0][layer] == pytest.approx(floating) and found[1][layer] == pytest.approx(moved)


def test_even_attention_has_no_anchors_and_no_value() -> None:
    found = moves([np.full((1, 40), 1 / 40)] * WINDOWS)
    assert found is not None and np.isnan(found[0]).all() and (found[2] == 1).all()


def test_too_few_keys_or_windows_have_no_value() -> None:
    assert moves([np.full((1, 31), 1 / 31)] * WINDOWS) is None
    assert moves([np.full((1, 40), 1 / 40)] * 7) is None
