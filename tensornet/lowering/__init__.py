"""Lowering: expressions to steps.

In: a rewritten graph and a target. Out: steps, each one operation over at most two tensors.
"""
