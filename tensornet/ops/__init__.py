"""The functions of the language: one record for each.

In: nothing. Out: the table of functions that all other folders read.

`record` defines a record. `protocols` declares what its rules may call in the folders above. `table` is the table, and
sends rows to another process; the other files hold its rows by kind.
"""
