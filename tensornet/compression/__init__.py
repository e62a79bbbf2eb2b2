"""Trained networks made smaller: which weights become factors, of which form and ranks, under one budget.

In: a graph or a module with its weights, and a budget. Out: the same with factors in the place of some weights.
"""
