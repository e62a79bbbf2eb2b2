"""Steps to source, and source to functions.

In: a plan and a backend's table of spellings. Out: the text of a Python function; the function, and the tables it
is handed.
"""
