"""Frontend: text to a graph.

In: text, sizes, and graphs that it calls. Out: a graph whose names have their meaning and whose sizes are inferred.
"""
