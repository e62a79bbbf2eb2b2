"""Torch networks that were built elsewhere: compressed weights, adapters, and the layers that hold them."""
