"""The program: finds a command, lists its options, runs it, and converts a usage error to one sentence and exit code 2."""

from __future__ import annotations

import errno
import gc
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Annotated, Any, get_type_hints

import typer
import typer.core

from floatlens.cli.options import PARSERS, REPEATED
from floatlens.errors import FloatLensError, check_known
from floatlens.options import ARGUMENTS

# Module and summary of each command. A module is imported when its command is called, so that help is quick.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "Study the bundled models: every claim and figure, and the report."),
    "study": ("study", "Run the same study on your own models and data."),
    "trace": ("trace", "Record a model's attention while it writes."),
    "track": ("track", "Follow a model over its checkpoints: what becomes of its sink."),
    "figure": ("figure", "Draw a figure of the paper from runs, with its numbers and claims."),
    "claims": ("claims", "List the claims that studies test, with their definitions."),
    "explore": ("explore", "Ask models questions in the browser and watch their attention."),
    "eval": ("eval", "Answer questions with and without passages, and score the answers."),
    "stress": ("stress", "Ask at increasing difficulty: noise, position, layout, masks, query."),
    "ablate": ("ablate", "Mask or pin anchors, remove heads, and measure the effect."),
    "report": ("report", "Write one self-contained HTML report of existing runs."),
    "diff": ("diff", "Show what differs between two runs."),
    "doctor": ("doctor", "Check observation on this machine, and measure the cost of a trace."),
    "models": ("models", "List the families of models, or describe a checkpoint and its memory use."),
    "import": ("import_npz", "Convert .npz files of the paper's scripts to traces."),
}

PANELS = ("Input", "Study", "Decoding", "Recording", "Model", "Run")
OF_RUNS = (
    "out",
    "jobs",
    "as_json",
    "host",
    "port",
    "browser",
)  # options of single commands in the panel Run, not Input
INTERRUPTED = 130
# Disk errors and what to do about them; finished results are kept.
FULL, DENIED = "free some space and continue with --resume", "use another --out"
DISK = {
    errno.ENOSPC: ("no space is left on the disk for", FULL),
    errno.EDQUOT: ("the disk quota is exceeded for", FULL),
    errno.EROFS: ("the disk is read-only for", DENIED),
    errno.EACCES: ("there is no permission for", DENIED),
    errno.ENOTDIR: ("a file is in the way of a folder:", DENIED),
    errno.ENAMETOOLONG: ("the name is too long for the disk:", DENIED),
}

# Types that typer knows; other options are texts on the command line, see PARSERS.
PLAIN = (bool, int, str, int | None, str | None, list[str] | None)
OTHER_TYPES = {"torch": SimpleNamespace(dtype=str)}  # torch is not imported to show help
# typer has its own copy of click; the base of its errors is found through one that it exports.
CommandLineError: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class Commands(typer.core.TyperGroup):
    """The commands, each imported when it is called; none is imported to list them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        without_flag_types(self, ctx)
        super().format_help(ctx, formatter)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        return typer.core.TyperCommand(name, help=COMMANDS[name][1])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        check_known("command", args[0], COMMANDS)
        return args[0], load_command(args[0], ctx), args[1:]


def load_command(name: str, ctx: Any = None) -> Any:
    """Import a command, and list its options."""
    made = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    made.command(name)(list_options(importlib.import_module(f"floatlens.cli.{COMMANDS[name][0]}").command))
    return without_flag_types(typer.main.get_command(made), ctx)


def without_flag_types(command: Any, ctx: Any) -> Any:
    """Return a command whose help shows no type beside options that take no value."""
    for each in (*command.params, *([command.get_help_option(ctx)] if ctx else [])):
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return command


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=True, rich_markup_mode="markdown")


@app.callback()
def floatlens(
    version: bool = typer.Option(False, "--version", help="Show the versions of all packages, for bug reports."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """See where language models anchor their attention while they write: masked diffusion models (MDMs) and
    autoregressive models (ARMs).

    Start with `floatlens demo`, or trace your own model:

        floatlens trace tiny-mdm --prompt "Where was Ada Tarn born?" --out run

        floatlens figure drift run --out figures
    """


def main() -> None:
    """The program `floatlens`."""
    # Importing torch and transformers makes a million objects that stay; looking for garbage among them every 700 objects
    # takes a sixth of the time of the imports.
    gc.set_threshold(100_000, 20, 20)
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Run a command line; returns 0, 2 for a usage error, 130 when interrupted, or 1 for a bug."""
    debug = "--debug" in argv
    words = [word for word in argv if word != "--debug"]
    if words == ["--version"]:
        from floatlens.cli.doctor import versions

        print("\n".join(f"{name} {text}" for name, text in versions().items()))
        return 0
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    ARGUMENTS[:] = words
    try:
        code: Any = typer.main.get_command(app).main(words, prog_name="floatlens", standalone_mode=False)
    except FloatLensError as error:
        return _failed(str(error), 2, debug)
    except CommandLineError as error:
        error.show()
        return 2
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK:
            problem, way_out = DISK[error.errno]
            return _failed(f"{problem} {error.filename or 'the run folder'}; {way_out}", 2, debug)
        if isinstance(error, RuntimeError) and "decompression error" in str(error):
            return _failed(f"a stored array is damaged ({error}); compute it again with --resume", 2, debug)
        return _failed(f"{type(error).__name__}: {error} (a bug: run again with --debug and report it)", 1, debug)
    finally:
        ARGUMENTS.clear()  # do not record the arguments of anything after the command
    if code == INTERRUPTED:  # typer returns this code for Ctrl-C
        kept = "; finished results are kept: continue with --resume" if "--out" in words else ""
        return _failed(f"interrupted{kept}", INTERRUPTED, debug=False)
    return int(code or 0)


def _failed(sentence: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"floatlens: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def list_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace every parameter of a command that is a value of `floatlens.options` by its fields, as options.

    The default of the parameter gives the defaults of its options. An option of two values is listed once.

    >>> from floatlens.options import Data, Sampling
    >>> @list_options
    ... def command(model: str, sampling: Sampling = Sampling(steps=4), reading: Data = Data()) -> None:
    ...     print(model, sampling.steps, sampling.max_new_tokens, sampling.seed, reading.seed)
    >>> command(model="tiny-mdm", max_new_tokens=8, seed=3)
    tiny-mdm 4 8 3 3
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    flat: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if is_dataclass(kind):
            groups[name] = parameter.default
            for field in fields(kind):
                if field.metadata["flag"] is not None:
                    flat.setdefault(_name(field), _field_option(kind, field, getattr(parameter.default, field.name)))
            continue
        for each in getattr(kind, "__metadata__", ()):
            if isinstance(each, typer.models.OptionInfo):
                each.rich_help_panel = "Run" if name in OF_RUNS else PANELS[0]
        flat[name] = parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=kind)
    ordered = sorted(flat.values(), key=_panel)
    defaults = {each.name: each.default for each in ordered if each.default is not each.empty}

    def called(**given: Any) -> None:
        values = {**defaults, **given}
        own = {name: values[name] for name in hints if name in flat and name in values}
        command(**own, **{name: _value(default, values) for name, default in groups.items()})

    called.__doc__, called.__name__, called.__module__ = command.__doc__, command.__name__, command.__module__
    called.__annotations__ = {each.name: each.annotation for each in ordered} | {"return": None}
    called.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    return called


def _value(default: Any, given: dict[str, Any]) -> Any:
    """Return the value of a group: its default with what was given on the command line."""
    changes = {}
    for field in fields(default):
        if field.metadata["flag"] is not None and (text := given[_name(field)]) is not None:
            parse = PARSERS.get(f"{type(default).__name__}.{field.name}") or PARSERS.get(field.name)
            changes[field.name] = parse(text, f"--{_name(field).replace('_', '-')}") if parse else text
    return replace(default, **changes)


def _field_option(kind: Any, field: Field[Any], default: Any) -> inspect.Parameter:
    hint, name, about = get_type_hints(kind, localns=OTHER_TYPES)[field.name], _name(field), field.metadata
    if hint not in PLAIN:
        hint, default = list[str] | None if name in REPEATED else str | None, default if type(default) is str else None
    words = [f"--{name.replace('_', '-')}"] if hint is bool else []
    option = typer.Option(*words, help=about["help"], min=about["least"], rich_help_panel=kind.panel)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, option])


def _name(field: Field[Any]) -> str:
    return str(field.metadata["flag"] or field.name).replace("-", "_")


def _panel(parameter: inspect.Parameter) -> int:
    """Return the position of a parameter's panel; arguments come first."""
    about = getattr(parameter.annotation, "__metadata__", (None,))[0]
    return PANELS.index(about.rich_help_panel) if isinstance(about, typer.models.OptionInfo) else -1


if __name__ == "__main__":
    main()
