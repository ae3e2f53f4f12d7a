"""All findings on some models and data: the main job. The package itself can be called: `floatlens.study([...])`."""

import sys
from types import ModuleType
from typing import Any


class _Study(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from floatlens.study.run import study

        return study(*args, **kwargs)


sys.modules[__name__].__class__ = _Study
