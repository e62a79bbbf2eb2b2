"""Initial values: gain propagation, measured initialisation and samplers.

In: a graph. Out: what each parameter starts at, so that every product keeps the variance.
"""
