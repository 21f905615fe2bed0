"""Long work on the loop, cut into steps: no step grows with the number of entries.

Whoever works through many rows counts what he did and lets others have their turn after every so much of it. What he
knows of the table may be old after each turn: he looks again at whatever he is going to change.
"""

from __future__ import annotations

import asyncio

ROWS_CHANGED_AT_ONCE = 128
"""Rows freed, joined or published between two turns of the loop: some 2 ms."""


class Turns:
    """Counts work in some unit, and lets the loop turn after each ``at_once`` of it."""

    __slots__ = ("_at_once", "_done")

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._done = 0

    async def after(self, count: int = 1) -> None:
        """So much was done in this step of the loop."""
        self._done += count
        if self._done >= self._at_once:
            self._done = 0
            await asyncio.sleep(0)
