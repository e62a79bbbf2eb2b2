"""Graph to Graph: the same mathematics in a form that leaves the planner more choice.

In: a graph without calls; a rewrite that is not always a gain also takes what a part of a graph costs. Out: a
graph, validated again, that computes the same.

`rewriter` holds the equations while they change; `pipeline` puts together what always pays, of `dead_code`,
`common_subexpressions`, `fuse` and `gather_pushdown`.
"""
