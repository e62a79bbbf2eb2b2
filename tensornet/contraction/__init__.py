"""Contraction order and layouts: one n-ary contraction into pairs.

In: the layouts of operands and a device. Out: pairs, each with the way it is contracted.
"""
