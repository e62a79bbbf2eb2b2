"""Steps to source.

In: a plan and a backend's table of spellings. Out: the text of a Python function.
"""
