"""floatlens explore: the live explorer, in the browser."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from floatlens.cli import options as common
from floatlens.cli import shared
from floatlens.errors import FloatLensError
from floatlens.options import Load

DEMO = "demo"  # the run folder of `floatlens demo`
SWITCHED = "smollm2-mdm"  # the model of the first film: one text without and with the token that becomes its sink
MODELS = ("tiny-mdm", "tiny-dream", "tiny-arm")


def command(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN | MODEL]...",
            help="Run folders to show, or models to run; by default ./demo and the bundled models.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any but the default lets other machines connect.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 chooses a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the address in the browser.")] = True,
    template: Annotated[Path | None, typer.Option(help="Text file with the slots {passages} and {question}.")] = None,
    loading: Load = Load(),
) -> None:
    """Ask models questions in the browser and watch their attention while they write, or show recorded traces.

    Examples:

        floatlens explore

        floatlens explore GSAI-ML/LLaDA-8B-Instruct --device auto --dtype bfloat16

        floatlens explore tiny-mdm --template my-template.txt

        floatlens explore run
    """
    from floatlens.data.template import DEFAULT, read

    models = [name for name in what or [] if not Path(name).is_dir() or (Path(name) / "config.json").exists()]
    common.check_models(models)  # before slow imports; any other folder is one of runs
    asked_with = read(template) if template else DEFAULT
    try:
        from floatlens.explorer.messages import Limits
        from floatlens.explorer.server import address, application, bind, is_loopback, names, open_browser, run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "websockets", "anyio"):
            raise
        raise FloatLensError(
            f"floatlens explore needs {error.name}, which is not installed: pip install 'floatlens[explore]'"
        ) from None
    lenses, runs = open_lenses_and_runs(what or [], loading)
    token, ticket, limits = secrets.token_urlsafe(32), secrets.token_urlsafe(32), Limits()
    bound = bind(host, port)
    if not what:
        runs = add_switch(lenses, runs)
    how: dict[str, Any] = {"token": token, "ticket": ticket if browser else None, "template": asked_with}
    app = application(lenses, runs, limits=limits, **how, **names(host, bound))
    if not is_loopback(bound):
        shared.print_notes(
            [
                f"floatlens: warning: --host {host} allows everyone to connect who can reach this machine and has the "
                "address; the connection is not encrypted"
            ]
        )
    showing = ", ".join([*(lens.name for lens in lenses), *map(str, runs)])
    with suppress(KeyboardInterrupt):  # the normal way to stop the server
        shared.print_lines([f"FloatLens explores {showing} at", address(host, bound, token=token), "Ctrl-C ends it."])
        if browser:
            open_browser(address(host, bound, ticket=ticket))
        run(app, bound, limits)
    shared.print_lines(["\nThe explorer has ended."])


def open_lenses_and_runs(what: list[str], loading: Load) -> tuple[list[Any], list[Path]]:
    """Lenses and run folders from the arguments; no weights are read."""
    from floatlens.explorer.run_folders import runs_in
    from floatlens.lens import Lens, limit_threads
    from floatlens.models.bundled import installed_smollm2

    shared.check_device(loading)
    lenses: dict[str, Any] = {}
    runs: list[Path] = []
    if not what and Path(DEMO).is_dir():
        runs += runs_in(Path(DEMO))
    for name in what or (*MODELS, *installed_smollm2()):
        if Path(name).is_dir() and (found := runs_in(Path(name))):
            runs += found
        else:
            lenses[name] = limit_threads(Lens.find(name, loading))
    return list(lenses.values()), list(dict.fromkeys(runs))


def add_switch(lenses: list[Any], runs: list[Path]) -> list[Path]:
    """The runs, the first of them with one text without and with the token that becomes the sink, if SmolLM2 is there.

    It is made once, and kept in the cache folder.
    """
    from floatlens.files import atomic_write, cache_folder
    from floatlens.models.bundled import SUMS, sha256
    from floatlens.store.runs import SWITCH, save_run
    from floatlens.studies.texts import make_switch
    from floatlens.version import __version__

    lens = next((lens for lens in lenses if lens.name == SWITCHED), None)
    if lens is None or SWITCH in (run.name for run in runs):
        return runs
    path = cache_folder() / f"{__version__}-{sha256(SUMS)[:12]}" / SWITCH
    if not path.is_dir():
        shared.print_notes([f"Making the first film with {SWITCHED}, once; it is kept in {path.parent}"])
        try:
            with shared.bar() as watch, atomic_write(path) as unfinished:
                save_run(unfinished, make_switch(lens, watch))
        except (OSError, FloatLensError) as error:
            shared.print_notes([f"floatlens: the first film cannot be made: {error}"])
            return runs
    return [path, *runs]
