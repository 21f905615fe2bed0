"""Huge pages of 2 MiB for fio's buffers: reserved for the time of a run, and given back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COUNT = Path("/proc/sys/vm/nr_hugepages")
PAGE_BYTES = 2 << 20


@contextmanager
def reserved(size_bytes: int) -> Iterator[bool]:
    """Whether buffers of this size can lie on huge pages now. What was reserved before is restored at the end."""
    try:
        before = int(COUNT.read_text())
    except (OSError, ValueError):
        yield False
        return
    wanted = before + -(-size_bytes // PAGE_BYTES)
    try:
        try:
            COUNT.write_text(f"{wanted}\n")
        except OSError:
            yield False
            return
        yield int(COUNT.read_text()) >= wanted
    finally:
        if int(COUNT.read_text()) != before:
            COUNT.write_text(f"{before}\n")
