"""The explorer in a notebook: a widget where anywidget is installed, elsewhere the same page in a frame.

Both show the same films. The widget also shares its state: `view.state = {"step": 4}` moves the film, and `view.state`
says where the reader is.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from floatlens.report.explorer.film import BUDGET, RULES, film
from floatlens.report.explorer.page import asset, page
from floatlens.trace import Trace

HEIGHT = 900  # pixels of the frame


def explore(
    traces: Sequence[Trace],
    *,
    rules: Sequence[str] = RULES,
    budget: int = BUDGET,
    frame: bool = False,
    state: dict[str, Any] | None = None,
) -> Any:
    """A view of traces, to be the last line of a cell: a widget, or a `Still` without anywidget or with `frame`.

    `state` is where the film starts, such as `{"step": 4, "layer": 2}`.
    A frame needs no kernel, so it also moves in a notebook that is only read: on a web page, in an export.
    """
    films = [film(trace, rules=rules, budget=budget) for trace in traces]
    if frame:
        return Still(films, state)
    try:
        import anywidget
        import traitlets
    except ImportError:
        return Still(films, state)

    class Explorer(anywidget.AnyWidget):
        """Films in a notebook. `state`: step, layer, head, rule, colour, pin, direction, speed."""

        _esm = asset()
        films = traitlets.List().tag(sync=True)
        state = traitlets.Dict().tag(sync=True)

        def save(self, path: str | Path) -> Path:
            """Write the view as one HTML file that needs nothing else."""
            return Still(self.films, self.state).save(path)

    return Explorer(films=films, state=state or {})


class Still:
    """Films as a page in a frame: needs no kernel and no widget."""

    def __init__(self, films: Sequence[dict[str, Any]], state: dict[str, Any] | None = None) -> None:
        self.films, self.state = list(films), state

    def __repr__(self) -> str:
        shown = ", ".join(f"{film['model']} ({len(film['steps'])} steps)" for film in self.films)
        return f"<floatlens explorer: {shown}; .save('film.html') writes it as a page>"

    def _repr_html_(self) -> str:
        """The whole page as the frame's own document; `sandbox` keeps it from reaching the notebook."""
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" width="100%" height="{HEIGHT}" style="border:0" '
            f'title="FloatLens explorer" srcdoc="{html.escape(page(self.films, state=self.state), quote=True)}"></iframe>'
        )

    def save(self, path: str | Path) -> Path:
        """Write the page to a file."""
        from floatlens.files import written_atomically

        with written_atomically(Path(path)) as temporary:
            temporary.write_text(page(self.films, state=self.state), encoding="utf-8")
        return Path(path)
