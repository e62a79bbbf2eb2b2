"""Initial values: gain propagation, measured initialisation and samplers.

In: a graph. Out: the initial value of each parameter, such that every product keeps the variance.
"""
