"""The device model: measured constants, and the time of work in seconds.

In: sizes of work in FLOPs and bytes. Out: expected seconds.
"""
