"""Execution of graphs on arrays.

In: a graph and arrays. Out: arrays. Sizes are planned when they are first seen, and the plans are kept.
"""
