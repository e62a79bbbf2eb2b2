"""`python -m tensornet`."""

from .cli import main

main()
