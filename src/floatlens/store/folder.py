"""A run folder: the results of one command, written so that none is lost, truncated or counted twice.

manifest.json   settings, models and data; written first
lock            which process writes here now
results/        one small file per finished sample, with its checksum and those of the traces it made
samples/        traces, one Zarr group each
broken/         results whose checksum did not match; they are computed again
errors.jsonl    samples that failed, with the reason; written at the end, from the results
problems.jsonl  lines of the data that could not be used, with the reason
answers.parquet, findings/, figures/, claims.json: computed from the results at the end

A result counts once its file exists under `results/`, which is the last step of writing it. The file name is derived from
the result's key, so a result that is computed twice is stored once, and a copy under another name is not counted.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from floatlens import untrusted
from floatlens.data.read import FULL_LIST as PROBLEMS
from floatlens.errors import FloatLensError
from floatlens.files import UNFINISHED, atomic_write, temporary_folder
from floatlens.store.lock import NAME as LOCK
from floatlens.store.lock import RunLock, check_nonce, read_holder
from floatlens.store.storage import Storage, hash_tree, hash_value
from floatlens.trace.attributes import read_attributes
from floatlens.trace.summarise import Detail

if TYPE_CHECKING:
    from floatlens.trace.trace import Trace

MANIFEST = "manifest.json"
ERRORS = "errors.jsonl"
PARTS = "parts.json"  # in a model's run of a study: which parts it did, and what failed
RESULTS, SAMPLES, BROKEN = "results", "samples", "broken"
FOLDERS = (RESULTS, SAMPLES, BROKEN, "figures", "findings", "models", "causes", "replays")
FILES = (
    *(MANIFEST, ERRORS, PROBLEMS, LOCK, "answers.parquet", "attention.parquet", "track.parquet", "results.json"),
    *("claims.json", PARTS, "plan.json", "report.html", "table1.md", "table1.tex", "table1.csv"),
)
# Fields that must be the same for a run to be resumed: the machine may change, the model or data set may not.
MATCHED = ("command", "asked", "models", "data", "versions")
# Commands whose runs may be resumed with less than they were started with. A study's manifest is then that of the smaller
# one, because its traces need fewer statistics; that of the others stays.
NARROWED, STUDY = ("trace", "eval", "ablate", "stress"), "study"
TREE = re.compile(rf"{SAMPLES}/[A-Za-z0-9][A-Za-z0-9-]*")
Key = tuple[str, ...]


def safe_name(sample_id: str) -> str:
    """A file name for an id from data: readable where possible, always unique, never a path."""
    digest = hashlib.sha256(sample_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9]+", "-", sample_id)[:40].strip("-")
    return f"{readable}-{digest}" if readable else digest


@dataclass(frozen=True)
class Result:
    """A finished sample.

    Parameters
    ----------
    key: what identifies it, such as model, data, condition and id.
    value: a JSON object.
    trees: checksums of the traces it made, by their names in the run folder (`samples/NAME`).
    """

    key: Key
    value: dict[str, Any]
    trees: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The name of its file."""
        name = safe_name(json.dumps(self.key))
        return f"{RESULTS}/{hashlib.sha256(name.encode()).hexdigest()[:2]}/{name}.json"

    def to_bytes(self) -> bytes:
        record = {"key": list(self.key), "value": self.value, "trees": self.trees}
        return json.dumps({"sha256": hash_value(record), "record": record}).encode()

    @classmethod
    def from_bytes(cls, content: bytes, name: str) -> Result | None:
        """The result in a file of this name; None if it is damaged, not a result, or a copy under another name."""
        try:
            found = json.loads(content)
            record = found["record"]
            result = cls(tuple(record["key"]), dict(record["value"]), dict(record["trees"]))
            valid = hash_value(record) == found["sha256"] and all(isinstance(part, str) for part in result.key)
            valid &= all(TREE.fullmatch(tree) and isinstance(digest, str) for tree, digest in result.trees.items())
        except (KeyError, TypeError, ValueError, RecursionError):
            return None
        return result if valid and result.file == name else None


class RunFolder:
    """One run, on disk or at a URL that fsspec reaches.

    The process that created or resumed it owns it, and alone writes results and manifest. Sent to a worker, it writes
    traces under the owner's lock.

    >>> import tempfile
    >>> run = RunFolder.create(tempfile.mkdtemp() + "/run", {"command": "trace"})
    >>> run.put(("tiny-mdm", "question 1"), {"answer": "Rusk"})
    >>> run.manifest["command"], [result.value for result in run.results()]
    ('trace', [{'answer': 'Rusk'}])
    """

    def __init__(self, location: str | Path, nonce: str | None = None) -> None:
        self.storage, self.nonce = Storage(location), nonce  # nonce of the lock, without which nothing is written
        self._lock: RunLock | None = None
        self._made: list[Path] | None = None  # folders that did not exist before; None if the run did

    def __reduce__(self) -> tuple[Any, ...]:
        return RunFolder, (self.location, self.nonce)

    def __str__(self) -> str:
        """The path or URL without credentials, for messages."""
        return str(self.storage)

    @property
    def location(self) -> str:
        """The path or URL as it was given: what a worker opens."""
        return self.storage.location

    @property
    def remote(self) -> bool:
        """Whether the run is at a URL."""
        return self.storage.folder is None

    @cached_property
    def path(self) -> Path:
        """The folder. At a URL a temporary one, whose files `finish` uploads; it is removed when the process ends."""
        if self.storage.folder is not None:
            return self.storage.folder
        return temporary_folder("run")

    def inside(self, *names: str) -> str | Path:
        """The path or URL of a run inside this one, such as that of one model of a study."""
        if self.storage.folder is not None:
            path = self.storage.folder.joinpath(*names)
            untrusted.inside(path, self.storage.folder)
            return path
        return "/".join((self.location, *names))

    # --- start and end ------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | Path, manifest: dict[str, Any], resume: bool = False) -> RunFolder:
        """Start a run at `path` and lock it.

        It is an error if a run exists, unless `resume` is set and the settings are the same. A resumed run is repaired
        first: see `recover`.
        """
        run = cls(path)
        root, made = run.storage.folder, []
        if root is not None:
            check_files(root)
            if root.exists() and not root.is_dir():
                raise FloatLensError(f"--out {root} is a file, not a folder; choose another --out")
            if root.exists() and not (root / MANIFEST).exists() and not _only_leftovers(root):
                raise FloatLensError(f"{root} is not empty and is not a run folder; choose a new folder with --out")
        run._check_new(resume)
        if root is not None:
            made = [folder for folder in (root / SAMPLES, root, *root.parents) if not folder.exists()]
            try:
                (root / SAMPLES).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FloatLensError(
                    f"--out {root} cannot be created: {error.strerror}; choose another --out"
                ) from None
        run._lock = RunLock(run.storage)
        run.nonce = run._lock.nonce
        try:
            if run._check_new(resume):  # another process may have been faster
                run._write_manifest(manifest)
                run._made = made
            else:
                before, now = run.manifest, json.loads(json.dumps(manifest, default=str))
                check_same_settings(str(run), before, now)
                smaller = before | {name: now[name] for name in ("asked", "models", "data") if name in now}
                if before.get("command") == STUDY and smaller != before:
                    run._write_manifest(smaller)
                run.recover()
        except BaseException:
            run.close()
            raise
        return run

    def _check_new(self, resume: bool) -> bool:
        """Whether there is no run here yet; raise an error if there is one and it is not to be resumed."""
        exists = self.storage.exists(MANIFEST)
        if exists and not resume:
            raise FloatLensError(f"{self} is already a run; use --resume to continue it, or another --out")
        return not exists

    def _write_manifest(self, manifest: Mapping[str, Any]) -> None:
        text = json.dumps(manifest, indent=2, ensure_ascii=False, default=str) + "\n"
        self.storage.write(MANIFEST, text.encode())

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open an existing run to read it; a trace that was saved alone counts as a run of one trace."""
        run = cls(path)
        if run.storage.folder is not None:
            check_files(run.storage.folder)
        if run.is_trace:
            return run
        if not run.storage.exists(MANIFEST):
            raise FloatLensError(f"{run} is not a run folder: it has no {MANIFEST}; pass a folder made with --out")
        _ = run.manifest  # one that cannot be read is refused now
        return run

    def check_lock(self) -> None:
        """Raise an error if this process does not own the folder, or no longer; called before every write."""
        if self.nonce is None:
            raise FloatLensError(f"{self} is open for reading only; resume the run to write to it")
        check_nonce(self.storage, self.nonce)

    def close(self) -> None:
        """Release the lock, and remove the temporary folder of a run at a URL."""
        if self._lock is not None:
            self._lock.release()
            self._lock = self.nonce = None
        if self.remote and "path" in self.__dict__:
            shutil.rmtree(self.path, ignore_errors=True)
            del self.__dict__["path"]

    def finish(self) -> None:
        """Complete the run: list its errors, upload all other files, and release the lock."""
        self.check_lock()
        self.storage.remove_partial()  # of workers that were killed
        self.write_lines(ERRORS, self.errors())
        if self.remote and "path" in self.__dict__:
            self.upload(self.path)
        self.close()

    def upload(self, local: Path) -> None:
        """Write the tables and figures in a local folder to the URL, where results, traces and models' runs are already."""
        self.check_lock()
        for path in sorted(path for path in local.rglob("*") if path.is_file()):
            name = path.relative_to(local).as_posix()
            if name not in (MANIFEST, LOCK) and name.partition("/")[0] not in (RESULTS, SAMPLES, "models"):
                self.storage.write(name, path.read_bytes())

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release the lock; a run that was started here and failed before its first result leaves nothing behind."""
        failed = kind is not None and issubclass(kind, Exception)
        held = failed and self.nonce is not None and read_holder(self.storage).get("nonce") == self.nonce
        unused = held and self._made is not None and set(self.storage.names()) <= {MANIFEST, LOCK}
        if unused:
            self.storage.remove(MANIFEST)
        self.close()
        for folder in (self._made or ()) if unused else ():
            with suppress(OSError):  # somebody else has put a file there
                folder.rmdir()

    @property
    def is_trace(self) -> bool:
        """Whether the folder is a trace, saved by `Trace.save`, and not a run."""
        folder = self.storage.folder
        return folder is not None and (folder / "zarr.json").is_file() and not (folder / MANIFEST).exists()

    @property
    def manifest(self) -> dict[str, Any]:
        if self.is_trace:
            return {"command": "Trace.save"}
        return untrusted.parse_json(self.storage.read(MANIFEST), f"{self}/{MANIFEST}")

    # --- results ------------------------------------------------------------------------------------------------------

    def put(self, key: Key, value: Mapping[str, Any], trees: Mapping[str, str] | None = None) -> None:
        """Write a finished sample. `trees` is the result of `save_trace` for it."""
        self.check_lock()
        result = Result(tuple(key), dict(value), dict(trees or {}))
        self.storage.write(result.file, result.to_bytes())

    def results(self) -> list[Result]:
        """The finished samples whose files are intact, sorted by key."""
        return sorted((result for _, result in self._records() if result is not None), key=lambda result: result.key)

    def _records(self) -> Iterator[tuple[str, Result | None]]:
        """Each file under `results/` with its result, or None if it is invalid."""
        for name, content in self.storage.read_many(self.storage.names(RESULTS)):
            yield name, Result.from_bytes(content, name)

    def recover(self) -> None:
        """Repair an interrupted run: remove partial files and errors, and move broken results to `broken/`.

        A result with a broken trace is moved with it; both are computed again, and what failed is tried again.
        """
        self.storage.remove_partial()
        for name, result in list(self._records()):
            trees = result.trees if result is not None else {}
            broken = [tree for tree, digest in trees.items() if hash_tree(self.storage, tree) != digest]
            if result is None or broken:
                for each in (name, *broken):
                    flat, there = each.replace("/", "-"), self.storage.names(BROKEN)
                    number = sum(other.startswith(f"{BROKEN}/{flat}") for other in there)
                    self.storage.move(each, f"{BROKEN}/{flat}.{number}")
            elif result.value.get("error"):
                self.storage.remove(name)

    # --- traces -------------------------------------------------------------------------------------------------------

    def trace_path(self, sample_id: str) -> Path:
        """The local path of a sample's trace."""
        return self.path / SAMPLES / safe_name(sample_id)

    def save_trace(
        self, sample_id: str, trace: Trace, dtype: str = "float16", detail: Detail = "full"
    ) -> dict[str, str]:
        """Write a trace; returns its name and checksum, for the `trees` of the result that it belongs to."""
        self.check_lock()
        name = f"{SAMPLES}/{safe_name(sample_id)}"
        if not self.remote:
            trace.save(self.path / name, dtype=dtype, detail=detail)
            return {name: hash_tree(self.storage, name)}
        with tempfile.TemporaryDirectory(prefix="floatlens-trace-") as folder:
            trace.save(Path(folder, name), dtype=dtype, detail=detail)
            self.storage.upload(Path(folder, name), name)
            return {name: hash_tree(Storage(folder), name)}

    def samples(self) -> list[tuple[str, Path]]:
        """The finished traces as (sample id, path), sorted by path. Those at a URL are downloaded first.

        Of a study that was resumed with fewer questions, those of these questions. A damaged one, or a link that leads out
        of the run, is left out with a warning.
        """
        if self.remote:
            for name in sorted({tree for result in self.results() for tree in result.trees}):
                if not (self.path / name).exists():
                    self.storage.download(name, self.path / name)
        found = []
        parts = untrusted.parse_json(self.storage.read(PARTS), f"{self}/{PARTS}") if self.storage.exists(PARTS) else {}
        traced = parts.get("traces")
        wanted = set(map(str, traced)) if isinstance(traced, list) else None
        folder = self.path / SAMPLES
        for path in [self.path / "zarr.json"] if self.is_trace else sorted(folder.glob("*/zarr.json")):
            if path.parent.name.startswith("."):
                continue
            try:
                attributes = read_attributes(path.parent, self.path)
            except FloatLensError as error:
                warnings.warn(f"left out: {error}", stacklevel=1)  # once per trace
                continue
            name = str(attributes.get("sample_id", path.parent.name))
            if wanted is None or name in wanted:
                found.append((name, path.parent))
        return found

    # --- errors and tables ----------------------------------------------------------------------------------

    def errors(self) -> list[dict[str, str]]:
        """The samples that failed, each with its reason."""
        failed = [result for result in self.results() if result.value.get("error")]
        names = [", ".join(each.key) if each.value.get("condition") else each.key[-1] for each in failed]
        return [{"sample": name, "reason": str(r.value["error"])} for name, r in zip(names, failed, strict=True)]

    def write_lines(self, name: str, values: Iterable[Mapping[str, Any]]) -> None:
        """Replace a file of one JSON object per line; there is no file if there are none."""
        if lines := [json.dumps(value) + "\n" for value in values]:
            self.write_text(name, "".join(lines))
            return
        self.check_lock()
        (self.path / name).unlink(missing_ok=True)
        if self.remote and self.storage.exists(name):  # of an earlier attempt
            self.storage.remove(name)

    def write_table(self, name: str, table: pd.DataFrame) -> Path:
        """Write NAME.parquet completely or not at all."""
        return self._write(f"{name}.parquet", table.to_parquet(index=False))

    def write_text(self, name: str, text: str) -> Path:
        """Write a text file completely or not at all."""
        return self._write(name, text.encode("utf-8", "surrogatepass"))

    def _write(self, name: str, content: bytes) -> Path:
        self.check_lock()
        with atomic_write(self.path / name) as temporary:
            temporary.write_bytes(content)
        return self.path / name


def check_same_settings(location: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise an error that names the differing settings if a run was started with other ones, unless they ask for less."""
    old, new = json.loads(json.dumps(before)), json.loads(json.dumps(now, default=str))
    for part in (part for part in MATCHED if part in old and part in new):
        path = () if part == "asked" else (part,)
        if found := differences(old[part], new[part], path, may_shrink=old.get("command") in (*NARROWED, STUDY)):
            raise FloatLensError(
                f"{location} was started with other settings ({'; '.join(found)}); use the same, or another --out"
            )


def differences(before: Any, now: Any, path: tuple[str, ...] = (), may_shrink: bool = False) -> list[str]:
    """The fields in which two JSON values differ, each with both values; NaN equals NaN.

    With `may_shrink`, fields of a manifest that ask for less do not count.

    >>> differences({"steps": 4, "read": {"seed": 0}}, {"steps": 4, "read": {"seed": 1}})
    ['read.seed: 0, now 1']
    """
    if may_shrink and asks_less(path, before, now):
        return []
    if path[-1:] == ("plans",) and isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        before, now = (dict(zip(map(str, range(len(plans))), plans, strict=True)) for plans in (before, now))
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted({*before, *now})
        return [each for k in keys for each in differences(before.get(k), now.get(k), (*path, str(k)), may_shrink)]
    texts = [json.dumps(value, ensure_ascii=False) for value in (before, now)]
    return [] if before == now or texts[0] == texts[1] else [f"{'.'.join(path)}: {texts[0]}, now {texts[1]}"]


def asks_less(path: tuple[str, ...], before: Any, now: Any) -> bool:
    """Whether a field of a manifest asks for fewer models, data sets, conditions, findings or questions than before."""
    match path:
        case ("models" | "data", _):
            return now is None
        case (*_, "models" | "data" | "conditions" | "findings") if isinstance(before, list) and isinstance(now, list):
            return all(each in before for each in now)
        case (*_, "read") if isinstance(before, dict) and isinstance(now, dict):  # questions in the order of the data
            first = before.get("seed") is None and _is_fewer(before.get("limit"), now.get("limit"))
            return first and before | {"limit": now["limit"]} == now
        case (
            *_,
            "scope",
            "only" | "skip" | "beyond" | "sizes",
        ):  # these options are resolved in `findings` and `sizes`
            return True
        case (*_, "sizes", _):
            return _is_fewer(before, now)
    return False


def _is_fewer(before: Any, now: Any) -> bool:
    return isinstance(now, int) and (before is None or (isinstance(before, int) and now <= before))


def _only_leftovers(root: Path) -> bool:
    """Whether a folder contains only what a run creates before its manifest: anything else is somebody else's file."""

    def is_ours(path: Path) -> bool:
        if path.name == SAMPLES:
            return path.is_dir() and not any(path.iterdir())
        if path.name == LOCK:
            return path.stat().st_size == 0 or "nonce" in read_holder(Storage(root))
        return UNFINISHED.fullmatch(path.name) is not None

    return all(map(is_ours, root.iterdir()))


def check_files(root: Path) -> None:
    """Raise an error if a file or folder of a run is a link that leads out of it, or something else than a file or folder.

    So nothing is read or written elsewhere through a run that somebody else made.
    """
    for name in (*FILES, *FOLDERS):
        path = root / name
        untrusted.inside(path, root)
        if path.exists() and not (path.is_file() if name in FILES else path.is_dir()):
            raise FloatLensError(f"{path} is not a {'regular file' if name in FILES else 'folder'}; remove it")
