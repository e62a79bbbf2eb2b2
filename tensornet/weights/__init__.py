"""Weights as equations: factorizations, substitution and freezing.

In: a graph and what stands in the place of its parameters. Out: the graph in the new parameters.
"""
