"""Program to program: the same mathematics in a form that runs faster.

In: a program in the core form. A pass that is not always a gain also gets a cost function, which returns the expected
seconds of a part.
Out: a program that computes the same.

`pipeline` lists the passes, and says where each is. Only `dead_code` works on graphs: a program in the
core form holds nothing that no output reaches.
"""
