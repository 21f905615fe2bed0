"""Waiting for units that were joined, as many at once as leaves the journal's queue room for clients."""

from __future__ import annotations

from storage.journal import Unit

UNITS_AT_ONCE = 128
"""Units joined before waiting for them: some 2 ms of the loop. A slab may hold 16,000 entries and more may expire at
once; the queue takes 65,536 rows, of clients too."""


async def wait_all(units: list[Unit]) -> None:
    """Wait until all units are durable. Raises the first failure. Being cancelled leaves the units as they are."""
    for unit in units:
        await unit.reached()
