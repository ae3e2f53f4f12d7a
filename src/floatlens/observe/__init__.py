"""Attention, observed where it is computed. The package itself can be called: `with floatlens.observe(model): ...`."""

import sys
from types import ModuleType
from typing import Any


class _Observe(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from floatlens.observe.functions import observe

        return observe(*args, **kwargs)


sys.modules[__name__].__class__ = _Observe
