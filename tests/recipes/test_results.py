"""The page of results has the numbers of its tables, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import floatlens as fl
from floatlens.findings.finding import CLAIMS
from floatlens.paper import figures
from recipes.results import explore, nulls, page
from recipes.results.__main__ import keep
from recipes.results.explore import distance

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
TEXT = (ROOT / "recipes" / "results" / "page.md").read_text(encoding="utf-8")
LITERAL = {"0.10", "1.3"}  # the smallest effect, and millions of parameters


def rows(name: str, condition: str) -> pd.DataFrame:
    table = pd.read_parquet(page.TABLES / f"{name}.parquet")
    return table[table["condition"] == condition].set_index("text")


def test_the_page_is_that_of_its_tables() -> None:
    assert page.page() == PAGE, "run python -m recipes.results write"


def test_the_page_is_short_and_its_pictures_exist() -> None:
    assert len(PAGE.split()) <= 2500
    pictures = re.findall(r"\]\(((?:images|results)/[\w-]+\.png)\)", PAGE)
    assert len(pictures) >= 4 and all((ROOT / "docs" / picture).stat().st_size < 300_000 for picture in pictures)


def test_the_text_of_the_page_has_no_numbers_of_its_own() -> None:
    written = re.sub(r"\{\w+\}|\d{4}\.\d{5}", "", TEXT)
    assert set(re.findall(r"\d+\.\d+", written)) <= LITERAL
    assert not re.search(r"\d %(?! intervals?\b)", written)


def test_numbers_of_the_text_are_those_of_the_tables() -> None:
    """Computed here again, without the functions of the page."""
    bare, one = (rows("bare-open-masked-0", c)["floating"] for c in ("bare", "bare candidate"))
    assert f"{bare.mean():.3f} [" in PAGE and f"{one.mean():.3f} [" in PAGE
    first = {m: rows(f"{m}-0", "as is")["first_share"] for m in ("causal-next", "causal-masked", "open-masked")}
    keeps = np.minimum(first["causal-next"], first["causal-masked"]) - first["open-masked"]
    assert f"|0.1 |{keeps.mean():.3f} [" in PAGE
    back = [rows("open-masked-0", f"back at {word}")["follows"] for word in (5, 30, 50)]
    other = [rows("open-masked-0", f"other {i} at {word}")["follows"] for i in (260, 43, 284) for word in (5, 30, 50)]
    assert f"|0.5 |{np.mean(back) - np.mean(other):.3f} [" in PAGE
    assert f"({100 * back[0].mean():.0f} % after word 5,\n{100 * back[1].mean():.0f} % after word 30" in PAGE
    rise = {
        m: rows(f"{m}-0", "out")["floating"] - rows(f"{m}-0", "as is")["floating"]
        for m in ("open-masked", "causal-next")
    }
    assert f"|0.1 |{(rise['open-masked'] - rise['causal-next']).mean():.3f} [" in PAGE


def test_the_table_of_trainings_has_the_means_of_their_tables() -> None:
    shown = dict(re.findall(r"^\|`([\w-]+)` \|(.*)\|$", PAGE, re.MULTILINE))
    assert {"open-masked-0", "open-masked-1"} <= set(shown)
    for name in set(page.TRAININGS) & set(shown):
        as_is, out, back = (rows(name, condition) for condition in ("as is", "out", "back at 5"))
        followed = np.mean([rows(name, f"back at {word}")["follows"] for word in (5, 30, 50)])
        numbers = [as_is["sink_share"].mean(), *(part["floating"].mean() for part in (as_is, out, back))]
        cells = [cell.split(" [")[0] for cell in shown[name].split(" |")]
        assert cells[2] == f"{numbers[0]:.3f}" and cells[3] == f"{100 * followed:.0f} %", name
        assert cells[4:] == [f"{abs(number):.3f}" for number in numbers[1:]], name


def test_what_a_token_saves_is_that_of_the_same_later_tokens() -> None:
    saved = {}
    for name in ("smollm2-mdm", "smollm2-arm"):
        out, back = (rows(name, condition)["nats"] for condition in ("out", "back at 5"))
        saved[name] = np.array(
            [without[:-1].mean() - with_[1:].mean() for without, with_ in zip(out, back, strict=True)]
        )
    more = (saved["smollm2-mdm"] - saved["smollm2-arm"]).mean()
    assert f" {saved['smollm2-mdm'].mean():.3f} [" in PAGE and f" {more:.3f} [" in PAGE


@pytest.mark.parametrize("name", ["open-masked-0", "smollm2-mdm"])
def test_prefixes_with_and_without_the_comma_are_compared_text_by_text(name: str) -> None:
    table = pd.read_parquet(page.TABLES / f"prefixes-{name}.parquet")
    both = table.assign(mean=table["nats"].map(np.mean)).groupby(["text", "mark"])["mean"].mean().unstack()
    assert f" {(both['semicolon'] - both['candidate']).mean():.3f} [" in PAGE.replace("\n", " ")
    assert f"{len(both)} texts" in PAGE


def test_the_random_control_moves_attention_as_much_as_the_masked_anchors() -> None:
    table = pd.read_parquet(page.TABLES / "interventions-smollm2-mdm.parquet")
    lost, moved = [], []
    for _, text in table[table["condition"] == "out"].groupby("text"):
        by_change = text.set_index("change")
        goal = by_change.loc[by_change.index.str.startswith("mask-anchors"), "moved"].item()
        random = by_change[by_change.index.str.startswith("random")]
        nearest = random.iloc[(random["moved"] - goal).abs().to_numpy().argmin()]
        lost.append(nearest["nats"] - by_change.loc["plain", "nats"])
        moved.append(nearest["moved"])
    assert f"{np.mean(lost):.3f} [" in PAGE
    assert f"({np.mean(moved):.3f})" in PAGE.replace("\n", " ")


def test_the_page_says_how_many_tokens_bear_a_loss() -> None:
    targets = json.loads((page.TABLES / "targets.json").read_text())
    hidden, following = targets["open-masked-0"], targets["causal-next-0"]
    assert hidden == targets["causal-masked-0"] and f"{hidden:,} hidden or {following:,} next" in PAGE


def test_a_variant_shows_only_what_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "TABLES", tmp_path)
    monkeypatch.setattr(page, "objective_difference", lambda seed: 0.0)
    for name, token, texts in (("no-commas-0", ",", 19), ("no-prefix-0", " the", 19), ("random-prefix-0", ",", 4)):
        found = {"text": ["6-0"], "condition": ["back at 5"], "follows": [float(texts == 19)]}
        pd.DataFrame(found).to_parquet(tmp_path / f"{name}.parquet")
        (tmp_path / f"{name}.json").write_text(json.dumps({"token": token, "texts": texts, "of": 20}))
    said = page.variant_numbers()["variants"]
    assert "`no-commas-0`: `,`, so commas are not needed for it." in said
    assert "`no-prefix-0`: ` the`, which shows nothing alone" in said
    (tmp_path / "random-prefix-0.json").write_text(json.dumps({"token": ",", "texts": 19, "of": 20}))
    assert (
        "`random-prefix-0`: `,`, so constant prefixes are not needed for it; it is followed in under half"
        in (page.variant_numbers()["variants"])
    )
    assert "less than a quarter of the training texts, so it has no type." in said and "Not trained" not in said


def test_floating_and_the_strongest_key_are_correlated_as_the_page_says() -> None:
    for seed in (0, 1):
        read = pd.concat([pd.read_parquet(page.TABLES / f"{name}open-masked-{seed}.parquet") for name in ("", "bare-")])
        read = read[read["floating"].notna()]
        found = read["sink_share"].rank().corr(read["floating"].rank())
        assert f"{len(read)} readings" in PAGE and f"{found:.3f} with seed {seed}" in PAGE


def test_the_track_has_the_means_of_the_deep_layers() -> None:
    table = pd.read_parquet(page.TABLES / "track-open-masked-0.parquet")
    stages = table["checkpoint"].unique()
    for stage in (*stages[:2], stages[-1]):
        deep = table[(table["checkpoint"] == stage) & table["layer"].between(15, 29)]
        assert len(deep) == 15
        nats = deep.nats.iloc[0]
        shown = f"{deep.sink_share.mean():.3f}, {deep.floating.mean():.3f} and {nats:.{3 if nats < 10 else 1}f}"
        assert shown in PAGE.replace("\n", " ")


def test_the_readme_has_numbers_of_the_tables() -> None:
    part = (ROOT / "README.md").read_text(encoding="utf-8").split("## What we found")[1].split("\n## ")[0]
    first = [100 * rows(f"{m}-0", "as is")["first_share"].mean() for m in ("causal-masked", "causal-next")]
    bare, one = (rows("bare-open-masked-0", c)["floating"].mean() for c in ("bare", "bare candidate"))
    marks = pd.read_parquet(page.TABLES / "prefixes-smollm2-mdm.parquet").groupby("mark")
    floating, nats = marks["floating"].mean(), marks["nats"].apply(lambda rows: np.mean([row.mean() for row in rows]))
    shown = re.findall(r"\d+\.\d+|\d+(?= (?:to |%))", re.sub(r"SmolLM2-\d+M", "", part))
    assert shown == [
        *(f"{share:.0f}" for share in first),
        *(f"{floating[mark]:.2f}" for mark in ("semicolon", "candidate")),
        f"{nats['semicolon'] - nats['candidate']:.2f}",
        f"{bare:.2f}",
        f"{one:.2f}",
    ]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"keeps": {"value": 0.5, "verdict": "holds"}}, {}, "**holds** with seed 0"),
        ({"keeps": {"value": 0.5, "verdict": "holds"}}, {"keeps": {"value": 0.1}}, "**holds**"),
        (
            {"keeps": {"value": 0.5, "verdict": "holds"}},
            {"keeps": {"value": -0.1}},
            "**fails**: the seeds differ in sign",
        ),
        ({}, {}, "not measured yet"),
    ],
)
def test_a_primary_claim_needs_the_same_sign_with_the_second_seed(
    first: dict[str, dict[str, object]], second: dict[str, dict[str, object]], expected: str
) -> None:
    assert page.decide("keeps", first, second) == expected


def test_the_switch_is_decided_by_the_second_seed_alone() -> None:
    found = {"switch": {"value": 0.2, "verdict": "holds"}}
    assert page.decide("switch", found, {}) == "not measured yet"
    assert page.decide("switch", found, {"switch": {"value": 0.0, "verdict": "fails"}}) == "**fails**"


def test_a_study_replaces_all_earlier_verdicts_on_its_models_and_no_others(tmp_path: Path) -> None:
    claim = {"verdict": "holds", "details": {"ARM": 0.5}, "finding": "drift", "claim": "c", "whose": "w", "source": "s"}
    claim |= {"reason": "r", "interval": [0.25, None], "statistic": "t"}
    kept = tmp_path / "claims.parquet"

    def study(name: str, *claims: tuple[str, str, int]) -> list[tuple[str, str, str, int]]:
        (tmp_path / name).mkdir()
        content = [claim | {"id": i, "models": m.split(", "), "n": n, "value": float(n)} for i, m, n in claims]
        (tmp_path / name / "claims.json").write_text(json.dumps({"claims": content}))
        keep(tmp_path / name, kept)
        return [(row["run"], row["id"], row["models"], row["n"]) for row in pd.read_parquet(kept).to_dict("records")]

    study("one", ("a", "tiny-mdm", 9), ("b", "tiny-mdm, tiny-arm", 9), ("b", "tiny-dream, tiny-arm", 9), ("c", "", 0))
    assert study("two", ("a", "tiny-mdm", 5), ("d", "tiny-arm", 5)) == [
        ("two", "a", "tiny-mdm", 5),
        ("two", "d", "tiny-arm", 5),
        ("one", "b", "tiny-dream, tiny-arm", 9),
    ]
    row = pd.read_parquet(kept).iloc[0]
    assert (row["value"], row["low"], row["arm"]) == (5.0, 0.25, 0.5) and np.isnan(row["high"])


def test_the_paper_s_claims_are_verdicts_of_one_study() -> None:
    kept = page.kept_verdicts()
    shown = kept[kept["models"].isin([", ".join(page.PAIR), *page.PAIR, ""])]
    assert shown["run"].nunique() == 1


def test_only_verdicts_of_todays_definitions_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = pd.read_parquet(ROOT / "docs" / "results" / "claims.parquet")
    changed = kept.assign(statistic=kept["statistic"] + " of an earlier definition")
    (tmp_path / "results").mkdir()
    changed.to_parquet(tmp_path / "results" / "claims.parquet")
    monkeypatch.setattr(page, "DOCS", tmp_path)
    assert page.kept_verdicts().empty
    claims = [claim for claim in CLAIMS.values() if claim.whose == "the paper"]
    assert len(claims) >= 21 and page.claims_table().count("|unmeasured|") == len(claims)


def test_the_reveal_null_moves_when_a_strong_token_is_revealed_and_only_then() -> None:
    a = np.full((6, 60), 1.0)
    a[:, 3], a[:, 40] = 30, 60  # one anchor in the prompt, a stronger one that is written at step 3
    masked = np.zeros((6, 60), bool)
    masked[:3, 40] = True
    a[:3, 40] = 1  # a mask gets little
    null = nulls.reveal_null(a / a.sum(axis=1, keepdims=True), masked)
    assert null.argmax(axis=1).tolist() == [3, 3, 3, 40, 40, 40] and nulls.floating(null) > 0.1
    assert nulls.floating(nulls.reveal_null(a / a.sum(axis=1, keepdims=True), np.zeros_like(masked))) == 0


def test_the_published_floating_is_that_of_its_hatched_anchors() -> None:
    found = nulls.published().set_index(["layer", "what"])["floating"]
    hatched = figures.temporal(31)["anchor"].values.argmax(axis=1)
    pairs = [(s, t) for s in range(32) for t in range(s)]
    assert found[31, "measured"] == pytest.approx(np.mean([hatched[s] != hatched[t] for s, t in pairs]))


def test_an_added_sink_counts_as_attention_that_moved() -> None:
    plain = np.full((2, 168, 168), 1 / 168)
    assert distance(plain, plain) == 0
    assert distance(plain, 0.75 * plain) == pytest.approx(0.25)
    moved = plain.copy()
    moved[:, :, 0] += moved[:, :, 1]
    moved[:, :, 1] = 0
    assert distance(plain, moved) == pytest.approx(1 / 168)


def test_the_exploratory_measurements_run_on_a_small_model() -> None:
    lens = fl.load("tiny-mdm")
    passages = [p.text for sample in fl.read("world:common", limit=12, passages=3) for p in sample.passages]
    ids = lens.tokenizer(" ".join(passages), add_special_tokens=False)["input_ids"][:400]
    assert len(ids) > 250
    for found in explore.statistics(lens, set(), ids):
        assert all(0 <= found[name] <= 1 for name in ("all rows", "last row", "moved"))
    shown = explore.maps(lens, ids[0], ids)
    assert len(shown) == 24 and all(row["attention"].shape == (64,) and row["attention"].sum() <= 1 for row in shown)
    late = pd.DataFrame(explore.reveal(lens, ids[0], set(), [ids[1], ids[2]], ids))
    assert (late.groupby(["token", "at"]).size() == 13).all() and late["share"].between(0, 1).all()
