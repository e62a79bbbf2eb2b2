"""Sweeps: the costs of many graphs in one table.

In: graphs by name, or a function that builds them and its settings. Out: a `Sweep`, with a row for each graph.
"""
