"""Load models without transformers' warnings about model types that FloatLens maps deliberately."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def only_deprecations(record: logging.LogRecord) -> bool:
    """Keep errors and deprecation warnings, which announce changes in later versions."""
    return record.levelno >= logging.ERROR or "deprecat" in record.getMessage().lower()


@contextmanager
def quietly() -> Iterator[None]:
    """Show only errors and deprecations inside the block, and progress bars only on a terminal."""
    from transformers.utils import logging as transformers_logging

    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.get_logger()  # creates the handler, if there is none yet
    handlers = list(logging.getLogger("transformers").handlers)
    for handler in handlers:
        handler.addFilter(only_deprecations)
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(only_deprecations)
        if bars:
            transformers_logging.enable_progress_bar()
