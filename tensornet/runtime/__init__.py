"""Source to results.

In: a graph and arrays. Out: arrays; planned when first seen, and kept.
"""
