"""The core form: tensor programs without names.

In: sizes, element types, and names of operations. Out: hash-consed nodes over numbered axes, and functions of them.

`node` holds the types and builds nodes from axes with any names, `function` walks and rewrites, `naming` prints.
"""
