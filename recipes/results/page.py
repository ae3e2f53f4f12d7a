"""Write docs/results.md from the tables of the plan, the published figures and the kept study of the small models.

The text is in page.md. Every number in it is a name in braces that is filled in here from data; a number whose table is
missing reads "not measured yet".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from floatlens.findings.finding import CLAIMS
from floatlens.stats import HOLDS, INCONCLUSIVE, NOT_TESTABLE, interval_of_mean, spearman
from recipes.results import draw
from recipes.results.facts import facts
from recipes.results.switch import PRIMARY, TEXTS, column, follows, read_tables, verdicts

HERE = Path(__file__).parent
TABLES = HERE / "switch-tables"
DOCS = HERE.parents[1] / "docs"
MISSING = "not measured yet"
SENTENCES = {
    "moves": "the paper's claim: floating on ordinary prose, `open-masked` minus `causal-next`",
    "keeps": "first-token share, the smaller of the two causal models minus `open-masked`",
    "type": "the sink follows its token: candidate minus control tokens",
    "absent": "floating with the token taken out minus as it is, `open-masked` minus `causal-next`",
    "switch": "floating without punctuation minus with one candidate put back, `open-masked`",
}
ROLES = {
    "moves": "reported first",
    **dict.fromkeys(PRIMARY, "primary"),
    "switch": "tested on seed 1",
}
DEEP = 15  # the first layer of the deep half
TRAININGS = {
    "open-masked-0": "matched rows, seed 0",
    "open-masked-1": "matched rows, seed 1",
    "no-commas-0": "every comma deleted",
    "no-prefix-0": "no constant prefix",
    "random-prefix-0": "a random prefix",
    "smollm2-mdm": "released, 2,000,000 tokens",
    "smollm2-canvas": "released, causal prompt",
    "smollm2-arm": "released",
    "smollm2": "the base",
}  # in the order of the table
VARIANTS = {"no-commas-0": "commas", "no-prefix-0": "constant prefixes", "random-prefix-0": "constant prefixes"}
CONTRASTS = {"drift.layers": "drift.layers_more", "heads.deep": "heads.deeper", "flow.gold": "flow.gold_more"}
WITHOUT_NULL = ("drift.floats", "drift.renewal")  # claims whose published figures have no null to be compared with
PREFIXED = ("open-masked-0", "smollm2-mdm", "smollm2-arm")
PAIR = ("tiny-mdm", "tiny-arm")  # the models of the table of the paper's claims


def write() -> None:
    """Write the page and its figures."""
    for name in draw.figures():
        drawn = draw.draw(TABLES, name, picture(name))
        print(f"{picture(name).relative_to(DOCS.parent)}{'' if drawn else ': not measured yet'}", flush=True)
    (DOCS / "results.md").write_text(page(), encoding="utf-8")
    print("docs/results.md", len(page().split()), "words")


def picture(name: str) -> Path:
    """The file of a figure; the README shows the first one too."""
    return DOCS / "images" / "switch.png" if name == "switch" else DOCS / "results" / f"{name}.png"


def page() -> str:
    """The text of the page; a figure that is not there is left out."""
    text = (HERE / "page.md").read_text(encoding="utf-8").format_map(numbers())
    missing = [name for name in draw.figures() if not picture(name).exists()]
    for name in missing:
        text = re.sub(rf"!\[[^]]*\]\(results/{name}\.png\)", f"*Figure {MISSING}.*", text)
    return text


def numbers() -> dict[str, str]:
    """Every number and table of the page by name."""
    return {
        "verdicts": verdict_table(),
        "refutation": refutation(),
        "claims": claims_table(),
        "trainings": trainings_table(),
        **variant_numbers(),
        **switch_numbers(),
        **other_numbers(),
    }


def number(value: float) -> str:
    """
    >>> number(0.20661), number(-0.0001), number(12.34)
    ('0.207', '0.000', '12.3')
    """
    shown = f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
    return shown.removeprefix("-") if float(shown) == 0 else shown


def spread(values: pd.Series | np.ndarray) -> str:
    """Mean and 95 % interval over texts."""
    there = np.asarray(values, float)
    there = there[np.isfinite(there)]
    mean, (low, high) = interval_of_mean(there)
    return f"{number(mean)} [{number(low)}, {number(high)}]"


def verdict_table() -> str:
    """The claims of the plan: their effects with each seed, and the verdict of the plan's procedure."""
    seeds = [verdicts(TABLES, seed) for seed in (0, 1)]
    rows = []
    for name, sentence in SENTENCES.items():
        shown = [shorten(found[name]) if name in found else MISSING for found in seeds]
        smallest = next((str(found[name]["smallest"]) for found in seeds if name in found), "")
        rows.append((f"**{name}** ({ROLES[name]})", sentence, smallest, *shown, decide(name, *seeds)))
    return markdown(("claim", "effect", "smallest", "seed 0", "seed 1", "verdict"), rows)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown.

    >>> print(markdown(("a", "b"), [("1", "2")]))
    |a |b|
    |---|---|
    |1 |2|
    """
    lines = [f"|{' |'.join(cells)}|" for cells in (head, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(head)}", *lines[1:]])


def shorten(row: Mapping[str, Any]) -> str:
    return f"{number(row['value'])} [{number(row['low'])}, {number(row['high'])}]"


def decide(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """The verdict of a claim: that of seed 0 if the effect has the same sign with seed 1; `switch` is tested on seed 1."""
    if name == "switch":
        return f"**{second[name]['verdict']}**" if name in second else MISSING
    if name not in first:
        return MISSING
    verdict = first[name]["verdict"]
    if name not in second:
        return f"**{verdict}** with seed 0"
    if name in PRIMARY and np.sign(first[name]["value"]) != np.sign(second[name]["value"]):
        return "**fails**: the seeds differ in sign"
    return f"**{verdict}**"


def trainings_table() -> str:
    """Where the sink is after every training that was measured, whether it follows its token, and what floats without it."""
    head = (
        "model",
        "training",
        "sink on training text",
        "strongest key",
        "follows",
        "as is",
        "type out",
        "put back",
    )
    rows = []
    for name, training in TRAININGS.items():
        table = draw.read(TABLES, name)
        if table is None:
            continue
        known = json.loads((TABLES / f"{name}.json").read_text(encoding="utf-8"))
        sink = f"`{json.dumps(known['token'])[1:-1]}` in {known['texts']} of {known['of']}"
        share = number(column(table, "as is", "sink_share").mean())
        moved = [number(column(table, condition, "floating").mean()) for condition in ("as is", "out", "back at 5")]
        n = table["text"].nunique()
        training += f", {n} texts" if n < 2 * TEXTS else ""
        rows.append((f"`{name}`", training, sink, share, percent(follows(table, "back").mean()), *moved))
    return markdown(head, rows)


def variant_numbers() -> dict[str, str]:
    """What the variants of the rows show by the rules of the plan; what the released models save by a comma put back."""
    said: dict[str, list[str]] = {}  # models by what they show
    for name, lacks in VARIANTS.items():
        table = pd.read_parquet(TABLES / f"{name}.parquet")
        known = json.loads((TABLES / f"{name}.json").read_text(encoding="utf-8"))
        token = f"`{json.dumps(known['token'])[1:-1]}`"
        if known["texts"] * 4 < known["of"]:
            shown = f"{token} is the sink of less than a quarter of the training texts, so it has no type."
        elif known["token"] == ",":
            rarely = follows(table, "back").mean() < 0.5
            shown = f"{token}, so {lacks} are not needed for it" + (
                "; it is followed in under half of the cases." if rarely else "."
            )
        else:
            shown = f"{token}, which shows nothing alone: the seed changes the type as well."
        said.setdefault(shown, []).append(f"`{name}`")
    found = {"variants": " ".join(f"{' and '.join(names)}: {shown}" for shown, names in said.items())}
    released = {name: draw.read(TABLES, f"smollm2-{name}") for name in ("mdm", "arm")}
    saved = {name: nats_saved(table, "out", "back at 5") for name, table in released.items() if table is not None}
    found |= {f"put_back_{name}": spread(saved[name]) if name in saved else MISSING for name in released}
    found["objective_differs"] = number(max(objective_difference(seed) for seed in (0, 1)))
    both = len(saved) == len(released)
    return found | {"put_back_more": spread(saved["mdm"] - saved["arm"]) if both else MISSING}


def objective_difference(seed: int) -> float:
    """The largest difference of a layer's first-token share between the two causal adapters."""
    tables = read_tables(TABLES, seed)
    one, other = (
        np.stack(column(tables[name], "as is", "first_by_layer")) for name in ("causal-next", "causal-masked")
    )
    return float(abs(one.mean(axis=0) - other.mean(axis=0)).max())


def refutation() -> str:
    """What came out of that which would refute the sentence."""
    against = []
    for seed in (0, 1):
        tables, found = read_tables(TABLES, seed), verdicts(TABLES, seed)
        first = {name: column(tables[name], "as is", "first_share").mean() for name in ("causal-masked", "open-masked")}
        judged = {name: found[name]["verdict"] for name in ("type", "absent")}
        said = [f"{name}: {verdict}" for name, verdict in judged.items() if verdict not in (HOLDS, INCONCLUSIVE)]
        if first["causal-masked"] < 0.05:
            said.append("`causal-masked` has no first-token sink")
        if first["open-masked"] > 0.10:
            said.append("`open-masked` has a first-token sink")
        against += [f"seed {seed}, {what}" for what in said]
    none = "No outcome that would refute the sentence came about."
    return f"Against the sentence: {'; '.join(against)}." if against else none


def switch_numbers() -> dict[str, str]:
    """The numbers of the text, by name: those of seed 0 unless the name ends in _1."""
    both = [verdicts(TABLES, seed) for seed in (0, 1)]
    found = {f"verdict_{name}": decide(name, *both).replace("*", "") for name in PRIMARY}
    for seed in (0, 1):
        facts_file = TABLES / f"open-masked-{seed}.json"
        token = json.loads(facts_file.read_text(encoding="utf-8"))["token"] if facts_file.exists() else None
        found["candidate" if seed == 0 else "candidate_1"] = MISSING if token is None else f'"{token}"'
        tables, end = read_tables(TABLES, seed), "" if seed == 0 else "_1"
        wanted: dict[str, tuple[str, Callable[[pd.DataFrame], str]]] = {
            "follow_5": ("open-masked", lambda t: percent(t[t.condition == "back at 5"].follows.mean())),
            "follow_30": ("open-masked", lambda t: percent(t[t.condition == "back at 30"].follows.mean())),
            "follow_50": ("open-masked", lambda t: percent(t[t.condition == "back at 50"].follows.mean())),
            "follow_semicolon_5": ("open-masked", lambda t: percent(t[t.condition == "other 43 at 5"].follows.mean())),
            "follow_all": ("open-masked", lambda t: percent(follows(t, "back").mean())),
            "sinks_as_is": ("open-masked", lambda t: tokens(column(t, "as is", "sink_token"))),
            "sinks_out": ("open-masked", lambda t: tokens(column(t, "out", "sink_token"))),
            "share_as_is": ("open-masked", lambda t: spread(column(t, "as is", "sink_share"))),
            "float_as_is": ("open-masked", lambda t: spread(column(t, "as is", "floating"))),
            "float_out": ("open-masked", lambda t: spread(column(t, "out", "floating"))),
            "float_back": ("open-masked", lambda t: spread(column(t, "back at 5", "floating"))),
            "float_next": ("causal-next", lambda t: spread(column(t, "as is", "floating"))),
            "first_next": ("causal-next", lambda t: spread(column(t, "as is", "first_share"))),
            "first_masked": ("causal-masked", lambda t: spread(column(t, "as is", "first_share"))),
            "first_open": ("open-masked", lambda t: spread(column(t, "as is", "first_share"))),
            "float_bare": ("bare-open-masked", lambda t: spread(column(t, "bare", "floating"))),
            "float_bare_candidate": ("bare-open-masked", lambda t: spread(column(t, "bare candidate", "floating"))),
            "float_bare_semicolon": ("bare-open-masked", lambda t: spread(column(t, "bare semicolon", "floating"))),
            "sinks_bare": ("bare-open-masked", lambda t: tokens(column(t, "bare", "sink_token"))),
            "share_bare": ("bare-open-masked", lambda t: spread(column(t, "bare", "sink_share"))),
            "share_bare_candidate": ("bare-open-masked", lambda t: spread(column(t, "bare candidate", "sink_share"))),
            "saved_open": ("bare-open-masked", lambda t: spread(nats_saved(t))),
        }
        for name, (table, compute) in wanted.items():
            found[name + end] = compute(tables[table]) if table in tables else MISSING
        if {"open-masked", "bare-open-masked"} <= tables.keys():
            read = pd.concat([tables["open-masked"], tables["bare-open-masked"]]).dropna(subset="floating")
            found[f"link{end}"] = number(spearman(read["sink_share"].to_numpy(), read["floating"].to_numpy()))
            found[f"link_n{end}"] = str(len(read))
        if {"bare-open-masked", "bare-causal-next"} <= tables.keys():
            more = nats_saved(tables["bare-open-masked"]) - nats_saved(tables["bare-causal-next"])
            found[f"saved_more{end}"] = spread(more)
    return found


def tokens(sinks: pd.Series) -> str:
    """The most frequent sinks, with the number of texts: "," 38, "?" 1."""
    return ", ".join(f"`{json.dumps(token)[1:-1]}` in {count}" for token, count in sinks.value_counts().head(3).items())


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def nats_saved(table: pd.DataFrame, bare: str = "bare", one: str = "bare candidate") -> pd.Series:
    """Surprise at the same later tokens without the candidate minus with one; the inserted token shifts them by one."""
    pairs = zip(column(table, bare, "nats"), column(table, one, "nats"), strict=True)
    saved = [float(np.mean(without[:-1]) - np.mean(with_[1:])) for without, with_ in pairs]
    return pd.Series(saved, column(table, bare, "nats").index)


def other_numbers() -> dict[str, str]:
    """Numbers of prefixes, the hidden first token, the late token, the nulls, and the interventions."""
    found = {}
    targets = json.loads((TABLES / "targets.json").read_text(encoding="utf-8"))
    found |= {f"targets_{name.split('-')[1]}": f"{targets[f'{name}-0']:,}" for name in ("open-masked", "causal-next")}
    saved = {name: prefixed(name, "nats", "semicolon", "candidate") for name in PREFIXED}
    for name, rows in saved.items():
        key = name.replace("-", "_")
        found |= {f"prefix_{key}": spread(rows), f"prefix_n_{key}": str(len(rows))}
    found["prefix_more"] = spread(saved["smollm2-mdm"] - saved["smollm2-arm"])
    for mark in ("candidate", "semicolon"):
        found[f"prefix_floating_{mark}"] = number(prefixed("smollm2-mdm", "floating", mark).mean())
    hidden = draw.read(TABLES, "hidden-smollm2")
    if hidden is not None:
        rows = hidden[hidden["condition"] == "first token hidden"]
        found["hidden_second"] = f"{int((rows['sink'] == 1).sum())} of {len(rows)}"
        found["hidden_share"] = spread(rows["sink_share"])
    late = draw.read(TABLES, "reveal-open-masked-0")
    if late is not None:
        last = late[(late["step"] == late["step"].max()) & (late["token"] == late["token"].iloc[0])]
        for name, at in (("beside", last["at"].min()), ("ahead", last["at"].max())):
            rows = last[last["at"] == at]
            found[f"late_{name}"] = f"{int(rows['is_sink'].sum())} of {len(rows)}"
    null = draw.read_nulls(TABLES).groupby(["model", "what"])["floating"].mean()
    for name, key in {
        "llada_0": ("LLaDA-8B, layer 0", "measured"),
        "llada_0_reveal": ("LLaDA-8B, layer 0", "reveal"),
        "llada_0_mean": ("LLaDA-8B, layer 0", "reveal, mean strength"),
        "llada_31": ("LLaDA-8B, layer 31", "measured"),
        "llada_31_reveal": ("LLaDA-8B, layer 31", "reveal"),
        "tiny": ("tiny-mdm", "measured"),
        "tiny_reveal": ("tiny-mdm", "reveal"),
        "tiny_redrawn": ("tiny-mdm", "redrawn"),
        "released_null": ("smollm2-mdm", "measured"),
        "released_reveal": ("smollm2-mdm", "reveal"),
        "released_redrawn": ("smollm2-mdm", "redrawn"),
        "ssm": ("tiny-ssm", "measured"),
        "ssm_redrawn": ("tiny-ssm", "redrawn"),
    }.items():
        found[name] = number(null[key]) if key in null.index else MISSING
    for statistic in ("all rows", "last row", "window", "moved"):
        for model in ("open-masked", "causal-masked"):
            table = draw.read(TABLES, f"statistics-{model}-0")
            name = f"{statistic.replace(' ', '_')}_{model.split('-')[0]}"
            found[name] = number(column(table, "as is", statistic).mean()) if table is not None else MISSING
    found |= track_numbers()
    found["scores"] = scores()
    costs = draw.costs(TABLES)
    for kind in ("mask-anchors", "pin-anchors", "move-anchors", "add-sink(0", "add-sink(4"):
        name = kind.translate(str.maketrans("-( ", "___"))
        rows = None if costs is None else costs[costs["change"].str.startswith(kind) & (costs["condition"] == "out")]
        found[f"lost_{name}"] = MISSING if rows is None else spread(rows["lost"])
        found[f"moved_{name}"] = MISSING if rows is None else number(rows["moved"].mean())
        if costs is not None and kind in ("mask-anchors", "add-sink(4"):
            matched = draw.control(costs, kind, "out")
            found[f"control_lost_{name}"] = spread(matched["lost"])
            found[f"control_moved_{name}"] = number(matched["moved"].mean())
    found["cost_n"] = str(0 if costs is None else costs["text"].nunique())
    return found | deployment_numbers()


def prefixed(name: str, value: str, mark: str, minus: str = "") -> pd.Series:
    """A value by text, mean over the words of the prefix, which ends in `mark`; less that of the prefix with `minus`."""
    table = pd.read_parquet(TABLES / f"prefixes-{name}.parquet")
    table[value] = table[value].map(np.mean)
    means = table.pivot_table(index="text", columns="mark", values=value)
    return means[mark] - means[minus] if minus else means[mark]


def track_numbers() -> dict[str, str]:
    """Deep layers of the base, of the base with its mask lifted, and of the first two and the last checkpoint."""
    table = draw.read(TABLES, "track-open-masked-0")
    stages = table["checkpoint"].unique()
    found = {"track_n": str(table["texts"].iloc[0])}
    for name, stage in zip(("base", "lifted", "first", "second", "trained"), (*stages[:4], stages[-1]), strict=True):
        rows = table[(table["checkpoint"] == stage) & (table["layer"] >= DEEP)]
        for value in ("sink_share", "floating", "nats"):
            found[f"{name}_{value}"] = number(rows[value].mean())
    return found


def scores() -> str:
    """Accuracy of the matched adapters with passages, by data set."""
    table = draw.read(TABLES, "scores")
    if table is None:
        return MISSING
    shown = []
    for data, part in table.groupby("data", sort=False):
        rows = [f"`{row.model}` {percent(row.accuracy)} [{row.low:.2f}, {row.high:.2f}]" for row in part.itertuples()]
        shown.append(f"{data}: {', '.join(rows)}")
    return "; ".join(shown)


def deployment_numbers() -> dict[str, str]:
    """What the small pair answers while a document is there, replaced and beside a misleading one."""
    table = pd.read_parquet(DOCS / "results" / "deployment.parquet").set_index(["model", "stage"])
    return {
        f"{model.split('-')[1]}_{stage}": percent(table.loc[(model, stage), "accuracy_words"])
        for model in PAIR
        for stage in ("present", "replaced", "misled")
    }


def kept_verdicts() -> pd.DataFrame:
    """The verdicts of docs/results/claims.parquet that were computed with today's definition of their statistic."""
    table = pd.read_parquet(DOCS / "results" / "claims.parquet")
    today = {name: claim.statistic for name, claim in CLAIMS.items()}
    return table[[today.get(id_) == statistic for id_, statistic in zip(table["id"], table["statistic"], strict=True)]]


def claims_table() -> str:
    """The paper's claims: its statistic, its published value, the small models' values, the verdict."""
    kept = kept_verdicts()
    kept = kept[kept["models"].isin([", ".join(PAIR), *PAIR, ""])].drop_duplicates("id").set_index("id")
    shown, rows = published(), []
    for id_, claim in CLAIMS.items():
        if claim.whose != "the paper":
            continue
        ours = arm = ""
        verdict = "unmeasured"
        if id_ in kept.index:
            row, verdict = kept.loc[id_], kept.loc[id_, "verdict"]
            if verdict != NOT_TESTABLE:
                ours = f"{row['value']:.2g} [{row['low']:.2g}, {row['high']:.2g}]"
                arm = "" if np.isnan(row["arm"]) else f"{row['arm']:.2g}"
            if row["models"] == PAIR[1]:
                ours, arm = arm, ours
        if (contrast := CONTRASTS.get(id_)) in kept.index:
            row = kept.loc[contrast]
            testable = row["verdict"] != NOT_TESTABLE
            arm, value = (f"{row[name]:.2g}" if testable else "" for name in ("arm", "value"))
            if testable or verdict != NOT_TESTABLE:
                verdict += f"; MDM minus ARM {value}: {row['verdict']}".replace(" :", ":")
        cells = (f"{claim.sentence} (`{id_}`)", begin(claim.statistic), shown.get(id_), ours, arm, verdict)
        rows.append([cell or "–" for cell in cells])
    return markdown(("the paper's claim", "statistic", "published", "ours", "ARM's", "verdict"), rows)


def begin(statistic: str, least: int = 6) -> str:
    """A definition without parentheses: its first clauses up to a few words, and those that say what is subtracted.

    >>> begin("attention on the anchors, in percent of all, ARM minus MDM, mean over layers: as published")
    'attention on the anchors, in percent of all, ARM minus MDM'
    """
    clauses = re.split(r"[,:;] ", re.sub(r" \([^)]*\)", "", statistic))
    first = next((n for n in range(1, len(clauses)) if len(" ".join(clauses[:n]).split()) >= least), len(clauses))
    return ", ".join([*clauses[:first], *(clause for clause in clauses[first:] if "minus" in clause)])


def published() -> dict[str, str]:
    """What the paper's own figures give for a claim's statistic, by the id of the claim; layers are LLaDA's.

    >>> published()["drift.layers"], published()["knowledge.twice"]
    ('LLaDA 0.37', 'LLaDA 0.11, Dream -0.061')
    """
    values = {fact.statistic: fact.values for fact in facts()}
    pairs = (("LLaDA", "Llama"), ("Dream", "Qwen"))
    absorbed, gain = values["mean over layers (%)"], values["gain from passages (points)"]
    ahead, far = values["score with passages (%)"], values["distance of anchor mass, layers 0 and 31"]
    angle = values["share of the angle in the advantage (%)"]
    depth = values["score-weighted depth (0 first, 1 last layer)"]
    found = {
        "drift.floats": values["floating"],
        "drift.renewal": values["renewal"],
        "drift.right": values["movement of the centre (shares of the answer)"],
        "drift.layers": {"LLaDA": far["between"] - far["within"]},
        "absorption.more": {mdm: absorbed[arm] - absorbed[mdm] for mdm, arm in pairs},
        "geometry.angle": {layer: share / 100 - 0.5 for layer, share in angle.items()},
        "geometry.turn": {"LLaDA": bounded(angle["layer 28"] / 100) - bounded(angle["layer 11"] / 100)},
        "heads.deep": {mdm: depth[mdm] - 0.5 for mdm, _ in pairs},
        "knowledge.gain": {mdm: (gain[mdm] - gain[arm]) / 100 for mdm, arm in pairs},
        "knowledge.twice": {mdm: (gain[mdm] - 2 * gain[arm]) / 100 for mdm, arm in pairs},
        "knowledge.ahead": {mdm: (ahead[mdm] - ahead[arm]) / 100 for mdm, arm in pairs},
    }
    shown = {id_: ", ".join(f"{name} {value:.2g}" for name, value in each.items()) for id_, each in found.items()}
    return shown | {id_: f"{shown[id_]}, no null" for id_ in WITHOUT_NULL}


def bounded(share: float) -> float:
    """Share of the angle in both parts' absolute values, from its share of their sum."""
    return abs(share) / (abs(share) + abs(1 - share))
