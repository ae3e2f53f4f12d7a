"""The explorer in a notebook: a widget if anywidget is installed, otherwise the same page in a frame.

Both show the same films. The widget also shares its state: `view.state = {"step": 4}` moves the film, and `view.state`
contains the current step, layer and token.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from floatlens.explorer.film import BUDGET, RULES, film
from floatlens.explorer.page import asset, page
from floatlens.trace.trace import Trace

HEIGHT = 900  # pixels of the frame


def explore(
    traces: Sequence[Trace],
    *,
    rules: Sequence[str] = RULES,
    budget: int = BUDGET,
    frame: bool = False,
    state: dict[str, Any] | None = None,
) -> Any:
    """Show traces in a notebook cell: a widget, or a `FilmFrame` without anywidget or with `frame=True`.

    `state` is where the film starts, such as `{"step": 4, "layer": 2}`. A frame needs no kernel, so it also works in an
    exported notebook or on a web page.
    """
    films = [film(trace, rules=rules, budget=budget) for trace in traces]
    if frame:
        return FilmFrame(films, state)
    try:
        import anywidget
        import traitlets
    except ImportError:
        return FilmFrame(films, state)

    class Explorer(anywidget.AnyWidget):
        """Films in a notebook. `state`: step, layer, head, rule, colour, pin, direction, speed."""

        _esm = asset()
        films = traitlets.List().tag(sync=True)
        state = traitlets.Dict().tag(sync=True)

        def save(self, path: str | Path) -> Path:
            """Write the view as one self-contained HTML file."""
            return FilmFrame(self.films, self.state).save(path)

    return Explorer(films=films, state=state or {})


class FilmFrame:
    """Films as a page in a frame; needs no kernel and no widget."""

    def __init__(self, films: Sequence[dict[str, Any]], state: dict[str, Any] | None = None) -> None:
        self.films, self.state = list(films), state

    def __repr__(self) -> str:
        shown = ", ".join(f"{film['model']} ({len(film['steps'])} steps)" for film in self.films)
        return f"<floatlens explorer: {shown}; .save('film.html') writes it as a page>"

    def _repr_html_(self) -> str:
        """Return the page as a sandboxed frame, which cannot reach the notebook."""
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" width="100%" height="{HEIGHT}" style="border:0" '
            f'title="FloatLens explorer" srcdoc="{html.escape(page(self.films, state=self.state), quote=True)}"></iframe>'
        )

    def save(self, path: str | Path) -> Path:
        """Write the page to a file."""
        from floatlens.files import atomic_write

        with atomic_write(Path(path)) as temporary:
            temporary.write_text(page(self.films, state=self.state), encoding="utf-8")
        return Path(path)
