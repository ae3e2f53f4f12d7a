"""docs/results.md: what the runs show, in tables and figures, with commands, run times, limits, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from floatlens.evaluation.stress.collection import SHARES
from floatlens.findings.finding import FINDINGS
from floatlens.findings.stress import stress
from floatlens.findings.style import short
from floatlens.lens import Lens
from floatlens.models.checkpoint import find
from floatlens.stats import agresti_coull
from floatlens.store.estimate import measure_model, seconds
from recipes.results import draw, film, texts
from recipes.results.keep import jobs_of, kept_runs, matching, public, scores_of
from recipes.results.models import ANSWERING, SMALL
from recipes.results.parts import STRESSES, Job, Place
from recipes.results.sizes import SIZES
from recipes.results.verdicts import (
    PAPER,
    at_a_glance,
    claims_of,
    number,
    published,
    read,
    verdict_rows,
    verdicts_in,
)
from recipes.results.words import (
    claims_in_words,
    deployment_in_words,
    effects_in_words,
    film_in_words,
    floating_in_words,
    pairs_in_words,
    stress_in_words,
    summary_in_words,
    texts_in_words,
    verdicts_in_words,
)

BATCH = 16  # questions per batch of the estimated hours
LIMITS = """
- Size: the small models have 1.3 million parameters and know a synthetic world; SmolLM2 has 135 million. Nothing here
  says anything about models of 7 or 8 billion parameters.
- Questions: stress tests and interventions of the small models begin with the first question of a test set, among
  them those of the demo; the other runs begin after those.
- Eight new tokens are enough for the adapters, which answer in a word or two. SmolLM2 itself answers in sentences, which
  the stress tests and interventions with eight tokens cut off.
- One seed: every model was trained once, questions are drawn once, and decoding is greedy.
- The adapters of SmolLM2 were trained on few tokens; their cards say how many. Their answers and traces
  are computed in bfloat16, those of the small models in float32.
- The chat template of SmolLM2, with its system prompt, counts as structure in the claims on kinds of tokens; the anchors
  of `smollm2-mdm` lie there in all layers.
- Interventions change attention while it is computed; no model is trained again under them.
- The new and misleading answers in the changing collection are answers of other questions, put in place of the old one.
""".strip()


def print_plan(jobs: Sequence[Job], kept: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the hours of one CPU core that each run takes, by estimate, or took if it is kept.

    A run that is kept from another command is still to be made.
    """
    total = 0.0
    for job in jobs:
        done = kept.get(job.name)
        if done is not None and done["words"] == public(list(job.words)):
            print(f"{job.name:34} kept, {done['seconds'] / 3600:.2f} h", flush=True)
            continue
        hours = sum(hours_of(model, job) for model in job.models)
        total += hours
        print(f"{job.name:34} {hours:6.2f} h  {job.answers} answers per model, {', '.join(job.models)}", flush=True)
    print(f"{'to be made':34} {total:6.2f} h on one core")


def hours_of(model: str, job: Job) -> float:
    """Return the hours of one core for a model's part of a job."""
    lens = Lens(find(model))
    steps = lens.settings(max_new_tokens=job.new).step_count
    try:
        size = measure_model(lens.checkpoint, "float32")
    except ValueError:  # a network that transformers has no class for: as large as its sister
        size = measure_model(find("tiny-mdm"), "float32")
    forward, observation = seconds(size, "CPU core", job.prompt, job.new, steps, BATCH)
    return (forward + (observation if job.traced else 0)) * -(-job.answers // BATCH) / 3600


def write(
    docs: Path, place: Place, missing: Mapping[str, Mapping[str, str]], jobs: Mapping[str, Sequence[Job]]
) -> None:
    """Write docs/results.md, and its tables and figures to docs/results/, from the runs that are kept."""
    out = docs / "results"
    out.mkdir(parents=True, exist_ok=True)
    done = kept_runs(place.kept)
    sections = [
        head_section(done),
        glance_section(done, out),
        models_section(),
        architectures_section(done),
        interventions_section(done, out),
        deployment_section(done, out),
        film_section(done, out),
        texts_section(done, out),
        *(attention_section(run, done, out) for run in ATTENTION),
        answers_section(done, out),
        stress_section(done, out),
        claims_section(done, out),
        missing_section(missing, jobs, done),
        f"## Limits\n\n{LIMITS}",
        commands_section(done, out),
    ]
    text = "\n\n".join(section for section in sections if section) + "\n"
    (docs / "results.md").write_text(text, encoding="utf-8")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{docs / 'results.md'}; {size / 1e6:.2f} MB in {out}")


HEAD = """# Results: the study that FloatLens was made for

**These runs were made with earlier definitions of several claims; [today's](claims.md) differ.**

This page is written by `make results` ([commands and run times](#commands-and-run-times)); its tables are in
`docs/results/*.parquet`. Every claim was defined in git before it was run (`git log docs/claims.md`: last changed on
2026-11-17 at 12:54 UTC{began}), and
[every verdict](#all-verdicts) is listed, also where a claim does not hold. MDM stands for masked diffusion model, ARM for
autoregressive model.
[What is missing](#what-is-missing) names the runs that have not been made yet."""


def head_section(done: Mapping[str, Path]) -> str:
    """What this page is, and when the first of its runs began."""
    started = [time for run in done.values() if (time := read(run, "manifest.json").get("started"))]
    began = f"; the first of these runs began on {min(started)[:16].replace('T', ' at ')}" if started else ""
    return HEAD.format(began=began)


MODELS = """## Models, questions and sizes

| model | kind | attention | parameters | trained on |
|---|---|---|---|---|
| `tiny-arm` | ARM | causal | 1.3 million | synthetic world, 16.0 million tokens |
| `tiny-mdm` | MDM | bidirectional | 1.3 million | synthetic world, 20.5 million tokens |
| `tiny-dream` | MDM | bidirectional, from `tiny-arm` | 1.3 million | synthetic world, 20.1 million tokens |
| `tiny-ssm` | MDM | none: bidirectional Mamba | 1.4 million | synthetic world, 5.9 million tokens |
| `smollm2` | ARM | causal | 135 million | as published |
| `smollm2-arm` | ARM | causal | the same and an adapter | questions in English, 0.07 million tokens |
| `smollm2-canvas` | MDM | only the prompt is causal | the same and an adapter | questions in English, 0.6 million tokens |
| `smollm2-mdm` | MDM | bidirectional | the same and an adapter | questions in English, 2.0 million tokens |

The small models answer questions of a [synthetic world](howto/data.md) whose entities do not occur in training
(`world:fresh`; `world:hops` needs two passages, `world:long` long answers). SmolLM2 and its adapters answer questions
on an atlas of real facts that comes with FloatLens, Natural Questions and HotpotQA. {sizes} Intervals are 95 % intervals
over questions ([how](intervals.md))."""


def models_section() -> str:
    """What was asked of which models."""
    full = SIZES["full"]
    return MODELS.format(
        sizes=f"Attention is measured on {3 * full.traces} questions of the small models and on {full.real} of SmolLM2, "
        f"with passages and as short questions; answers and stress tests on {full.questions} and {full.real}, "
        f"interventions on {full.robustness} and {full.real_causes}, the changing collection on {full.deployed} and "
        f"{full.real_deployed} per stage and data set."
    )


def missing_section(
    missing: Mapping[str, Mapping[str, str]], jobs: Mapping[str, Sequence[Job]], done: Mapping[str, Path]
) -> str:
    """What the results lack: models, data, and runs that are not finished."""
    reasons = {name: reason for several in missing.values() for name, reason in several.items()}
    lines = [f"- {name}: {reason}." for name, reason in reasons.items()]
    waiting = [f"`{job.name}`" for several in jobs.values() for job in several if job.name not in done]
    if waiting:
        lines.append(f"- Runs that are not finished: {', '.join(waiting)}.")
    return "## What is missing\n\n" + "\n".join(lines) if lines else "## What is missing\n\nNothing: all runs are kept."


def claims_section(done: Mapping[str, Path], out: Path) -> str:
    """All verdicts of all runs."""
    table = claims_of(done)
    if table.empty:
        return ""
    table.to_parquet(out / "claims.parquet", index=False)
    said = ", ".join(f"{count} {verdict}" for verdict, count in table["verdict"].value_counts().items())
    return f"## All verdicts\n\n{len(table)} verdicts: {said}.\n\n" + verdict_rows(table)


def glance_section(done: Mapping[str, Path], out: Path) -> str:
    """How many claims hold for each model, and a figure of all verdicts beside the published numbers."""
    table = claims_of(done)
    if table.empty:
        return ""
    claims = [claim.id for finding in FINDINGS.values() for claim in finding.registered_claims()]
    places = {name: place for place, name in enumerate((*claims, *SMALL, *ANSWERING))}
    place = lambda names: names.map(lambda name: places.get(name, len(places)))  # noqa: E731
    shown = at_a_glance(table).sort_values(["id", "model"], key=place, kind="stable")
    draw.glance(shown, published(), (*SMALL, *ANSWERING), out / "verdicts.png")
    return (
        f"## At a glance\n\n{summary_in_words(shown)}\n\n{verdicts_in_words(shown, PAPER)}\n\n"
        "![All claims and models: value and verdict, beside the published values](results/verdicts.png)\n\n"
        "The number in a cell is the value of the claim's statistic, its colour the verdict: "
        "[all claims](claims.md) has the definitions and the smallest effects that matter. A claim that compares an MDM "
        "with an ARM is shown for the MDM, with the ARM that was trained on the same data (`tiny-arm`, `smollm2-arm`); "
        "[all verdicts](#all-verdicts) has the others, with intervals. On the right is what the paper's figures give for "
        "the same statistic; layers are those of LLaDA."
    )


ATTENTION = {
    "small-attention": ("Attention of the small models", ""),
    "real-attention": ("Attention of SmolLM2 and its adapters", "smollm2-"),
}
SHOWN = {
    "drift": "Received attention by step (downwards) and position; frames are anchors, dots are written tokens",
    "drift-numbers": "How much the anchors move, by layer",
    "absorption": "Attention on the anchors by layer, under five anchor rules",
    "tokens": "Anchor mass by kind of token, one bar per layer",
    "heads": "Copy score, mass on the evidence and query-only score of every head",
}


def attention_section(run: str, done: Mapping[str, Path], out: Path) -> str:
    """The paper's claims on attention in one run, for which models each holds, and its figures."""
    title, prefix = ATTENTION[run]
    table = claims_of({run: done[run]}) if run in done else pd.DataFrame()
    if table.empty:
        return f"## {title}\n\nNot answered yet: `{run}` is not finished."
    said = claims_in_words(table[table["source"].str.startswith(PAPER)])
    figures = [
        f"![{text}](results/figures/{prefix}{name}.png)\n\n*{text}.*"
        for name, text in SHOWN.items()
        if (out / "figures" / f"{prefix}{name}.png").exists()
    ]
    about = "The paper's claims on attention; [the pages of the findings](gallery.md) say how each is measured."
    return "\n\n".join([f"## {title}\n\n{about}\n\n{said}", *figures])


def stress_section(done: Mapping[str, Path], out: Path) -> str:
    """What the stress tests cost."""
    head = "## Stress tests: what noise, position, layout, masks and order cost\n\n"
    parts = []
    for size, names in (("small", ("small-stress",)), ("real", tuple(f"real-{test}" for test in STRESSES))):
        scores = scores_of(matching(done, *names))
        if scores.empty:
            continue
        scores["model"] = [short(model) for model in scores["model"]]
        scores["data"] = [draw.plain_name(data) for data in scores["data"]]
        draw.save(stress.figure(scores), out / f"stress-{size}.png")
        title = "the small models" if size == "small" else "SmolLM2 and its adapters"
        parts.append(f"{stress_in_words(scores)}\n\n![Accuracy under stress, {title}](results/stress-{size}.png)")
    return head + "\n\n".join(parts) if parts else head + "Not answered yet: no stress test is finished."


def answers_section(done: Mapping[str, Path], out: Path) -> str:
    """Accuracy with and without passages."""
    rows = []
    for run in matching(done, "small-knowledge", "real-answers").values():
        rows += [r for r in read(run, "results.json")["results"] if r["condition"] in ("open-book", "closed-book")]
    if not rows:
        return ""
    scores = ["accuracy", "em", "f1"]
    table = pd.DataFrame(rows)[["model", "data", "condition", "n", *scores, "intervals"]]
    for name in scores:
        table[f"{name}_low"], table[f"{name}_high"] = zip(*(row[name] for row in table["intervals"]), strict=True)
    table = table.drop(columns="intervals")
    table["model"] = [short(model) for model in table["model"]]
    table["data"] = [draw.plain_name(data) for data in table["data"]]
    table.to_parquet(out / "answers.parquet", index=False)
    shown = table[["model", "data", "condition", "n"]].assign(**{name: ranges(table, name) for name in scores})
    return "## Answers with and without passages\n\n" + markdown(shown)


def architectures_section(done: Mapping[str, Path]) -> str:
    """The first open check: does it float without attention?"""
    head = "## Other architectures: does it float without attention?\n\n"
    claims = verdicts_in(done["small-attention"]) if "small-attention" in done else []
    mine = [c for c in claims if "tiny-ssm" in c["models"] and c["n"] and c["finding"] in ("drift", "absorption")]
    if not mine:
        return (
            head
            + "Not answered yet: there is no finished run with `tiny-ssm`, a diffusion model of state-space layers."
        )
    beside = {(c["id"], *c["models"]): c for c in claims if c["n"]}
    rows = []
    for c in mine:
        twin = beside.get((c["id"], *("tiny-mdm" if model == "tiny-ssm" else model for model in c["models"])))
        rows.append(
            {
                "claim": c["claim"],
                "models": ", ".join(c["models"]),
                "tiny-ssm": judged(c),
                "tiny-mdm instead": judged(twin) if twin else "–",
            }
        )
    about = (
        "`tiny-ssm` is a diffusion model whose layers are bidirectional Mamba blocks; its implicit attention goes through "
        "the same definitions (see [models without attention](families.md#models-without-attention))."
    )
    answer = floating_in_words(mine)
    return head + (f"{answer}\n\n" if answer else "") + about + "\n\n" + markdown(pd.DataFrame(rows))


def interventions_section(done: Mapping[str, Path], out: Path) -> str:
    """The second open check: what are anchors and heads for, and what does pinning do to an MDM?"""
    head = "## Interventions: what are anchors and retrieval heads for?"
    judged_runs = {name: run for name, run in done.items() if name in ("small-causes", "real-causes")}
    claims = claims_of(judged_runs)
    effects = effects_of(matching(done, "small-robustness", "real-causes"))
    if claims.empty and effects.empty:
        return f"{head}\n\nNot answered yet: no run under interventions is finished."
    parts = [head]
    if len(claims):
        parts.append(f"**Answer**, claim by claim (loss of accuracy beyond the control):\n\n{claims_in_words(claims)}")
    for name, text in CAUSES.items():
        if (out / "figures" / f"{name}.png").exists():
            parts.append(f"![{text}](results/figures/{name}.png)")
    if len(effects):
        effects.to_parquet(out / "interventions.parquet", index=False)
        draw.interventions(effects, out / "interventions.png")
        parts += [
            "**Accuracy and robustness** by intervention: the change of accuracy in points beyond that of the control, and "
            f"in all:\n\n{effects_in_words(effects)}",
            "The control treats as many random positions or heads alike. A control can harm more than the intervention: "
            "anchors that are moved give their attention to ordinary positions, and the control multiplies the attention of "
            "other random positions by the same factors. The small models are asked under three levels of noise, over which "
            "accuracy is averaged; `loss` is what noise costs (positive: less robust). SmolLM2 and its adapters are asked "
            "without noise.",
            "![What interventions do to accuracy and to robustness](results/interventions.png)",
            markdown(
                effects[["model", "intervention", "score"]].assign(
                    **{name: ranges(effects, name) for name in ("beyond", "change")}, n=effects["n"]
                )
            ),
        ]
    return "\n\n".join(parts)


CAUSES = {
    "causes": "Accuracy over the number of masked anchors and of removed heads; dashed: as many random ones",
    "causes-effects": "What each intervention takes from the accuracy beyond its control",
}


def effects_of(runs: Mapping[str, Path]) -> pd.DataFrame:
    """Return the effects of interventions in some runs, one row per model, intervention and score.

    `change` is the change of the score, `beyond` what it exceeds that of the control by, each with its interval.
    """
    rows = []
    for run in runs.values():
        found = read(run, "results.json")
        entries = found["effects"] if "effects" in found else [e for e in found["results"] if e["change"]]
        for entry in entries:
            for score in ("accuracy", "loss"):
                if not (beyond := entry["beyond"].get(score)) or beyond["value"] is None:
                    continue
                row = {"model": short(entry["model"]), "intervention": entry.get("intervention"), "score": score}
                for name in ("beyond", "change"):
                    low, high = entry[name][score]["interval"]
                    row |= {name: entry[name][score]["value"], f"{name}_low": low, f"{name}_high": high}
                rows.append(row | {"n": beyond["n"]})
    order = {name: place for place, name in enumerate((*SMALL, *ANSWERING))}
    return pd.DataFrame(sorted(rows, key=lambda row: order.get(row["model"], len(order))))


def deployment_section(done: Mapping[str, Path], out: Path) -> str:
    """The third open check: a collection that changes while questions come in."""
    head = "## Deployment: a collection that changes while questions come in\n\n"
    runs = matching(done, "small-deployment") | matching(done, "deployment")
    if not runs:
        return head + "Not answered yet: no run over a changing collection is finished."
    results = {name: read(run, "results.json") for name, run in runs.items()}
    table = pd.DataFrame([row for found in results.values() for row in found["results"]])
    looked = pd.DataFrame([row for found in results.values() for row in found["attention"]])
    scores = scores_of(runs)
    for frame in (table, looked, scores):
        frame["model"] = [short(model) for model in frame["model"]]
        frame["data"] = [draw.plain_name(data) for data in frame["data"]]
    for name in SHARES:  # runs from before `summary` gave intervals of shares have bootstrap ones
        counts = table[name].astype(float) * table["n"]
        table[f"{name}_low"], table[f"{name}_high"] = agresti_coull(counts, table["n"])
    table.to_parquet(out / "deployment.parquet", index=False)
    looked.to_parquet(out / "deployment-attention.parquet", index=False)
    draw.deployment(table, out / "deployment.png")
    draw.roles(looked, out / "deployment-attention.png")
    columns = {name: ranges(table, name) for name in (*SHARES, "recall")}
    shown = table[["model", "data", "stage"]].assign(**columns, n=table["n"])
    return (
        f"{head}{deployment_in_words(table, looked)}\n\n{pairs_in_words(scores)}\n\n"
        "Each question is asked at six stages of its document's life "
        "([what they mean](evaluation.md#a-collection-that-changes)). "
        "`outdated` is the share of answers that the collection gave before, `misled` that of the misleading document.\n\n"
        "![Right, outdated and misled answers by stage](results/deployment.png)\n\n"
        + markdown(shown)
        + "\n\nWhere attention goes: attention of the writing rows per token of a passage, relative to all passages.\n\n"
        "![Attention by role of the passage](results/deployment-attention.png)"
    )


def film_section(done: Mapping[str, Path], out: Path) -> str:
    """Adaptation as a film."""
    head = "## Adaptation as a film: SmolLM2 becomes a diffusion model\n\n"
    if "film" not in done:
        return head + "Not made yet: no checkpoints of the training were measured."
    table = film.collect(done["film"])
    table.to_parquet(out / "film.parquet", index=False)
    draw.film(table, out / "film.png")
    means = table.groupby("trained").mean(numeric_only=True).reset_index()
    means["trained"] = [f"{tokens:,}" if tokens >= 0 else "SmolLM2 itself" for tokens in means["trained"]]
    columns = ["trained", "absorption top(1)", "absorption first", "sink", "floating", "copying"]
    shown = means[columns].rename(columns={"trained": "tokens of training"})
    return (
        f"{head}{film_in_words(table)}\n\n"
        "The same questions at each checkpoint of the training: absorption by layer, the share of the first token, "
        "how much the anchors move, and the best copy score of a head. Training begins with the adapter of the canvas model "
        "and a bidirectional prompt (0 tokens). Means over layers below.\n\n"
        "![Absorption by layer over training](results/film.png)\n\n" + markdown(shown)
    )


def texts_section(done: Mapping[str, Path], out: Path) -> str:
    """Attention on other tasks."""
    head = "## Beyond question answering\n\n"
    runs = matching(done, "texts-small") | matching(done, "texts-real")
    if not runs:
        return head + "Not made yet."
    table = pd.concat([texts.collect(run) for run in runs.values()], ignore_index=True)
    table.drop(columns="layer").to_parquet(out / "texts.parquet", index=False)
    rows = []
    measures = ("floating", "floating_writing", "absorption top(1)", "absorption first", "sink")
    for (model, task), part in table.groupby(["model", "task"], sort=False):
        row = {"model": model, "task": task, "prompt tokens": part["tokens"].mean(), "n": len(part)}
        rows.append(row | {name: part[name].mean() for name in measures})
    draw.tasks(table, out / "texts.png")
    return (
        f"{head}{texts_in_words(table)}\n\n"
        "Free continuation of plain text, key-value retrieval and infilling, with prompts as long as those of the questions "
        "(for infilling, the whole text with its masks). Infilling needs a model that looks ahead. Means over samples: "
        "`floating_writing` for the rows that write (none where a model writes a single token), `absorption` of the "
        "strongest and of the first position in per cent, `sink` for the first position beyond uniform attention.\n\n"
        "![Floating and absorption by task](results/texts.png)\n\n" + markdown(pd.DataFrame(rows))
    )


def commands_section(done: Mapping[str, Path], out: Path) -> str:
    """Commands and run times."""
    lines = [
        f"- `{name}`, {job['seconds'] / 60:.0f} minutes:\n  `{' '.join(quoted(job['words']))}`"
        for name, job in jobs_of(done).items()
    ]
    report = "[The full report of the small models](results/report.html).\n\n" if (out / "report.html").exists() else ""
    return (
        f"## Commands and run times\n\n{report}Manifests, with models, hashes and versions, are in `docs/results/runs`. "
        "Run times are those of one or two cores that other work shared.\n\n" + "\n".join(lines)
    )


def judged(claim: Mapping[str, Any]) -> str:
    """Return verdict, value and interval of a claim."""
    low, high = claim["interval"]
    return f"{claim['verdict']}: {number(claim['value'])} [{number(low)}, {number(high)}], n {claim['n']}"


def quoted(words: Sequence[str]) -> list[str]:
    """Return the words of a command, without folders of this machine.

    >>> quoted(["ablate", "mask-anchors(rule=sigma(3))"])
    ['floatlens', 'ablate', '"mask-anchors(rule=sigma(3))"']
    """
    shown = [Path(word).name if word.startswith("/") else word for word in words]
    shown = [f'"{word}"' if "(" in word else word for word in shown]
    return ["python -m recipes.results run", *shown] if shown[0] in ("texts", "film") else ["floatlens", *shown]


def ranges(table: pd.DataFrame, name: str) -> list[str]:
    """Return the values of a column with their intervals, from the columns `<name>_low` and `<name>_high`.

    >>> ranges(pd.DataFrame({"em": [0.5, None], "em_low": [0.25, None], "em_high": [0.75, None]}), "em")
    ['0.5 [0.25, 0.75]', '–']
    """
    columns = (table[name], table[f"{name}_low"], table[f"{name}_high"])
    return [
        f"{number(value)} [{number(low)}, {number(high)}]" if pd.notna(value) else "–"
        for value, low, high in zip(*columns, strict=True)
    ]


def markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown."""
    lines = [f"| {' | '.join(map(str, table.columns))} |", f"|{'---|' * len(table.columns)}"]
    for row in table.itertuples(index=False):
        lines.append(f"| {' | '.join(cell if isinstance(cell, str) else number(cell) for cell in row)} |")
    return "\n".join(lines)
