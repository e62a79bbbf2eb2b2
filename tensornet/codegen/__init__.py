"""Steps to source, and source to functions.

In: a plan and a backend's table of templates. Out: the text of a Python function; the function, and the tables that
it takes.
"""
