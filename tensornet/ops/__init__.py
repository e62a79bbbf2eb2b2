"""What a function of the language is: one record for each.

In: nothing. Out: the table that all other rooms ask.

`record` says what a record holds, `services` what its rules may ask of the rooms above; the rows are in
`pointwise`, `axes`, `reductions`, `choosing`, `structure` and `kernels`, the table is `functions`; `packing` takes rows
to another process.
"""
