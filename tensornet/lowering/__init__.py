"""Lowering: expressions to steps.

In: the lines of a rewritten program, and a target. Out: steps, each one operation over at most two tensors.

`lower.py` passes each kind of expression to its function. All of them share one `context.LoweringContext`, whose
`emit` adds a step. `codegen.steps.write_step` writes its line of source.
"""
