"""A run folder: where the results of one command lie, and how they get there without being left half written.

manifest.json (what was asked), samples/ (one Zarr group each), answers.parquet, errors.jsonl, findings/, figures/.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from floatlens.errors import FloatLensError
from floatlens.files import written_atomically

MANIFEST = "manifest.json"


def safe_name(sample_id: str) -> str:
    """A file name for an id from data: readable where it can be, unique always, never a path.

    >>> safe_name("../../etc/passwd")
    'etc-passwd-3754d6cb3a38'
    """
    digest = hashlib.sha256(sample_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9]+", "-", sample_id)[:40].strip("-")
    return f"{readable}-{digest}" if readable else digest


@dataclass(frozen=True)
class RunFolder:
    """One run on disk.

    >>> import tempfile
    >>> run = RunFolder.create(tempfile.mkdtemp() + "/run", {"command": "trace"})
    >>> run.manifest["command"], run.samples()
    ('trace', [])
    """

    path: Path

    @classmethod
    def create(cls, path: str | Path, manifest: dict[str, Any], resume: bool = False) -> RunFolder:
        """Start a run at `path`; an existing run is refused unless `resume`, and then its manifest must be the same."""
        run = cls(Path(path))
        if run.path.exists() and not run.path.is_dir():
            raise FloatLensError(f"--out {run.path} is a file, not a folder; name another place")
        if (run.path / MANIFEST).exists():
            if not resume:
                raise FloatLensError(f"{run.path} holds a run already; use --resume to go on with it, or another --out")
            asked = json.loads(json.dumps(manifest, default=str)).get("asked")
            if (before := run.manifest.get("asked")) != asked:
                keys = sorted({*(before or {}), *(asked or {})})
                differing = [k for k in keys if (before or {}).get(k) != (asked or {}).get(k)]
                raise FloatLensError(
                    f"{run.path} was started with other settings ({', '.join(differing)}); use the same, or another --out"
                )
            return run
        if run.path.exists() and any(run.path.iterdir()):
            raise FloatLensError(f"{run.path} is not empty and holds no run; name a new folder with --out")
        (run.path / "samples").mkdir(parents=True, exist_ok=True)
        with written_atomically(run.path / MANIFEST) as temporary:
            temporary.write_text(json.dumps(manifest, indent=2, ensure_ascii=False, default=str) + "\n")
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open a run that exists."""
        if not (Path(path) / MANIFEST).is_file():
            raise FloatLensError(f"{path} is not a run folder: it has no {MANIFEST}; name a folder that --out made")
        return cls(Path(path))

    @property
    def manifest(self) -> dict[str, Any]:
        try:
            found = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
        except ValueError as error:
            raise FloatLensError(
                f"{self.path / MANIFEST} is not valid JSON ({error}); the run cannot be read"
            ) from None
        if not isinstance(found, dict):
            raise FloatLensError(
                f"{self.path / MANIFEST} holds {type(found).__name__}, not an object; the run is broken"
            )
        return found

    def trace_path(self, sample_id: str) -> Path:
        """Where the trace of a sample lies."""
        return self.path / "samples" / safe_name(sample_id)

    def samples(self) -> list[tuple[str, Path]]:
        """The finished traces, as (sample id, path), in order of their names."""
        found = []
        for path in sorted((self.path / "samples").glob("*/zarr.json")):
            if not path.parent.name.startswith("."):
                attributes = json.loads(path.read_text(encoding="utf-8")).get("attributes", {})
                found.append((str(attributes.get("sample_id", path.parent.name)), path.parent))
        return found

    def record_error(self, sample_id: str, reason: str) -> None:
        """Note a sample that failed: it is never dropped silently."""
        line = json.dumps({"sample": sample_id, "reason": reason}, ensure_ascii=False)
        with (self.path / "errors.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def errors(self) -> list[dict[str, str]]:
        """The samples that failed, each with its reason."""
        path = self.path / "errors.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.strip()]

    def write_table(self, name: str, table: pd.DataFrame) -> Path:
        """Write NAME.parquet at once or not at all."""
        target = self.path / f"{name}.parquet"
        with written_atomically(target) as temporary:
            table.to_parquet(temporary, index=False)
        return target
