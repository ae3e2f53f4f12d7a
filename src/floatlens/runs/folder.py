"""A run folder: where the results of one command lie, and how they get there without being lost, halved or doubled.

manifest.json   what was asked, of which models and data; written first
lock            who writes here now
results/        one small file a finished sample, with its checksum and those of the traces it made
samples/        traces, one Zarr group each
broken/         results whose checksum did not fit; they are done again
index.jsonl     the list of results; made again from `results/` when it is missing or old
errors.jsonl    samples that failed, with the reason
answers.parquet, findings/, figures/, claims.json: made from the results at the end

A result counts when its file under `results/` is there under its own name, which is the last thing that happens to it.
The name comes from the result's key, so that a result that is done twice is there once.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from floatlens.errors import FloatLensError
from floatlens.files import written_atomically
from floatlens.runs import checksums
from floatlens.runs.lock import Lock
from floatlens.runs.storage import Disk, Remote, is_url, storage_at

MANIFEST = "manifest.json"
INDEX = "index.jsonl"
ERRORS = "errors.jsonl"
RESULTS, SAMPLES, BROKEN = "results", "samples", "broken"
# What must be the same for a run to go on: another machine may take over, another model or data set may not.
MATCHED = ("command", "asked", "models", "data", "template", "versions")
Key = tuple[str, ...]
_HELD: dict[str, Lock] = {}
_HOLDING = threading.Lock()


def safe_name(sample_id: str) -> str:
    """A file name for an id from data: readable where it can be, unique always, never a path.

    >>> safe_name("../../etc/passwd")
    'etc-passwd-3754d6cb3a38'
    """
    digest = hashlib.sha256(sample_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9]+", "-", sample_id)[:40].strip("-")
    return f"{readable}-{digest}" if readable else digest


@dataclass(frozen=True)
class Result:
    """A finished sample: its key, what it came to (JSON-able), and the checksums of the traces it made, by name."""

    key: Key
    value: dict[str, Any]
    trees: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Where it lies.

        >>> Result(("tiny-mdm", "../nq", "q1"), {}).file
        'results/e4/tiny-mdm-nq-q1-1e921fccf79c.json'
        """
        name = safe_name(json.dumps(self.key))
        return f"{RESULTS}/{hashlib.sha256(name.encode()).hexdigest()[:2]}/{name}.json"

    def to_bytes(self) -> bytes:
        record = {"key": list(self.key), "value": self.value, "trees": self.trees}
        return json.dumps({"sha256": checksums.of_value(record), "record": record}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Result:
        """The result in a file; ValueError if it is not what was written."""
        found = json.loads(content)
        try:
            record = found["record"]
            if checksums.of_value(record) != found["sha256"]:
                raise ValueError("its checksum does not fit")
            return cls(tuple(record["key"]), record["value"], record["trees"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is not a result ({type(error).__name__})") from None


class RunFolder:
    """One run, on disk or at a URL that fsspec reaches.

    >>> import tempfile
    >>> run = RunFolder.create(tempfile.mkdtemp() + "/run", {"command": "trace"})
    >>> run.put(("tiny-mdm", "question 1"), {"answer": "Rusk"})
    >>> run.manifest["command"], [result.value for result in run.results()]
    ('trace', [{'answer': 'Rusk'}])
    """

    def __init__(self, storage: Disk | Remote) -> None:
        self.storage = storage

    @property
    def place(self) -> str:
        """The path or URL, as it was given."""
        return self.storage.place

    @cached_property
    def path(self) -> Path:
        """The folder; for a URL a local one, whose files are sent there by `finish`."""
        return self.storage.root if isinstance(self.storage, Disk) else Path(tempfile.mkdtemp(prefix="floatlens-run-"))

    # --- start and end ------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | Path, manifest: dict[str, Any], resume: bool = False) -> RunFolder:
        """Start a run at `path`, and lock it; an existing run is refused unless `resume`, and then it must be the same.

        A resumed run is put in order first: see `recover`.
        """
        run = cls(storage_at(path))
        if isinstance(run.storage, Disk):
            root = run.storage.root
            if root.exists() and not root.is_dir():
                raise FloatLensError(f"--out {root} is a file, not a folder; name another place")
            if root.exists() and any(root.iterdir()) and not (root / MANIFEST).exists() and not _only_started(root):
                raise FloatLensError(f"{root} is not empty and holds no run; name a new folder with --out")
        there = run.storage.exists(MANIFEST)
        if there and not resume:
            raise FloatLensError(f"{run.place} holds a run already; use --resume to go on with it, or another --out")
        if isinstance(run.storage, Disk):
            (run.storage.root / SAMPLES).mkdir(parents=True, exist_ok=True)
        run.lock()
        try:
            if there:
                same(run.place, run.manifest, manifest)
                run.recover()
            else:
                text = json.dumps(manifest, indent=2, ensure_ascii=False, default=str) + "\n"
                run.storage.write(MANIFEST, text.encode())
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open a run that exists, to read it."""
        run = cls(storage_at(path))
        if not run.storage.exists(MANIFEST):
            raise FloatLensError(f"{path} is not a run folder: it has no {MANIFEST}; name a folder that --out made")
        _ = run.manifest  # one that cannot be read is refused now
        return run

    def lock(self) -> None:
        """Hold the folder; a process that holds it already goes on holding it."""
        with _HOLDING:
            name = self._lock_name
            if name not in _HELD:
                _HELD[name] = Lock(self.storage)

    def close(self) -> None:
        """Let go of the folder."""
        with _HOLDING:
            held = _HELD.pop(self._lock_name, None)
        if held is not None:
            held.release()
        if isinstance(self.storage, Remote) and "path" in self.__dict__:
            shutil.rmtree(self.path, ignore_errors=True)
            del self.__dict__["path"]

    def finish(self) -> None:
        """The run is whole: write its index, send what was made on the side, and let go of the folder."""
        self.write_index()
        self.send()
        self.close()

    def send(self) -> None:
        """Send tables and figures to the URL; on a disk they are there already."""
        if isinstance(self.storage, Remote) and "path" in self.__dict__:
            for path in sorted(p for p in self.path.rglob("*") if p.is_file()):
                self.storage.write(path.relative_to(self.path).as_posix(), path.read_bytes())

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _lock_name(self) -> str:
        return self.place if is_url(self.place) else str(Path(self.place).resolve())

    @property
    def manifest(self) -> dict[str, Any]:
        where = f"{self.place}/{MANIFEST}"
        try:
            found = json.loads(self.storage.read(MANIFEST).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise FloatLensError(f"{where} is not valid JSON ({error}); the run cannot be read") from None
        if not isinstance(found, dict):
            raise FloatLensError(f"{where} holds {type(found).__name__}, not an object; the run is broken")
        return found

    # --- results ------------------------------------------------------------------------------------------------------

    def put(self, key: Key, value: Mapping[str, Any], trees: Mapping[str, str] | None = None) -> None:
        """Keep a finished sample: from here on it counts. `trees` are what `save_trace` returned for it."""
        result = Result(tuple(key), dict(value), dict(trees or {}))
        self.storage.write(result.file, result.to_bytes())

    def results(self) -> list[Result]:
        """The finished samples whose records are whole, in order of their keys."""
        found = [result for _, result in self._records() if isinstance(result, Result)]
        return sorted(found, key=lambda result: result.key)

    def _records(self) -> Iterable[tuple[str, Result | str]]:
        """Each file under `results/` with its result, or with what is wrong with it."""
        for name in self.storage.names(RESULTS):
            try:
                yield name, Result.from_bytes(self.storage.read(name))
            except (ValueError, RecursionError) as error:
                yield name, f"{name}: {error}"

    def recover(self) -> list[str]:
        """Put a run that was cut off in order: sweep up what was half written, set aside what is broken.

        Returns what was set aside, and why. A result with a broken trace goes with its trace; both are done again.
        """
        self.storage.sweep()
        aside: list[str] = []
        kept: list[Result] = []
        for name, result in list(self._records()):
            if isinstance(result, str):
                aside.append(result)
                self._set_aside(name)
                continue
            broken = [t for t, digest in result.trees.items() if checksums.of_tree(self.storage, t) != digest]
            if broken:
                aside.append(f"{broken[0]}: its checksum does not fit")
                for each in (name, *(t for t in broken if self.storage.exists(t))):
                    self._set_aside(each)
            else:
                kept.append(result)
        self._write_index(kept)
        return aside

    def _set_aside(self, name: str) -> None:
        flat = name.replace("/", "-")
        number = sum(other.removeprefix(f"{BROKEN}/").startswith(flat) for other in self.storage.names(BROKEN))
        self.storage.move(name, f"{BROKEN}/{flat}.{number}")

    def forget(self, results: Iterable[Result]) -> None:
        """Drop results, so that they are done again."""
        for result in results:
            self.storage.remove(result.file)

    # --- the index ----------------------------------------------------------------------------------------------------

    def index(self) -> list[dict[str, Any]]:
        """A line for each result: its key, its file and its checksum. Made anew if it does not fit what is there."""
        files = self.storage.names(RESULTS)
        try:
            lines = [json.loads(line) for line in self.storage.read(INDEX).decode().splitlines()]
            if sorted(line["file"] for line in lines) == files:
                return lines
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return [_line(result) for result in self.results()]

    def write_index(self) -> None:
        """Make index.jsonl from what is there."""
        self._write_index(self.results())

    def _write_index(self, results: Iterable[Result]) -> None:
        lines = [json.dumps(_line(result)) for result in sorted(results, key=lambda result: result.key)]
        self.storage.write(INDEX, "".join(line + "\n" for line in lines).encode())

    # --- traces -------------------------------------------------------------------------------------------------------

    def trace_path(self, sample_id: str) -> Path:
        """Where the trace of a sample lies."""
        return self.path / SAMPLES / safe_name(sample_id)

    def save_trace(self, sample_id: str, trace: Any, dtype: str = "float32") -> dict[str, str]:
        """Write a trace; returns its name and checksum, for the `trees` of the result that it belongs to."""
        path = self.trace_path(sample_id)
        name = f"{SAMPLES}/{path.name}"
        trace.save(path, dtype=dtype)
        digest = checksums.of_tree(Disk(self.path), name)
        if isinstance(self.storage, Remote):
            self.storage.put(path, name)
            shutil.rmtree(path)
        return {name: digest}

    def samples(self) -> list[tuple[str, Path]]:
        """The finished traces, as (sample id, path), in order of their names. Those of a URL are fetched first."""
        if isinstance(self.storage, Remote):
            for name in sorted({tree for result in self.results() for tree in result.trees}):
                if not (self.path / name).exists():
                    self.storage.get(name, self.path / name)
        found = []
        for path in sorted((self.path / SAMPLES).glob("*/zarr.json")):
            if not path.parent.name.startswith("."):
                attributes = _attributes(path)
                found.append((str(attributes.get("sample_id", path.parent.name)), path.parent))
        return found

    # --- errors and tables --------------------------------------------------------------------------------------------

    def record_error(self, sample_id: str, reason: str) -> None:
        """Note a sample that failed: it is never dropped silently."""
        line = json.dumps({"sample": sample_id, "reason": reason}, ensure_ascii=False)
        with (self.path / ERRORS).open("a", encoding="utf-8", errors="surrogatepass") as file:
            file.write(line + "\n")

    def write_errors(self, errors: Iterable[tuple[str, str]]) -> None:
        """Make errors.jsonl anew from (sample, reason); none there are leave no file."""
        lines = [json.dumps({"sample": sample, "reason": reason}) + "\n" for sample, reason in errors]
        if lines:
            Disk(self.path).write(ERRORS, "".join(lines).encode())
        else:
            (self.path / ERRORS).unlink(missing_ok=True)

    def errors(self) -> list[dict[str, str]]:
        """The samples that failed, each with its reason."""
        if isinstance(self.storage, Remote) and not (self.path / ERRORS).exists():
            content = self.storage.read(ERRORS) if self.storage.exists(ERRORS) else b""
        else:
            content = (self.path / ERRORS).read_bytes() if (self.path / ERRORS).exists() else b""
        return [json.loads(line) for line in content.decode("utf-8", "surrogatepass").splitlines() if line.strip()]

    def write_table(self, name: str, table: pd.DataFrame) -> Path:
        """Write NAME.parquet at once or not at all."""
        target = self.path / f"{name}.parquet"
        with written_atomically(target) as temporary:
            table.to_parquet(temporary, index=False)
        return target

    def write_text(self, name: str, text: str) -> Path:
        """Write a file of text at once or not at all."""
        Disk(self.path).write(name, text.encode("utf-8", "surrogatepass"))
        return self.path / name


def same(place: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that was started otherwise, and name each field that differs."""
    now = json.loads(json.dumps(now, default=str))
    differing: list[str] = []
    for part in MATCHED:
        if part in before and part in now:
            differing += differences(before[part], now[part], "" if part == "asked" else part)
    if differing:
        raise FloatLensError(
            f"{place} was started with other settings ({'; '.join(differing[:6])}); use the same, or another --out"
        )


def differences(before: Any, now: Any, name: str = "") -> list[str]:
    """What differs between two JSON values, field by field.

    >>> differences({"steps": 4, "asking": {"seed": 0}}, {"steps": 4, "asking": {"seed": 1}})
    ['asking.seed: 0, now 1']
    """
    if isinstance(before, dict) and isinstance(now, dict):
        found: list[str] = []
        for key in sorted({*before, *now}):
            found += differences(before.get(key), now.get(key), f"{name}.{key}" if name else str(key))
        return found
    return [] if before == now else [f"{name}: {_short(before)}, now {_short(now)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."


def _line(result: Result) -> dict[str, Any]:
    digest = checksums.of_value({"value": result.value, "trees": result.trees})
    return {"key": list(result.key), "file": result.file, "sha256": digest}


def _only_started(root: Path) -> bool:
    """A run that was killed before its manifest was there."""
    return {path.name for path in root.iterdir() if not path.name.startswith(".")} <= {SAMPLES, "lock"}


def _attributes(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("attributes", {})
        return found if isinstance(found, dict) else {}
    except (ValueError, AttributeError, RecursionError) as error:
        raise FloatLensError(f"{path} is not a trace's description: {error}; run again with --resume") from None
