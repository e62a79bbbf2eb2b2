"""Multilinear equations fitted to arrays.

In: a graph that computes a weight from factors, and the weight. Out: the factors with the least error.
"""
