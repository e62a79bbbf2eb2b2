"""Text and equations.

In: text. Out: equations, and text again; nodes know nothing of sizes or arrays.
"""

from .reference import in_short

__doc__ = f"{__doc__}\n{in_short()}\n"
