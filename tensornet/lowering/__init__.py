"""Lowering: expressions to steps.

In: the lines of a rewritten program, and a target. Out: steps, each one operation over at most two tensors.

`lower.lower_expression` hands each kind of expression to its function, all over one `context.LoweringContext`;
`steps.emit` adds a step; `codegen.steps.write_step` makes its line of source.
"""
