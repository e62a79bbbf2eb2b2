"""What a function of the language is: one record for each.

In: nothing. Out: the table that all other folders ask.

`record` says what a record holds, `protocols` what its rules may ask of the folders above; the other files hold the
rows by kind, the table is `table`; `pickling` takes rows to another process.
"""
