"""Pictures of graphs.

In: a graph. Out: a layered drawing as SVG.
"""
