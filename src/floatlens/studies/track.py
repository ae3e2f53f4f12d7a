"""Track: what becomes of the sink, the anchors and the copying heads over a series of checkpoints of one model.

Every checkpoint reads the same texts from left to right, 8 tokens per step (`findings/window.py`), and writes the beginning
of each text again while it can see it, which shows the heads that copy. The result has one row per checkpoint and layer.
`probe.py` measures the same of a model while it trains.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from glob import glob
from itertools import groupby
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from floatlens import untrusted
from floatlens.data.prompt import Prompt, Region, build
from floatlens.data.sample import Sample
from floatlens.data.sequences import LEFT_TO_RIGHT
from floatlens.data.template import DEFAULT
from floatlens.errors import FloatLensError
from floatlens.evaluation.sources import open_sources, with_gold_at
from floatlens.findings import style, window
from floatlens.findings.absorption import absorption
from floatlens.findings.finding import as_table
from floatlens.findings.heads import heads
from floatlens.findings.other_papers import massive
from floatlens.findings.samples import mean, mean_over
from floatlens.findings.spelling import count, percent
from floatlens.findings.window import attend, numbers_of, reason_against
from floatlens.keywords import TrackKeywords
from floatlens.lens import Lens
from floatlens.models.adapter import CONFIG, WEIGHTS, read_safetensors
from floatlens.models.checkpoint import Checkpoint, find, split_name
from floatlens.models.describe import shape
from floatlens.models.family import FAMILIES
from floatlens.models.tokenizer import load_tokenizer
from floatlens.models.weights import check_weights
from floatlens.options import Data, Load, make
from floatlens.store.engine import ProgressCallback
from floatlens.store.folder import RunFolder
from floatlens.store.manifest import describe, describe_model
from floatlens.store.storage import hash_value
from floatlens.studies.analyse import FIGURES, Section
from floatlens.studies.texts import token_texts
from floatlens.trace.trace import Trace

NAME, FILE = "track", "track.parquet"
TEXTS = 8  # by default
COPIED = 32  # tokens of a text that are written again after its first 64
SHORTEST = window.FEWEST_KEYS + window.ROWS  # prompt
FEWEST = SHORTEST + window.FEWEST_WINDOWS * window.ROWS + window.HIDDEN  # of a question with passages and answer
RULE = "sigma(3)"
STEP = re.compile(r"(?:checkpoint|step|epoch|iter|at)[-_]?(\d+)$")
PARTS = re.compile(r"(\d+)")
# The numbers by checkpoint and layer, means over texts.
VARIABLES = {
    "sink_share": "attention on the position that gets most of it, of the rows that write the text",
    "sink_is_first": "share of texts in which that position is the first",
    "first_share": "attention on the first token beyond an even share",
    "absorption": f"share of all attention on anchors by {RULE}",
    "floating": "how far the anchors of a window of 8 tokens move to the next ones (0 = fixed, 1 = elsewhere)",
    "moved": "the same in units of attention",
    "copying": "best head's share of copied tokens at which its most attended key is the token being copied",
    "massive": "largest activation over the median of its position",
}
BEST = ("copying", "massive")  # summarised by the best layer; the others by the mean over the deep half of the layers
PANELS = {
    "sink_share": "sink: its share of attention, and its token",
    "first_share": "first token: share beyond an even one",
    "floating": "floating of the anchors",
    "copying": "copy score of the best head",
}
NUMBERS = dict.fromkeys(("nats", *VARIABLES), float) | dict.fromkeys(("step", "texts", "layer"), int)
COLUMNS = ("checkpoint", "step", "kind", "texts", "nats", "layer", "sink_token", *VARIABLES)


def track(
    checkpoints: Sequence[str] | str,
    *,
    data: str = "prose",
    out: str | Path | None = None,
    resume: bool = False,
    skip_broken: bool = False,
    watch: ProgressCallback | None = None,
    **options: Unpack[TrackKeywords],
) -> xr.Dataset:
    """Measure the same texts in a series of checkpoints of one model; each checkpoint is loaded once.

    Parameters
    ----------
    checkpoints: folders, Hub ids with a revision (NAME@REVISION), a model with an adapter (BASE+FOLDER), or patterns such as
        "out/checkpoint-*", which are sorted by step. NAME:FAMILY sets the family of one checkpoint.
    data: texts to continue (`prose` or a file), or questions, which are read with their passages and their first answer.
    out: run folder for the numbers, the figure, the report and one trace per checkpoint for the explorer.
    resume: continue the run in `out`, also with more checkpoints.
    skip_broken: leave out checkpoints that cannot be loaded.
    watch: called with a label and a total to report progress; returns a function that is called once per checkpoint.
    **options: the fields of `floatlens.options.Load` and `Data`; `limit` is 8 texts by default.

    >>> found = fl.track(["out/checkpoint-*"], data="prose", limit=4)                    # doctest: +SKIP
    >>> found["sink_share"].sel(layer=20)                                                # doctest: +SKIP
    """
    loading, reading = make({"limit": TEXTS, **options}, Load, Data)
    specs = expand([checkpoints] if isinstance(checkpoints, str) else checkpoints)
    sources = open_sources([data], reading, ())
    samples = [one for source in sources for one in with_gold_at(source.samples(), reading.gold_at)]
    series, broken = check_series(specs, loading, skip_broken)
    tokenizer = common_tokenizer(series)
    names = [style.short(checkpoint.name, 60) for checkpoint in series]
    if len(set(names)) == len(names):  # such as checkpoint-500
        series = [replace(checkpoint, name=name) for checkpoint, name in zip(series, names, strict=True)]
    texts = token_samples(tokenizer, samples, reading)
    about = describe(NAME, {"data": [data], "read": reading, "load": loading}, data=[data])
    with RunFolder.create(out, about, resume=resume) if out is not None else nullcontext() as folder:
        done = {} if folder is None else {result.key: result.value for result in folder.results()}
        advance = watch("checkpoints", len(series)) if watch else lambda: None
        parts, models = [], {}
        for place, checkpoint in enumerate(series):
            lens, label = check_tracked(checkpoint, tokenizer=tokenizer), checkpoint.name  # it need not have its own
            models[label] = describe_model(checkpoint) if folder is not None else {}
            digest = hash_value(models[label] | {"hub": "" if checkpoint.folder else checkpoint.source})
            keys = {id_: (label, digest, id_) for id_ in texts}
            try:
                for id_, key in keys.items():
                    if key not in done:
                        done[key], trace = measure(lens, texts[id_])
                        if folder is not None:
                            shown = {} if id_ != next(iter(texts)) else _keep(folder, trace, place, id_)
                            folder.put(key, done[key], shown)
            except FloatLensError as error:
                if not skip_broken:
                    raise FloatLensError(f"{label}: {error}; leave it out, or pass --skip-broken") from error
                broken[label] = str(error)
            else:
                parts.append(rows_of(label, lens.family.kind, [done[key] for key in keys.values()]))
            advance()
        if not parts:
            raise FloatLensError(f"no checkpoint could be measured; {_sentence(broken)}")
        found = as_dataset(pd.concat(parts, ignore_index=True)).assign_attrs(data=data, skipped=json.dumps(broken))
        if folder is not None:
            _write(folder, found, models, broken)
    return found


def _keep(folder: RunFolder, trace: Trace, place: int, id_: str) -> dict[str, str]:
    """Save the trace of one text for the explorer, which shows traces of the same text side by side, in this order."""
    begin = f"{str(trace.data.attrs['prompt'])[:60]} …"
    data = trace.data.drop_vars("attention_mean").assign_attrs(sample_id=id_, question=begin)
    return folder.save_trace(f"{place:04d} {trace.model} {id_}", Trace(data), detail="summary")


def _write(folder: RunFolder, found: xr.Dataset, models: Mapping[str, Any], broken: Mapping[str, str]) -> None:
    from floatlens.studies.report import make as make_report  # which makes a section of a track

    folder.write_table(NAME, as_frame(found))
    results = {"results": records_of(summarise(found)), "failed": broken, "models": models}
    folder.write_text("results.json", json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    section(found, folder.path)
    if not folder.remote:
        make_report([folder.path], folder.path / "report.html")
    folder.finish()


# Which checkpoints


def expand(specs: Sequence[str]) -> list[str]:
    """Replace patterns by the checkpoints that match, and sort neighbours that differ only in their numbers.

    >>> expand(["smollm2", "out/checkpoint-1000", "out/checkpoint-500"])
    ['smollm2', 'out/checkpoint-500', 'out/checkpoint-1000']
    """
    found: list[str] = []
    for spec in specs:
        name, family = split_family(spec)
        base, plus, pattern = name.rpartition("+")
        if not re.search(r"[*?\[]", pattern):
            found.append(spec)
            continue
        paths = [path for path in glob(str(Path(pattern).expanduser())) if Path(path).is_dir() or path.endswith("gguf")]
        if not paths:
            raise FloatLensError(f"no folder matches {pattern!r}; pass the folders of checkpoints")
        found += [f"{base}{plus}{path}{family and ':' + family}" for path in sorted(paths, key=_by_number)]
    groups = groupby(dict.fromkeys(found), key=lambda spec: PARTS.sub("", spec))
    ordered = [spec for _, several in groups for spec in sorted(several, key=_by_number)]
    if not ordered:
        raise FloatLensError("there are no checkpoints to track; pass at least one, such as out/checkpoint-*")
    return ordered


def _by_number(text: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in PARTS.split(text)]


def split_family(spec: str) -> tuple[str, str]:
    """The name of a checkpoint and the family at its end, empty if there is none.

    >>> split_family("smollm2:a2d-shifted"), split_family("org/name:arm")
    (('smollm2', 'a2d-shifted'), ('org/name:arm', ''))
    """
    name, _, family = spec.rpartition(":")
    return (name, family) if name and family in FAMILIES.names() else (spec, "")


def check_series(specs: Sequence[str], load: Load, skip_broken: bool) -> tuple[list[Checkpoint], dict[str, str]]:
    """The checkpoints that can be loaded, and the reason for each other one; an error unless those may be left out.

    Weights on this disk are checked without reading them; those on the Hub when they are downloaded.
    """
    usable: list[Checkpoint] = []
    broken: dict[str, str] = {}
    for spec in specs:
        try:
            folder = Path(split_name(spec)[0]).expanduser()
            if (folder / CONFIG).is_file() and not (folder / "config.json").is_file():
                raise FloatLensError(f"it is an adapter without its model; write MODEL+{folder}")
            checkpoint = find(spec, load)
            if checkpoint.folder is not None:
                check_weights(checkpoint)
            if checkpoint.adapter is not None:
                read_safetensors(checkpoint.adapter / WEIGHTS)
        except FloatLensError as error:
            broken[spec] = str(error)
        else:
            usable.append(checkpoint)
    if not usable or (broken and not skip_broken):
        raise FloatLensError(f"{_sentence(broken)}; leave broken checkpoints out, or pass --skip-broken")
    return usable, broken


def _sentence(broken: Mapping[str, str]) -> str:
    """Name the checkpoints that cannot be used, each with its reason."""
    return f"checkpoint {'; checkpoint '.join(f'{spec!r}: {reason}' for spec, reason in broken.items())}"


def common_tokenizer(series: Sequence[Checkpoint]) -> Any:
    """The tokenizer of all checkpoints; an error if they differ in it or in their architecture, or cannot be tracked."""
    first, sizes = series[0].name, _architecture(series[0])
    tokenizers: dict[tuple[str, str | None], Any] = {}
    for checkpoint in series:
        if differing := dict(_architecture(checkpoint).items() - sizes.items()):
            what, value = min(differing.items())
            but = f"architecture than {first}: {what} {value}, not {sizes[what]}"
            raise FloatLensError(f"{checkpoint.name} has another {but}; track checkpoints of one model")
        source = checkpoint.source, checkpoint.gguf_file
        if source not in tokenizers:
            tokenizers[source] = load_tokenizer(checkpoint)
        known: Any = next((tokenizer for tokenizer in tokenizers.values() if tokenizer is not None), None)
        if tokenizers[source] is not None and tokenizers[source].get_vocab() != known.get_vocab():
            raise FloatLensError(
                f"{checkpoint.name} has another tokenizer than {first}; track checkpoints of one model"
            )
    for checkpoint in series:
        check_tracked(checkpoint, tokenizer=known)
    return known


def check_tracked(checkpoint: Checkpoint, **loaded: Any) -> Lens:
    """The lens of a checkpoint with what is loaded already (`tokenizer`, `model`); an error if it cannot be tracked."""
    lens = Lens(checkpoint)
    lens.__dict__ |= loaded
    if reason := reason_against(lens):
        raise FloatLensError(f"{reason}; it cannot be tracked")
    return lens


def _architecture(checkpoint: Checkpoint) -> dict[str, Any]:
    config = checkpoint.native_config()
    return {"model type": config.model_type} | {k: v for k, v in shape(config).items() if k != "context"}


# What they read


def token_samples(tokenizer: Any, samples: Sequence[Sample], reading: Data = Data()) -> dict[str, list[int]]:
    """The tokens that every checkpoint reads, by id: texts cut to 168 tokens, questions with passages and answer."""
    texts = {s.id: s.question + (s.answers[0] if s.answers else "") for s in samples if s.continuation}
    found = token_texts(tokenizer, texts, window.LENGTH) if texts else {}
    for sample in samples:
        if sample.infill:
            raise FloatLensError(f"{sample.id} is a text with masks; pass complete texts, or questions")
        if sample.continuation:
            continue
        how: dict[str, Any] = {"order": reading.order, "template": reading.template or DEFAULT, "chat": reading.chat}
        ids = list(build(tokenizer, sample.question, sample.passages, **how).ids)
        ids += tokenizer(f" {sample.answers[0]}", add_special_tokens=False)["input_ids"] if sample.answers else []
        if len(ids) < FEWEST:
            raise FloatLensError(
                f"question {sample.id!r} has {len(ids)} tokens with its passages and answer, and at least {FEWEST} are "
                f"needed; add passages, or read texts such as prose"
            )
        found[sample.id] = ids
    return found


def measure(lens: Lens, ids: Sequence[int]) -> tuple[dict[str, Any], Trace]:
    """The numbers of one text by layer, and the trace of reading it."""
    prompt = max(SHORTEST, len(ids) - window.WRITTEN - window.HIDDEN)
    trace, matrices, nats = attend(lens, ids, prompt=prompt, record=("received", "massive"))
    read = numbers_of(matrices, nats, lens, ids, prompt=prompt)
    sinks, tokenizer = read["sink_by_layer"], lens.tokenizer
    assert tokenizer is not None
    found = {
        "layer": trace.data["layer"].values.tolist(),
        "sink_token": [str(tokenizer.decode([ids[sink]])) for sink in sinks],
        "sink_share": read["share_by_layer"],
        "sink_is_first": [float(sink == 0) for sink in sinks],
        "first_share": read["first_by_layer"],
        "absorption": (absorption.measure_one(trace, rule=RULE)["absorption"].values[0] / 100).tolist(),
        "floating": read["floating_by_layer"],
        "moved": read["moved_by_layer"],
        "copying": copy_scores(lens, ids).tolist(),
        "massive": (10 ** massive.measure_one(trace)["largest"].values).tolist(),
        "nats": mean(np.array(read["nats"])),
    }
    return found, trace


def copy_scores(lens: Lens, ids: Sequence[int]) -> Any:
    """The copy score of the best head of each layer, while the beginning of a text is written a second time."""
    document, rows = list(ids[: window.PROMPT]), window.ROWS
    prompt = Prompt("", document, [Region("doc1", 0, len(document))], gold=[0])
    steps = [list(range(start, start + rows)) for start in range(0, COPIED, rows)]
    order = steps if lens.family.kind == "mdm" else LEFT_TO_RIGHT
    trace = lens.replay(prompt, document[:COPIED], order, record=("received", "evidence"))
    return heads.measure_one(trace)["hit"].max("head").values


# The result


def step_of(label: str) -> int:
    """The training step that the name of a checkpoint ends with; -1 if there is none.

    >>> [step_of(name) for name in ("out/checkpoint-500", "org/pythia@step1000", "smollm2", "smollm2+at-64:a2d")]
    [500, 1000, -1, 64]
    """
    match = STEP.search(split_family(label)[0].rstrip("/"))
    return int(match[1]) if match else -1


def rows_of(label: str, kind: str, texts: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows of one checkpoint, one per layer: means over texts, and the commonest token at the sink."""
    tokens = zip(*(text["sink_token"] for text in texts), strict=True)
    columns = {
        "checkpoint": label,
        "step": step_of(label),
        "kind": kind,
        "texts": len(texts),
        "nats": mean(np.array([text["nats"] for text in texts])),
        "layer": texts[0]["layer"],
        "sink_token": [Counter(several).most_common(1)[0][0] for several in tokens],
        **{name: mean_over(np.array([text[name] for text in texts], float), 0) for name in VARIABLES},
    }
    return pd.DataFrame(columns)


def as_dataset(frame: pd.DataFrame) -> xr.Dataset:
    """Arrange the rows as variables (checkpoint, layer), in the order of the checkpoints."""
    order = list(dict.fromkeys(frame["checkpoint"]))
    found = frame.set_index(["checkpoint", "layer"]).to_xarray().reindex(checkpoint=order)
    alone = {name: found[name].isel(layer=0, drop=True) for name in ("nats", "texts", "step", "kind")}
    found = found.assign(alone).set_coords(["step", "kind"])
    for name, text in (VARIABLES | {"nats": "surprise per token of the text, in nats"}).items():
        found[name].attrs["description"] = text
    return found


def as_frame(found: xr.Dataset) -> pd.DataFrame:
    """The rows of a track, one per checkpoint and layer."""
    return found.to_dataframe().reset_index()[list(COLUMNS)]


def open_track(path: str | Path) -> xr.Dataset:
    """Open the track in a run folder, or the one that a callback wrote beside its checkpoints."""
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    if not file.exists():
        raise FloatLensError(f"{file} does not exist; make it with floatlens track")
    frame = untrusted.read_parquet(file, file.parent)
    if missing := set(COLUMNS) - set(frame.columns):
        raise FloatLensError(f"{file} has no column {min(missing)!r}, so it is not a track")
    try:
        frame = frame[list(COLUMNS)].astype({name: NUMBERS.get(name, str) for name in COLUMNS})
        if not 0 < len(frame) == frame["checkpoint"].nunique() * frame["layer"].nunique():
            raise ValueError("it should have one row per checkpoint and layer")
        return as_dataset(frame)
    except (TypeError, ValueError) as error:
        raise FloatLensError(f"{file} is not a track: {str(error).splitlines()[0]}") from None


def summarise(found: xr.Dataset) -> pd.DataFrame:
    """One row per checkpoint: means over the deep half of the layers; copying and massive in the best layer."""
    deep = found.isel(layer=slice(found.sizes["layer"] // 2, None))
    columns: dict[str, Any] = {name: found[name].values for name in ("checkpoint", "step", "kind", "texts", "nats")}
    columns["sink_token"] = [Counter(row).most_common(1)[0][0] for row in deep["sink_token"].values]
    for name in VARIABLES:
        columns[name] = found[name].max("layer").values if name in BEST else mean_over(deep[name].values, 1)
    return pd.DataFrame(columns)


def records_of(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table for JSON, with None instead of NaN."""
    return json.loads(table.to_json(orient="records", double_precision=12))


def sentence(found: xr.Dataset) -> str:
    """What became of the sink between the first and the last checkpoint."""
    rows = summarise(found)
    said = []
    for row in (rows.iloc[i] for i in sorted({0, len(rows) - 1})):
        sink = "the first token" if row.sink_is_first > 0.5 else f"most often {row.sink_token!r}"
        said.append(
            f"The first token of {style.short(row.checkpoint)} gets {round(100 * row.first_share)} points more attention "
            f"than an even share; the sink is {sink}, with {percent(row.sink_share)} of attention."
        )
    return " ".join(said)


def figure(found: xr.Dataset, *, backend: str = "matplotlib") -> Figure | pd.DataFrame:
    """Draw four maps: rows are checkpoints, columns layers. With `backend="none"`, return the numbers as a table."""
    if backend == "none":
        return as_frame(found)
    rows = summarise(found)
    with style.sheet():
        made = style.new_figure(1.5 + 0.4 * max(2, min(20, len(rows))))
        grid = style.panels(made, len(PANELS), 2, sharex=True, sharey=True)
        for axes, (name, title) in zip(grid.flat, PANELS.items(), strict=True):
            image = axes.imshow(
                found[name].values, style.SEQUENTIAL, aspect="auto", vmin=0, vmax=1, interpolation="none"
            )
            axes.set(title=title, facecolor="#dddddd")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
            axes.set_yticks(range(len(rows)), [style.short(label) for label in rows["checkpoint"]])
        made.colorbar(image, ax=grid, shrink=0.6, aspect=30)
        for place, row in rows.iterrows():
            token = "first" if row.sink_is_first > 0.5 else repr(row.sink_token)[:9]
            grid[0, 0].annotate(token, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=6)
        for axes in grid[-1]:
            axes.set_xlabel("layer")
        texts = count(int(rows["texts"].max()), "text")
        style.caption(made, f"{sentence(found)} Means over {texts}. Grey: no anchors.")
    return made


def section(found: xr.Dataset, target: Path, name: str = NAME) -> Section:
    """Draw the figure to `target`, and return the section of the report."""
    drawn = figure(found)
    assert isinstance(drawn, Figure)
    style.save(drawn, as_frame(found), target / FIGURES / name)
    rows = summarise(found).drop(columns=["step", "texts"])
    rows["checkpoint"], rows["sink_token"] = rows["checkpoint"].map(style.short), rows["sink_token"].map(repr)
    reading = "Rows are checkpoints, in the order in which they were trained; columns are layers."
    return Section(
        name,
        "Over training",
        question="What becomes of the sink, the anchors and the copying heads from checkpoint to checkpoint?",
        seen=[sentence(found)],
        figures=[{"stem": name, "title": "Checkpoints by layers", "reading": reading}],
        tables=[as_table("Mean over the deep half of the layers; copying and massive in the best layer", rows)],
        settings={"anchor rule": RULE, "measured on": count(int(found["texts"].max()), "text")},
    )
