"""`floatlens figure`: redraw a finding of the paper for traced models, with its numbers and its verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.findings.registry import Finding
    from floatlens.findings.verdict import Verdict
    from floatlens.trace import Trace

COLOURS = {"supported": "green", "not supported": "red", "inconclusive": "yellow"}


def command(
    name: Annotated[str, typer.Argument(metavar="FINDING", help="drift, absorption, geometry, tokens, heads or flow")],
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="run folders; samples of all of them are put together")
    ],
    out: Annotated[
        Path | None, typer.Option(help="folder for figures, data and claims.json; default: the first run's")
    ] = None,
    layer: Annotated[list[str] | None, typer.Option(help="layer to show (repeat for several), or 'average'")] = None,
    rule: Annotated[
        list[str] | None, typer.Option(help="anchor rule, such as sigma(3); absorption takes several")
    ] = None,
    sample: Annotated[
        str | None, typer.Option(help="id of the sample that maps show; default: each model's first")
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="head that the maps of geometry show; default: mean over heads")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="step that flow and the maps of geometry show; default: all or the last")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="use at most so many samples of each run")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")] = False,
) -> None:
    """Redraw a finding of the paper from traces: PNG, SVG and PDF, the data behind them, and the claim's verdict.

    Examples:

        floatlens figure drift runs/mdm runs/arm --out figures --layer 0 --layer 15

        floatlens figure absorption runs/mdm runs/arm --rule "sigma(3)" --rule "top(1)"

        floatlens figure flow runs/mdm --json
    """
    from floatlens.findings import style
    from floatlens.findings.registry import get
    from floatlens.findings.verdict import write_claims

    finding = get(name)
    traces = RunTraces(runs, limit)
    asked = {"layer": _layers(layer), "rule": _rule(name, rule), "sample": sample, "head": head, "step": step}
    given = {key: value for key, value in asked.items() if value is not None}
    measured = finding.measure(traces, **_accepted(finding, "measure", given))
    target = out or Path(runs[0])
    written = []
    for view in finding.views:
        settings = {**_accepted(finding, "figure", given), "view": view}
        source = traces if view in finding.maps else measured
        data = finding.figure(source, backend="none", **settings)
        stem = finding.name if view == finding.views[0] else f"{finding.name}-{view}"
        written += style.save(finding.figure(source, **settings), data, target / "figures" / stem)
    written += _write_numbers(measured, target / "findings" / f"{finding.name}.parquet")
    verdicts = finding.claims(measured)
    written.append(write_claims(target / "claims.json", verdicts))
    if as_json:
        results = [v.to_dict() for v in verdicts]
        print(
            json.dumps({"results": results, "files": [str(p) for p in written], "run": str(target)}, ensure_ascii=False)
        )
        return
    _show(verdicts, written)


class RunTraces(Sequence["Trace"]):
    """The traces of run folders, opened when they are asked for, so that a large run never lies in memory whole."""

    def __init__(self, runs: Sequence[Path], limit: int | None = None) -> None:
        from floatlens.runs.folder import RunFolder

        self.paths = [path for run in runs for _, path in RunFolder.open(run).samples()[:limit]]
        if not self.paths:
            raise FloatLensError(f"{', '.join(map(str, runs))} holds no traces; make some with `floatlens trace`")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: Any) -> Any:
        from floatlens.trace import Trace

        if isinstance(place, slice):
            return [Trace.open(path) for path in self.paths[place]]
        return Trace.open(self.paths[place])

    def __iter__(self) -> Iterator[Trace]:
        return (self[place] for place in range(len(self)))


def _layers(asked: list[str] | None) -> Any:
    if not asked:
        return None
    if asked == ["average"]:
        return "average"
    try:
        return [int(n) for part in asked for n in part.split(",")]
    except ValueError:
        raise FloatLensError(f"--layer {' '.join(asked)} is not understood; use numbers, or 'average' alone") from None


def _rule(name: str, asked: list[str] | None) -> Any:
    from floatlens.anchors import parse_rule

    if not asked:
        return None
    for spec in asked:
        parse_rule(spec)
    if name == "absorption":
        return asked
    if len(asked) > 1:
        raise FloatLensError(f"{name} takes one --rule, not {len(asked)}; only absorption puts several side by side")
    return asked[0]


def _accepted(finding: Finding, function: str, given: dict[str, Any]) -> dict[str, Any]:
    """Those options that the finding has; one that it has nowhere is refused."""
    known = {name: set(getattr(finding, name).__kwdefaults__ or ()) for name in ("measure", "figure")}
    for key in given:
        if key not in known["measure"] | known["figure"]:
            raise FloatLensError(f"--{key} means nothing to {finding.name}; leave it out")
    # a choice of layers for the maps must not narrow the numbers that the claims rest on
    kept = known[function] - {"layer"} if function == "measure" else known[function]
    return {key: value for key, value in given.items() if key in kept}


def _write_numbers(measured: Any, target: Path) -> list[Path]:
    """Numbers of each sample and layer, as one table; what has further dimensions stays with its figure's data."""
    from floatlens.files import written_atomically

    dims = {"sample", "layer", "rule"}
    names = [name for name, variable in measured.data_vars.items() if set(variable.dims) <= dims]
    table = measured[names].to_dataframe().reset_index()
    with written_atomically(target) as temporary:
        table.to_parquet(temporary, index=False)
    return [target]


def _show(verdicts: list[Verdict], written: list[Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("claim", "models", "value", "95 % interval", "n", "rule", "verdict"):
        table.add_column(column, overflow="fold")
    for v in verdicts:
        colour = COLOURS[v.verdict]
        verdict = f"[{colour}]{v.verdict}[/]" + (f"\n[dim]{v.reason}[/]" if v.reason else "")
        interval = f"{_spell(v.interval[0])} to {_spell(v.interval[1])}"
        table.add_row(v.claim, "\n".join(v.models), _spell(v.value), interval, str(v.n), v.rule or "–", verdict)
    console.print(table)
    console.print()
    for path in written:
        console.print(str(path), highlight=False, style="dim")


def _spell(x: float) -> str:
    return "–" if x != x else f"{x:.3g}"
