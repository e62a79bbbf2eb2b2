"""Contraction order and layouts: one n-ary contraction into pairs.

In: the layouts of operands and a device. Out: pairs, each with its contraction strategy.
"""
