"""The command line: plan an equation, count or draw a layer, sweep over settings, compress a network, list the
functions, run the study, measure the device.

In: words and options. Out: text on standard output, JSON with `--json`; what a user did wrong on standard error,
as text either way, and the exit code 2. A program looks at the exit code before it reads.
"""

from .application import app, main

__all__ = ["app", "main"]
