"""Multilinear equations fitted to arrays.

In: a graph that computes a weight from factors, and the weight. Out: the factors that come nearest to it.
"""
