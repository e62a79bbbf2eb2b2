"""Equations as a value.

In: equations and sizes. Out: a frozen, checked graph; properties that follow from it alone (formulas, initial values,
element types); and equivalent graphs.
"""
