"""Real device files for the page's daemons: filled by the engine, then damaged where a partial recovery shows it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from storage.device.opening import open_device
from storage.engine import Engine
from storage.format.geometry import Geometry
from storage.format.row import DIGEST_OFFSET
from storage.formatting import format_device
from storage.options import EngineOptions
from tests.support.damage import key_of, page_of, slot_of, wreck_header
from tests.support.engines import put
from tests.support.simulated_device import Image

MIB = 1 << 20
DEVICE_BYTES = 64 * MIB
PAGE_BYTES = 4096
OPTIONS = EngineOptions(buffer_bytes=16 * MIB, background=False)


class FileImage(Image):
    """A device file that no engine has open, to be damaged like an image in memory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.stat().st_size)
        self._path = path

    def read(self, offset_bytes: int, size_bytes: int) -> bytes:
        with self._path.open("rb") as file:
            return os.pread(file.fileno(), size_bytes, offset_bytes)

    def write(self, offset_bytes: int, content: bytes) -> None:
        with self._path.open("r+b") as file:
            os.pwrite(file.fileno(), content, offset_bytes)


@dataclass(frozen=True)
class Place:
    """Where an entry stands: its row, by page and digest, and its record."""

    page: int
    digest: bytes
    offset_bytes: int


async def _fill(path: Path, count: int) -> tuple[Geometry, list[Place]]:
    device = open_device(str(path), write=True)
    try:
        engine = Engine(device, OPTIONS)
        await engine.start()
        await asyncio.gather(*(put(engine, key_of(n), b"value %d" % n * 40) for n in range(count)))
        geometry = engine._index.geometry
        for _ in range(geometry.copies):
            await engine.checkpoint()  # then no journal row speaks of an entry any more
        places = [
            Place(page_of(engine, n), engine._identity.digest(1, key_of(n)), slot_of(engine, n)) for n in range(count)
        ]
        await engine.stop()
    finally:
        device.close()
    return geometry, places


class DamagedDevice:
    """A device of which some entries can't be settled: row and record are damaged, the records in a way to mend.

    Their pages fail in every copy with them; the other rows of these pages verify by themselves.
    """

    def __init__(self, path: Path, entries: int, skipped: int) -> None:
        format_device(str(path), size_bytes=DEVICE_BYTES)
        geometry, places = asyncio.run(_fill(path, entries))
        self._image = FileImage(path)
        self._records = [place.offset_bytes for place in places[:skipped]]
        for place in places[:skipped]:
            for copy in range(geometry.copies):
                self._wreck_row(geometry.page_offset(copy, place.page), place.digest)
        self.mend_records()

    def _wreck_row(self, page_offset_bytes: int, digest: bytes) -> None:
        """The row no longer verifies; what it says of its entry can still be read."""
        row = self._image.read(page_offset_bytes, PAGE_BYTES).index(digest) - DIGEST_OFFSET
        checksum = self._image.read(page_offset_bytes + row, 1)[0]
        self._image.write(page_offset_bytes + row, bytes([checksum ^ 1]))

    def mend_records(self) -> None:
        """Damage the records, or take the damage back: the same bits are turned over."""
        for offset_bytes in self._records:
            wreck_header(self._image, offset_bytes)


def damaged_device(path: Path, *, entries: int, skipped: int) -> DamagedDevice:
    """``entries`` keys in namespace ``n``; the first ``skipped`` will be skipped."""
    return DamagedDevice(path, entries, skipped)
