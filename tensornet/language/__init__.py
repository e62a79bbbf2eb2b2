"""The surface language: text to equations and back.

In: text. Out: equations, and text again. Nodes hold no sizes and no arrays.
"""

import sys
from types import ModuleType


class _Room(ModuleType):
    @property
    def __doc__(self) -> str:  # type: ignore[override]
        # The text that `help` shows is built from the function records on demand.
        from .reference import in_short

        return f"{__doc__}\n{in_short()}\n"


sys.modules[__name__].__class__ = _Room
