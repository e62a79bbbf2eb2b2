"""Equations to steps.

In: a graph, sizes and the constants of a device. Out: a plan, as data, in the order that is expected to be fastest.
"""
