"""Recurrences: scans, recurrent cells, associative scans and checkpointing.

In: a graph with recurrences. Out: calls of blocks along an axis in place of these.
"""
