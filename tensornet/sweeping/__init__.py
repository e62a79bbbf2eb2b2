"""What each of many graphs costs, in one table.

In: graphs by name, or what builds them and settings to choose from. Out: a `Sweep`, a row for each.
"""
