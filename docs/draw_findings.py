"""Draw the figures of the findings' pages on the bundled models, and write the verdicts into the pages.

    python docs/draw_findings.py [--runs FOLDER] [--only drift,flow]

Every figure comes from a run of the program; the commands are printed, and are given on the pages. The verdicts replace the
text between the two comments `<!-- verdicts -->` of docs/findings/NAME.md. With `--runs` the runs are kept, and used again
the next time.
"""

from __future__ import annotations

import argparse
import re
import shlex
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from floatlens.cli.main import run
from floatlens.evaluation.answers import answers_of
from floatlens.findings import style
from floatlens.findings.finding import FINDINGS
from floatlens.findings.settings import folders_for
from floatlens.findings.style import short
from floatlens.runs.folder import RunFolder
from floatlens.runs.run_list import model_runs
from floatlens.runs.traces import RunTraces

DOCS = Path(__file__).parent
MODELS = ("tiny-mdm", "tiny-dream", "tiny-arm")
TRACED = {
    f"{data}-{model}": f"trace {model} --data world:{data} --passages 5 --limit {limit} --out {data}-{model}"
    for data, limit in (("long", 12), ("fresh", 20))
    for model in MODELS
}
TRACED |= {
    f"{name}-{model}": f"trace {model} --data world:{data} --passages 5 {more} --out {name}-{model}"
    for name, data, more in (
        ("field", "long", "--limit 12 --record cache_drift,step_similarity,locality,massive"),
        ("lens", "fresh", "--limit 16 --max-new-tokens 12 --record lens_token"),
    )
    for model in MODELS
}
ANSWERED = {
    "knowledge": f"eval {' '.join(MODELS)} --data world:fresh --data world:common --data world:hops --both --passages 5 "
    "--limit 60 --max-new-tokens 16 --out knowledge",
    "noise": f"stress noise {' '.join(MODELS)} --data world:fresh --limit 40 --max-new-tokens 16 --out noise",
    "position": f"stress position {' '.join(MODELS)} --data world:fresh --passages 10 --limit 40 --max-new-tokens 16 "
    "--out position",
    "links": f"study {' '.join(MODELS)} --data world:common --data world:fresh --only links,stress --passages 5 --limit 24 "
    "--max-new-tokens 16 --out links",
    "causes": "ablate tiny-mdm tiny-arm --data world:fresh --limit 24 --max-new-tokens 8 --out causes",
}  # fmt: skip
# finding: (its runs, its figures as {file name: settings})
LONG, FRESH = (tuple(f"{data}-{model}" for model in MODELS) for data in ("long", "fresh"))
FIELD, LENS = (tuple(f"{name}-{model}" for model in MODELS) for name in ("field", "lens"))
PICTURES: dict[str, tuple[tuple[str, ...], dict[str, dict[str, Any]]]] = {
    "drift": (LONG, {"drift": {"layer": [0, 5]}, "drift-numbers": {"view": "numbers"}}),
    "absorption": (LONG, {"absorption": {}}),
    "geometry": (LONG, {"geometry": {}, "geometry-maps": {"view": "heatmap", "layer": [0, 5]}}),
    "tokens": (LONG, {"tokens": {}}),
    "heads": (FRESH, {"heads": {}, "heads-depth": {"view": "depth"}}),
    "flow": (LONG, {"flow": {}, "flow-layers": {"view": "layers"}}),
    "knowledge": (("knowledge",), {"knowledge": {}}),
    "stress": (("noise", "position"), {"stress": {}}),
    "links": (("links",), {"links": {}}),
    "causes": (("causes",), {"causes": {}, "causes-effects": {"view": "effects"}}),
    "softness": (FIELD, {"softness": {}}),
    "cache": (FIELD, {"cache": {}, "cache-reuse": {"view": "reuse"}}),
    "similarity": (FIELD, {"similarity": {}, "similarity-layers": {"view": "layers"}}),
    "massive": (FIELD, {"massive": {}}),
    "values": (FIELD, {"values": {}}),
    "locality": (FIELD, {"locality": {}, "locality-layers": {"view": "layers"}}),
    "decision": (LENS, {"decision": {}, "decision-steps": {"view": "steps"}}),
}
WIDTH, COLOURS = 1400, 200  # pixels of a picture of full width, and colours; keeps files small
BLOCK = re.compile(r"(<!-- verdicts -->\n).*?(<!-- verdicts -->)", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, help="folder in which the runs are kept (default: a temporary one)")
    parser.add_argument("--only", default=",".join(PICTURES), help="names of findings, separated by commas")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.runs or Path(temporary)
        for name in given.only.split(","):
            needs, pictures = PICTURES[name]
            runs = [make_run(folder / need, (TRACED | ANSWERED)[need]) for need in needs]
            draw(name, runs, pictures)


def make_run(target: Path, command: str) -> Path:
    """Return the run folder `target`; the command is run if the folder does not exist."""
    print(f"floatlens {command}")
    if not target.exists():
        words = [*shlex.split(command)[:-1], str(target)]
        if code := run(words):
            raise SystemExit(code)
    return target


def draw(name: str, runs: list[Path], pictures: dict[str, dict[str, Any]]) -> None:
    """Draw the figures of a finding, and write its verdicts into its page."""
    finding = FINDINGS[name]
    source: Any = runs
    if finding.reads == "traces":
        source = RunTraces([RunFolder.open(path) for path in runs])
    elif finding.reads == "both":  # a study has a folder per model
        folders = [folder for path in runs for folder in model_runs(path)]
        source = RunTraces(folders_for(finding, folders)), answers_of([folder.path for folder in folders])
    measured = finding.measure(source)
    for stem, settings in pictures.items():
        maps = settings.get("view", finding.views[0]) in finding.maps
        save(finding.figure(source if maps else measured, **settings), DOCS / "images" / "findings" / f"{stem}.png")
    page = DOCS / "findings" / f"{name}.md"
    text, found = BLOCK.subn(
        lambda match: match[1] + table(finding.claims(measured)) + "\n" + match[2], page.read_text()
    )
    if not found:
        raise SystemExit(f"{page} has no two lines <!-- verdicts --> to put the verdicts between")
    page.write_text(text)


def save(figure: Any, target: Path) -> None:
    """Save a figure as a PNG file with few colours."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with style.sheet():
        figure.savefig(target, dpi=WIDTH / style.WIDTH)
    with Image.open(target) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(target, optimize=True)
    print(f"{target.relative_to(DOCS)}: {target.stat().st_size // 1000} kB")


def table(verdicts: list[Any]) -> str:
    """Return the verdicts as a Markdown table."""
    rows = ["| claim | models | value [95 % interval] | n | verdict |", "|---|---|---|---|---|"]
    for v in verdicts:
        value, low, high = (x + 0.0 for x in (v.value, *v.interval))  # turns −0 into 0
        reason = f": {v.reason}" if v.reason else ""
        cells = [v.claim, ", ".join(map(short, v.models)), f"{value:.3g} [{low:.3g}, {high:.3g}]", str(v.n)]
        rows.append(f"| {' | '.join(cells)} | {v.verdict}{reason} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
