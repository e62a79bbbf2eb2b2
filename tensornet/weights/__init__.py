"""Weights as equations: factorizations, substitution and freezing.

In: a graph, and equations that replace its parameters. Out: the graph in the new parameters.
"""
