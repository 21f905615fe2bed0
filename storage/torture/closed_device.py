"""A closed device that is edited: every edit is remembered, so that it can be reported and taken back."""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from types import TracebackType

from storage.device.file_device import FileDevice
from storage.device.opening import open_device
from storage.errors import DeviceInUse

SECTOR_BYTES = 512
"""What a device writes whole, whatever its blocks are."""
EDIT_MAX_BYTES = 1 << 20
FREE_SECONDS = 10.0
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Edit:
    """``before`` and ``after`` are the bytes at ``offset_bytes``; ``what`` says what they are of."""

    what: str
    offset_bytes: int
    before: bytes
    after: bytes

    def __str__(self) -> str:
        return f"{self.what}: {len(self.after)} bytes at {self.offset_bytes}"


class ClosedDevice:
    """A device that no daemon holds, opened to be read and edited; a context manager.

    Raises on opening what ``open_device`` raises; DeviceInUse only if it stays so, because the kernel may end the I/O
    of a killed process a moment after the process.
    """

    def __init__(self, path: str) -> None:
        self.device = _open_when_free(path)
        self.edits: list[Edit] = []
        self._memory = mmap.mmap(-1, EDIT_MAX_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._memory)

    def __enter__(self) -> ClosedDevice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._view.release()
        self._memory.close()
        self.device.close()

    def read(self, offset_bytes: int, size_bytes: int) -> bytes:
        """Any bytes, at most ``EDIT_MAX_BYTES`` with the rest of their blocks. Raises ReadFailed."""
        begin, size = self._blocks(offset_bytes, size_bytes)
        self.device.read_now(begin, self._view[:size])
        return bytes(self._view[offset_bytes - begin : offset_bytes - begin + size_bytes])

    def edit(self, what: str, offset_bytes: int, content: bytes) -> None:
        """Put bytes anywhere, durably. What is there already is no edit. Raises DeviceFailed."""
        before = self.read(offset_bytes, len(content))
        if before == content:
            return
        self._write(offset_bytes, content)
        self.edits.append(Edit(what, offset_bytes, before, content))

    def flip(self, what: str, offset_bytes: int, bits: int) -> None:
        """Flip bits of one byte."""
        self.edit(what, offset_bytes, bytes([self.read(offset_bytes, 1)[0] ^ bits]))

    def _write(self, offset_bytes: int, content: bytes) -> None:
        begin, size = self._blocks(offset_bytes, len(content))
        self.device.read_now(begin, self._view[:size])
        self._view[offset_bytes - begin : offset_bytes - begin + len(content)] = content
        self.device.write_now(begin, self._view[:size])
        self.device.flush_now()

    def _blocks(self, offset_bytes: int, size_bytes: int) -> tuple[int, int]:
        block = self.device.block_bytes
        begin = offset_bytes // block * block
        return begin, -(-(offset_bytes + size_bytes - begin) // block) * block


def _open_when_free(path: str) -> FileDevice:
    deadline = time.monotonic() + FREE_SECONDS
    while True:
        try:
            return open_device(path, write=True, allow_buffered=True, io_engine="threads")
        except DeviceInUse:
            if time.monotonic() >= deadline:
                raise
            time.sleep(POLL_SECONDS)


def undo(path: str, edits: list[Edit]) -> None:
    """Take edits back, the last one first."""
    with ClosedDevice(path) as closed:
        for edit in reversed(edits):
            closed.edit(f"taken back: {edit.what}", edit.offset_bytes, edit.before)


def clear(path: str, size_bytes: int) -> None:
    """Overwrite the first ``size_bytes`` with zeros: the device is blank again."""
    with ClosedDevice(path) as closed:
        zeros = memoryview(mmap.mmap(-1, EDIT_MAX_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        for begin in range(0, size_bytes, EDIT_MAX_BYTES):
            closed.device.write_now(begin, zeros[: min(EDIT_MAX_BYTES, size_bytes - begin)])
        closed.device.flush_now()
