"""Reverse-mode differentiation: vector-Jacobian products of graphs as graphs.

In: a graph, its outputs, and the leaves to differentiate by. Out: the forward graph and the backward graph.
"""
