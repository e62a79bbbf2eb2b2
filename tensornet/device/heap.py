"""Heap settings: freed memory is kept for reuse."""

from __future__ import annotations

import functools

__all__ = ["MAPPED", "keep_freed"]

MAPPED = 32 * 2**20
"""Bytes from which the C library maps a new allocation afresh (glibc's largest threshold)."""


@functools.cache
def keep_freed() -> None:
    """From now on what is freed is used again, up to twice `MAPPED`, and not given back to the system.

    glibc maps each allocation afresh that is larger than any which was ever freed, 128 KiB at first, and gives the
    end of its heap back where twice as much is free there (malloc/malloc.c, `mp_.mmap_threshold`). Pages that come
    anew are touched for the first time, which is slow: a call of a model that makes and drops tensors of some MB
    then takes up to a third longer. So one that is as large as counts is made here, and dropped;
    its pages are never touched. Where the environment sets these thresholds (`MALLOC_TRIM_THRESHOLD_`), and in
    other C libraries, nothing changes.
    """
    bytearray(MAPPED - 2**16)
