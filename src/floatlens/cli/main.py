"""The program: finds a command, runs it, and converts a usage error to one sentence and exit code 2."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from typing import Any, ClassVar

import typer
import typer.core

from floatlens.errors import FloatLensError
from floatlens.options import ARGUMENTS

# Module and summary of each command. A module is imported when its command is called, so that help is quick.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "Study the bundled models: every claim and figure, and the report."),
    "study": ("study", "Run the same study on your own models and data."),
    "trace": ("trace", "Record a model's attention while it writes."),
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

INTERRUPTED = 130
# Disk errors and what to do about them; finished results are kept.
FULL, DENIED = "free some space and continue with --resume", "use another --out"
DISK = {
    errno.ENOSPC: "no space is left on the disk for",
    errno.EDQUOT: "the disk quota is exceeded for",
    errno.EROFS: "the disk is read-only for",
    errno.EACCES: "there is no permission for",
    errno.ENOTDIR: "a file is in the way of a folder:",
    errno.ENAMETOOLONG: "the name is too long for the disk:",
}
WAY_OUT = {number: FULL if number in (errno.ENOSPC, errno.EDQUOT) else DENIED for number in DISK}

# typer has its own copy of click; the base of its errors is found through one that it exports.
CommandLineError: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class Commands(typer.core.TyperGroup):
    """The commands, each imported when it is called; none is imported to list them."""

    listing: ClassVar[bool] = True
    show_all: ClassVar[bool] = False  # whether help lists rare options, too

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in COMMANDS:
            return None
        module, about = COMMANDS[name]
        made = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        if self.listing:
            made.command(name, help=about)(lambda: None)
        else:
            command = importlib.import_module(f"floatlens.cli.{module}").command
            made.command(name)(command)
        found: Any = typer.main.get_command(made)
        found.name = name
        if rare := [each for each in found.params if getattr(each, "hidden", False)]:
            found.epilog = None if self.show_all else f"All options: floatlens {name} --help-all"
            for each in rare:
                each.hidden = not self.show_all
        return found


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=True, rich_markup_mode="markdown")


@app.callback()
def floatlens(
    version: bool = typer.Option(False, "--version", help="Show the versions of all packages, for bug reports."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """See where language models anchor their attention while they write: masked diffusion models (MDMs) and
    autoregressive models (ARMs).

    Start with `floatlens demo`, or trace your own model:

        floatlens trace tiny-mdm --prompt "On which day was the ship Golden Otter launched?" --out run

        floatlens figure drift run --out figures
    """


def main() -> None:
    """The program `floatlens`."""
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Run a command line; returns 0, 2 for a usage error, 130 when interrupted, or 1 for a bug."""
    debug = "--debug" in argv
    Commands.show_all = "--help-all" in argv
    words = ["--help" if word == "--help-all" else word for word in argv if word != "--debug"]
    Commands.listing = not any(word in COMMANDS for word in (*words, *to_complete()))
    if words == ["--version"]:
        from floatlens.cli.doctor import versions

        print(versions())
        return 0
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    ARGUMENTS[:] = words
    try:
        return _run(words, debug)
    finally:
        ARGUMENTS.clear()  # do not record the arguments of anything after the command


def _run(words: list[str], debug: bool) -> int:
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
    except OSError as error:
        if error.errno not in DISK:
            return _failed(f"{type(error).__name__}: {error} (a bug: run again with --debug and report it)", 1, debug)
        return _failed(f"{DISK[error.errno]} {error.filename or 'the run folder'}; {WAY_OUT[error.errno]}", 2, debug)
    except Exception as error:
        if isinstance(error, RuntimeError) and "decompression error" in str(error):
            return _failed(f"a stored array is damaged ({error}); compute it again with --resume", 2, debug)
        return _failed(f"{type(error).__name__}: {error} (a bug: run again with --debug and report it)", 1, debug)
    if code == INTERRUPTED:  # typer returns this code for Ctrl-C
        kept = "; finished results are kept: continue with --resume" if "--out" in words else ""
        return _failed(f"interrupted{kept}", INTERRUPTED, debug=False)
    return int(code or 0)


def to_complete() -> list[str]:
    """Return the words that a shell wants completed: bash passes them in one variable, other shells in another."""
    if "_FLOATLENS_COMPLETE" not in os.environ:
        return []
    return " ".join(os.environ.get(name, "") for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")).split()


def _failed(sentence: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"floatlens: {' '.join(sentence.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
