"""What is known of a checkpoint's copy while the engine runs, and which of the copies is which."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from storage.format.checkpoint_copy import DIRECTORY_DTYPE, CopyHeader, Directory


@dataclass(slots=True)
class CopyState:
    """What is known of a copy on the device. ``header`` None: it holds no complete checkpoint.

    ``directory`` says what lies in its pages for certain: seq 0 where that isn't known.
    """

    copy: int
    header: CopyHeader | None
    directory: Directory
    damaged_header: bool = False
    damaged_pages: int = 0
    """What background verification found since the copy was written last."""

    @property
    def damaged(self) -> bool:
        return self.damaged_header or self.damaged_pages > 0

    def begin(self) -> None:
        """It is about to be overwritten."""
        self.header = None

    def complete(self, header: CopyHeader) -> None:
        """It was written whole."""
        self.header = header
        self.damaged_header, self.damaged_pages = False, 0


def empty_directory(pages: int) -> Directory:
    """A directory that knows of no page."""
    return np.zeros(pages, dtype=DIRECTORY_DTYPE)


def newest_of(copies: Iterable[CopyState]) -> CopyState | None:
    """None: no copy holds a checkpoint."""
    valid = [copy for copy in copies if copy.header is not None]
    return max(valid, key=_number) if valid else None


def next_to_overwrite(copies: Iterable[CopyState]) -> CopyState:
    """One that holds no checkpoint, else the oldest; of several never the newest (D4)."""
    return min(copies, key=_number)


def _number(copy: CopyState) -> int:
    return copy.header.number if copy.header is not None else 0
