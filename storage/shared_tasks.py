"""Tasks that several callers wait for, each behind ``asyncio.shield``: a flush, a slab that is given."""

from __future__ import annotations

import asyncio
from typing import Any


def heard(task: asyncio.Future[Any]) -> None:
    """A callback for such a task: that it failed is no unheard error if every caller was cancelled meanwhile.

    Shielding does not see to that: a caller that is cancelled before the task ends takes nothing from it.
    """
    if not task.cancelled():
        task.exception()
