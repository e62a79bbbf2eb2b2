"""The core form: tensor programs without names.

In: sizes, elements, and operations by their names. Out: hash-consed nodes over numbered axes, and functions of them.

`node` holds the types, `build` makes nodes of axes under any names, `function` walks and rewrites, `naming` prints.
"""
