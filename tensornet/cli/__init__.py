"""The command line: plan an equation, count or draw a layer, sweep over settings, compress a network, list the
functions, run the study, measure the device.

In: arguments and options. Out: text on standard output, or JSON with `--json`. Errors of the user are text on
standard error with either, and the exit code is 2. A program should check the exit code before it reads the output.
"""

from .application import app, main

__all__ = ["app", "main"]
