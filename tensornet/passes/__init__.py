"""Program to program: the same mathematics in a form that runs faster.

In: a program in the core form, without calls; a pass that is not always a gain also gets the expected
seconds of a part.
Out: a program that computes the same.

`pipeline` lists the passes, and each stands in a file of its name. `dead_code` alone is of graphs: in the core form
what no output reaches is not there.
"""
