"""What the C library keeps of freed memory."""

from __future__ import annotations

import ctypes


def give_back_freed_memory() -> None:
    """Let the C library give memory that is free in its heaps back to the system, where it can be asked to.

    A recovery frees many arrays; without this, 2 B of them per entry of ten million stay with the process for good.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others give memory back by themselves
    if trim is not None:
        trim(0)
