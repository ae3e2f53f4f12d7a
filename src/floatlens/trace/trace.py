"""Trace: the labelled record of one generation, an xarray Dataset in a Zarr store.

The schema (dims step, layer, head, kv_head, position, region, region_to; query, key and dim if matrices were requested)
is described in docs/trace.md. A position that does not exist yet at a step of an autoregressive model holds NaN
(-1 in `tokens`), which distinguishes it from a position that received no attention.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from floatlens.anchors import Rule, RuleFunction, find_anchors, parse_rule
from floatlens.data.prompt import Region
from floatlens.data.token_kinds import spelled
from floatlens.errors import FloatLensError, check_known
from floatlens.files import atomic_write
from floatlens.options import check_detail
from floatlens.trace.attributes import check_attributes, check_dimensions, printable_texts
from floatlens.trace.summarise import Detail, mean_over_heads, summarise
from floatlens.trace.zarr import as_stored, read_group, write_group
from floatlens.untrusted import check_zarr

REQUIRED = {"tokens": ("step", "position"), "committed_at": ("position",), "confidence": ("step", "position")}
# What Zarr, its codecs and xarray raise for a damaged file.
UNREADABLE = (
    ValueError, LookupError, TypeError, OSError, AttributeError, RuntimeError, ArithmeticError, MemoryError,
)  # fmt: skip
NAMED_DIMS = {"region": "region_names", "region_to": "region_names", "rule": "rule_names"}  # and where their names are


class Trace:
    """A labelled record of one generation. `data` is the xarray Dataset; all methods and properties read from it.

    >>> trace = Trace.open("run/samples/question-1")          # doctest: +SKIP
    >>> trace.data["received"].sel(layer=0).mean("head")      # doctest: +SKIP
    """

    def __init__(self, data: xr.Dataset) -> None:
        for name, dims in REQUIRED.items():
            if name not in data or data[name].dims != dims:
                dims_found = data[name].dims if name in data else "nothing"
                raise FloatLensError(f"not a trace: variable {name!r} should have dims {dims}, found {dims_found}")
        self.data = data

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.data.attrs.get("model", ""))

    @property
    def family(self) -> str:
        """Name of the model's family."""
        return str(self.data.attrs.get("family", ""))

    @property
    def kind(self) -> str:
        """ "mdm" for a masked diffusion model, "arm" for an autoregressive one."""
        return self._fact("kind")

    @property
    def attention_kind(self) -> str:
        """Which keys a query may see: "bidirectional", "causal", "block" or "two-way"."""
        return self._fact("attention")

    @property
    def cached(self) -> bool:
        """Whether each step extended a cache, so that its queries are only the new positions."""
        return bool(int(self._fact("cached")))

    def _fact(self, name: str) -> str:
        if name not in self.data.attrs:
            raise FloatLensError(f"the trace has no attribute {name!r}; record it again with this version of FloatLens")
        return str(self.data.attrs[name])

    @property
    def prompt_length(self) -> int:
        """Number of tokens of the prompt."""
        return int(self.data.attrs.get("prompt_length", 0))

    @property
    def question(self) -> str:
        """The question, empty for other prompts."""
        return str(self.data.attrs.get("question", ""))

    @property
    def answer(self) -> str:
        """The text that the model wrote, cut at its end token."""
        return str(self.data.attrs.get("output", ""))

    @property
    def infill(self) -> bool:
        """Whether masks inside a text were written, rather than tokens after a prompt."""
        return bool(int(self.data.attrs.get("infill", 0)))

    @property
    def text(self) -> str:
        """The text with its masks filled; empty if the trace is not of a text with masks."""
        return str(self.data.attrs.get("text", ""))

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the sampler."""
        return self._from_json("settings", {})

    @property
    def gold(self) -> list[str]:
        """Names of the regions that hold the gold evidence."""
        return self._from_json("gold", [])

    @property
    def answers(self) -> list[str]:
        """The gold answers."""
        return self._from_json("answers", [])

    @property
    def regions(self) -> list[Region]:
        """Named spans of positions, in order; there may be gaps between them (tokens of the chat template)."""
        return [Region(r["name"], r["start"], r["end"]) for r in self._from_json("regions", [])]

    def _from_json(self, name: str, default: Any) -> Any:
        return json.loads(self.data.attrs[name]) if name in self.data.attrs else default

    def strings(self, step: int | None = None) -> list[str]:
        """Token strings of the sequence at the start of `step`, or of the finished sequence if no step is given.

        A position that does not exist yet is an empty string.
        """
        vocabulary = self._from_json("vocabulary", {})
        if step is not None and step not in self.data["step"].values:
            recorded = [int(number) for number in self.data["step"].values]
            whole = recorded == list(range(recorded[0], recorded[-1] + 1))
            named = f"{recorded[0]} to {recorded[-1]}" if whole else ", ".join(map(str, recorded))
            raise FloatLensError(f"step {step} was not recorded; recorded steps: {named}")
        ids = self.final_tokens if step is None else self.data["tokens"].sel(step=step).values
        return [vocabulary.get(str(int(i)), f"<{int(i)}>") if i >= 0 else "" for i in ids]

    def texts(self, step: int | None = None) -> list[str]:
        """The tokens of `strings` as one reads them: " the" where the tokenizer writes "Ġthe"."""
        return spelled(self.strings(step))

    @property
    def final_tokens(self) -> np.ndarray[Any, Any]:
        """Token ids after the last commit (position)."""
        if "final_tokens" in self.data:
            return np.asarray(self.data["final_tokens"].values)
        return np.asarray(self.data["tokens"].isel(step=-1).values)

    @property
    def written(self) -> list[int]:
        """Token ids after the prompt."""
        return [int(i) for i in self.final_tokens[self.prompt_length :]]

    @property
    def order(self) -> list[list[int]]:
        """The order of writing: for each step, the indices into `written` of the tokens that it committed."""
        at = self.data["committed_at"].values[self.prompt_length :]
        steps = int(max(self.data["step"].values[-1], at.max(initial=-1))) + 1
        return [np.flatnonzero(at == step).tolist() for step in range(steps)]

    def anchors(self, rule: str | Rule | RuleFunction = "sigma(3)") -> xr.DataArray:
        """Anchors: bool (step, layer, position), computed on received attention averaged over heads.

        `rule` is the text of a rule, such as "sigma(3)" or the name of a registered rule, or a function of received
        attention (see `register_rule`).
        """
        rule = parse_rule(rule)
        if not self.has_head_mean("received"):
            raise FloatLensError("this trace holds no received attention, which anchors need; record 'received'")
        received = self.head_mean("received")
        return xr.DataArray(
            find_anchors(received.values, rule, self.attention_kind),
            coords=received.coords,
            dims=received.dims,
            name="anchors",
            attrs={"rule": rule.id},
        )

    @property
    def is_summary(self) -> bool:
        """Whether the trace keeps means over heads instead of single heads (`--detail summary`)."""
        return self.data.attrs.get("detail") == "summary"

    def has_head_mean(self, name: str) -> bool:
        """Whether `head_mean` can be taken of a statistic."""
        return name in self.data or f"{name}_mean" in self.data

    def head_mean(self, name: str) -> xr.DataArray:
        """Mean over heads of a statistic such as "received": (step, layer, position), also of a summary."""
        if f"{name}_mean" in self.data:
            return self.data[f"{name}_mean"]
        if name not in self.data:
            raise FloatLensError(f"this trace does not hold {name!r}; trace again with record including {name}")
        return mean_over_heads(self.data[name])

    def summarised(self) -> Trace:
        """A trace with means over heads instead of single heads, and what findings need of single heads."""
        return self if self.is_summary else Trace(summarise(self.data, self.attention_kind))

    def save(self, path: str | Path, dtype: str = "float16", detail: Detail = "full") -> Path:
        """Write the trace atomically as a Zarr (v3) group.

        Parameters
        ----------
        dtype
            "float16" stores statistics of single heads, and matrices, in half precision, and everything else, including
            values beyond 65,504, in single precision; "float32" stores all floats in single precision.
        detail
            "full" stores everything; "summary" stores means over heads instead of single heads.
        """
        check_detail(detail)
        if detail == "summary":
            return self.summarised().save(path, dtype)
        check_known("dtype", dtype, ("float16", "float32"))
        target = Path(path)
        # Zarr has no stable string type, so names of regions and rules are stored in the attributes.
        data = self.data.drop_vars(NAMED_DIMS, errors="ignore")
        for dim, attribute in NAMED_DIMS.items():
            if dim in self.data.coords:
                names = [str(name) for name in self.data[dim].values]
                data = data.assign_attrs({attribute: json.dumps(names)})
        data.attrs = as_stored(data.attrs)
        try:
            check_attributes(data.attrs, data.sizes["position"])  # what cannot be opened again is not stored
        except ValueError as error:
            raise FloatLensError(f"the trace cannot be stored: {error}") from None
        with atomic_write(target) as temporary:
            write_group(data, temporary, dtype)
        return target

    @classmethod
    def open(cls, path: str | Path) -> Trace:
        """Open a saved trace; arrays are read when they are used."""
        if not (Path(path) / "zarr.json").is_file():
            raise FloatLensError(f"{path} is not a saved trace: it has no zarr.json; pass a folder under RUN/samples")
        try:
            check_zarr(path)
            data = read_group(Path(path))
            made = cls(data)
            check_attributes(data.attrs, data.sizes["position"])
            made.data.attrs |= printable_texts(data.attrs)
            check_dimensions(made.data)
            for dim, attribute in NAMED_DIMS.items():
                if attribute in data.attrs and dim in data.dims:
                    made.data = made.data.assign_coords({dim: json.loads(data.attrs[attribute])})
            return made
        except UNREADABLE as error:
            raise FloatLensError(f"{path} cannot be read as a trace: {error}") from error

    @staticmethod
    def from_transformers(outputs: Any, input_ids: Any = None, **options: Any) -> Trace:
        """Make a trace from attention matrices that a transformers model returned: see `floatlens.trace.weights`."""
        from floatlens.trace.weights import from_transformers  # imported here because it makes traces

        return from_transformers(outputs, input_ids, **options)

    def load(self) -> Trace:
        """Read all arrays into memory and return the trace."""
        self.data.load()
        return self

    def explore(self, *others: Trace, **options: Any) -> Any:
        """Show this trace as a film in a notebook, with others next to it; the options are those of `explorer.widget`.

        Returns a widget with floatlens[notebook], otherwise the same page in a frame; both have `.save("film.html")`.
        """
        from floatlens.explorer.widget import explore  # imported here because the explorer imports traces

        return explore([self, *others], **options)

    def summary(self) -> dict[str, str]:
        """The most important facts about the trace, by label."""
        sizes = self.data.sizes
        written = int((self.data["committed_at"] >= 0).sum()) if self.infill else sizes["position"] - self.prompt_length
        given = sizes["position"] - written
        about = {
            "model": f"{self.model} ({self.family})",
            "size": f"{sizes['position']} positions ({given} prompt + {written} new), {sizes['step']} steps"
            + "".join(f", {sizes[d]} {d}s" for d in ("layer", "head") if d in sizes),
            "question": self.question,
            "answer": self.answer,
            "text": self.text,
            "regions": " ".join(f"{r.name}[{r.start}:{r.end}]" for r in self.regions),
            "recorded": " ".join(str(n) for n in self.data.data_vars if n not in REQUIRED),
        }
        return {label: text for label, text in about.items() if text}

    def __repr__(self) -> str:
        short = {label: text if len(text) < 200 else text[:197] + "..." for label, text in self.summary().items()}
        lines = (f"  {label:<9} {text}" for label, text in short.items())
        return "<floatlens.Trace>\n" + "\n".join(lines)

    def _repr_html_(self) -> str:
        about = {html.escape(label): html.escape(text) for label, text in self.summary().items()}
        left = "style='text-align:left'"
        rows = "".join(f"<tr><th {left}>{label}</th><td {left}>{text}</td></tr>" for label, text in about.items())
        return f"<h4>floatlens.Trace</h4><table>{rows}</table>{self.data._repr_html_()}"
