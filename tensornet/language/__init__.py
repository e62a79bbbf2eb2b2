"""The surface language: text to equations and back.

In: text. Out: equations, and text again. Nodes hold no sizes and no arrays. `tensornet functions` prints the grammar,
and the functions.
"""
