"""Heap settings: freed memory is kept for reuse."""

from __future__ import annotations

import functools

MAPPED = 32 * 2**20
"""Bytes from which the C library maps each allocation from the system (glibc's largest threshold)."""


@functools.cache
def keep_freed() -> None:
    """Makes the C library reuse freed memory, up to twice `MAPPED`, instead of returning it to the system.

    glibc maps an allocation from the system if it is larger than any freed before, 128 KiB at first. It returns the
    end of its heap if twice as much is free there (malloc/malloc.c, `mp_.mmap_threshold`). The first touch of new
    pages is slow: a call of a model that allocates and frees tensors of some MB takes up to a third longer. This
    function raises the thresholds: it allocates the largest block that counts and frees it. The pages of that block
    are never touched. Nothing changes in other C libraries, or if the environment sets the thresholds
    (`MALLOC_TRIM_THRESHOLD_`).
    """
    bytearray(MAPPED - 2**16)
