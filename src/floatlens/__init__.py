"""FloatLens: where language models anchor their attention while they write.

The public names are listed in `__init__.pyi`, for type checkers and for `lazy_loader`, which imports each of them when it is
first used, so that `import floatlens` and `floatlens --help` stay fast.
"""

import lazy_loader

from floatlens.version import __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__all__ += ["__version__"]
