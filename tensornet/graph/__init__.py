"""Equations as a value.

In: equations and sizes. Out: a frozen graph, checked; what follows from it alone (formulas, initial values, the
kinds of elements), and other graphs that compute the same.
"""
