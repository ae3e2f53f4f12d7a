"""The explorer: an interactive view of films, in the report, in a notebook, and live."""

from floatlens.explorer.page import embed, page, script_hashes

__all__ = ["embed", "page", "script_hashes"]
