"""Text and equations.

In: text. Out: equations, and text again; nodes know nothing of sizes or arrays.
"""
