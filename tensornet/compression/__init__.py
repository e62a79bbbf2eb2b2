"""Compression of trained networks: which weights become factors, in which form and at which ranks, under one budget.

In: a graph or a module with its weights, and a budget. Out: the same with factors in place of some weights.
"""
