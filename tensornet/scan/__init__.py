"""Recurrences: scans, recurrent cells and associative scans.

In: a graph with recurrences. Out: calls of blocks along an axis in place of these.
"""
