"""Sharding by axis name: one graph on many devices.

In: a graph, a mesh of devices, and the axes that are divided among them. Out: the graph that each device runs, which
holds the collectives as functions, and the placement of each of its inputs, parameters and results.
"""
