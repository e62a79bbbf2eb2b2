"""What a function of the language is: one record for each.

In: nothing. Out: the table that all other rooms ask.
"""
