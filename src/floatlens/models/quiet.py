"""Leave out warnings of transformers that do not apply: mapped model types, and kernels that need a GPU."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def only_deprecations(record: logging.LogRecord) -> bool:
    """Keep errors and deprecation warnings, which announce changes in later versions."""
    return record.levelno >= logging.ERROR or "deprecat" in record.getMessage().lower()


def is_no_kernel_remark(record: logging.LogRecord) -> bool:
    """Keep all but the remark that an optimized kernel of Mamba is not installed."""
    return "is falling back to its reference PyTorch implementation" not in record.getMessage()


def expect_no_kernels() -> None:
    """Leave that remark out from now on: these kernels need a GPU, so a model on a CPU runs without them by design."""
    logging.getLogger("transformers.integrations.hub_kernels").addFilter(is_no_kernel_remark)


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
