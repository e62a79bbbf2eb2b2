"""Sharding by axis name: one graph on many devices.

In: a graph, a mesh of devices, and the axes that are divided among them. Out: the graph that each device runs, which
holds the collectives as functions, and the placement of each of its inputs, parameters and results.

    mesh             meshes of devices, placements on them, the collectives between two placements, and their costs
    rules            the ways to divide the work of one node
    part             the choices of one graph, and their costs
    search           the cheapest of these choices
    local            the graph that each device runs
    sharded          what a user asks for, to a graph on a mesh, and what that costs, as text and as data
"""
