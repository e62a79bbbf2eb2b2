"""Lowering: expressions to steps.

In: the lines of a rewritten program, and a target. Out: steps, each one operation over at most two tensors.

`lower.lower_expression` passes each kind of expression to its function. All of them share one
`context.LoweringContext`. `steps.emit` adds a step, and `codegen.steps.write_step` writes its line of source.
"""
