"""floatlens figure: draw a finding of the paper for traced models, with its numbers and its verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.findings.verdict import Verdict


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FINDING",
            help="drift, absorption, geometry, sink, tokens, heads, flow, knowledge, stress, links, causes, softness, "
            "cache, similarity, massive, values, locality or decision.",
        ),
    ],
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or saved traces; their samples are combined.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for all files; inside the first run by default.")] = None,
    layer: Annotated[list[str] | None, typer.Option(help="Layers to show, such as 0,4-7, or average.")] = None,
    rule: Annotated[
        list[str] | None, typer.Option(help="Anchor rule, such as sigma(3); absorption takes several.")
    ] = None,
    sample: Annotated[
        str | None, typer.Option(help="Sample shown in maps; the first of each model by default.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="Head shown in the maps of geometry; the mean over heads by default.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Step shown by flow, and in the maps of queries and keys of geometry.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of samples per run.")] = None,
    paper: Annotated[bool, typer.Option("--paper", help="Also draw the paper's published figure.")] = False,
    as_json: common.AsJson = False,
) -> None:
    """Draw a finding of the paper from traces: PNG, SVG and PDF, the data behind them, and the verdicts on its claims.

    Examples:

        floatlens figure drift runs/mdm runs/arm --out figures --layer 0,15

        floatlens figure absorption runs/mdm --rule "sigma(3)" --rule "top(1)"

        floatlens figure absorption runs/llada --paper
    """
    from floatlens.findings.finding import FINDINGS, describe_setting, traces_for
    from floatlens.findings.verdict import write_claims, write_numbers
    from floatlens.store.runs import model_runs

    finding = FINDINGS[name]
    folders = [folder for run in runs for folder in model_runs(run)]
    chosen: Any = rule or None
    if rule and name != "absorption":
        if len(rule) > 1:
            raise FloatLensError(f"{name} takes one --rule, not {len(rule)}; only absorption compares several")
        chosen = rule[0]
    layers: Any = "average" if layer == ["average"] else common.parse_numbers(",".join(layer or ()) or None, "--layer")
    asked: dict[str, Any] = {"layer": layers, "rule": chosen, "sample": sample, "head": head}
    asked |= {"step": step, "paper": paper or None}
    given = {key: value for key, value in asked.items() if value is not None}
    for key in given:
        if key not in finding.figure_options:
            raise FloatLensError(f"{name} has no option --{key}; leave it out")
    # a selection of layers for the maps must not change the numbers that the claims use
    measured_by = {key: value for key, value in given.items() if key in finding.measure_options and key != "layer"}
    traces: Any = [folder.path for folder in folders]
    with shared.bar() as watch:
        if finding.reads in ("traces", "both"):
            opened = traces_for(finding, folders, limit, lambda count: watch(name, count))
            traces = opened if finding.reads == "traces" else (opened, traces)
        measured = finding.measure(traces, **measured_by)
    target = out or (runs[0].with_name(f"{runs[0].name}-figures") if folders[0].is_trace else runs[0])
    figures, numbers = (target, target / f"{name}-samples") if out else (target / "figures", target / "findings" / name)
    written = shared.draw(finding, figures / name, lambda view: traces if view in finding.maps else measured, **given)
    written.append(write_numbers(measured, numbers.with_name(f"{numbers.name}.parquet")))
    verdicts = finding.claims(measured)
    note, setting = "", str(measured.attrs["setting"])
    if setting != finding.setting:
        note = (
            f"The claims of {name} are about {describe_setting(finding.setting)}; these runs are in another setting, "
            f"{describe_setting(setting)}, and a study gives other values."
        )
    written.append(write_claims(target / "claims.json", verdicts))
    failed = sum(len(folder.errors()) for folder in folders)
    if as_json:
        claims = json.loads((target / "claims.json").read_text(encoding="utf-8"))["claims"]
        results = [claim for claim in claims if claim["finding"] == name]
        found = {"results": results, "note": note, "failed": failed, "files": [str(path) for path in written]}
        return shared.print_json(found | {"run": str(target)})
    show(verdicts, written, failed)
    shared.print_notes([note] if note else [])


def show(verdicts: list[Verdict], written: list[Path], failed: int) -> None:
    """Print the verdicts, and the names of the written files."""
    from rich.console import Console
    from rich.text import Text

    from floatlens.findings.spelling import number
    from floatlens.findings.style import short

    rows = []
    for v in verdicts:
        verdict = Text(v.verdict, style=shared.COLOURS.get(v.verdict, "yellow"))
        verdict.append(f"\n{v.reason}" if v.reason else "", style="dim")
        value = f"{number(v.value)}\n[{number(v.interval[0])}, {number(v.interval[1])}]"
        rows.append((v.claim, "\n".join(map(short, v.models)), value, v.n, v.setting, v.rule or None, verdict))
    columns = ("claim", "models", "value [95 % interval]", "n", "setting", "rule", "verdict")
    console = Console(highlight=False)
    shared.print_table(columns, rows, console, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 1, 0))
    if failed:
        console.print(f"{failed} samples failed during tracing and are left out: see errors.jsonl of the runs.")
    endings: dict[Path, list[str]] = {}
    for path in written:
        endings.setdefault(path.with_suffix(""), []).append(path.suffix[1:])
    shared.print_lines(f"{stem}.{'|'.join(found)}" for stem, found in endings.items())
