"""Frontend: text to a graph.

In: text, sizes, and the graphs that the text calls. Out: a graph with resolved names and inferred sizes.
"""
