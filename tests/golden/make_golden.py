"""Makes the golden images: small devices of format version 1, and lists of what is on them.

``python -m tests.golden.make_golden FOLDER`` writes them. It was run once: the images beside this file are data, which
every later version of the program must read. Run it into another folder only to make images of a new format version.

Everything is fixed: uuid, secret, clock; write ids follow from the start count and the order of the puts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import lzma
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage.device.opening import open_device
from storage.engine import Engine
from storage.format.geometry import plan
from storage.format.superblock import Superblock
from storage.formatting import write_format
from storage.options import EngineOptions

SIZE_BYTES = 32 << 20
UUID = bytes.fromhex("67 6f 6c 64 65 6e 2d 72 61 77 62 6c 6f 63 6b 64")
SECRET = hashlib.sha256(b"golden").digest()
CREATED_MS = 1_750_000_000_000
STARTED = 1_750_000_100.0
OPTIONS = EngineOptions(background=False, buffer_bytes=8 << 20)


@dataclass(slots=True)
class Clock:
    seconds: float = STARTED

    def __call__(self) -> float:
        return self.seconds


@dataclass(slots=True)
class Listing:
    """What is on the device: entries by namespace and key."""

    entries: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    skipped: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> str:
        ordered = [self.entries[name] for name in sorted(self.entries)]
        return json.dumps({"entries": ordered, "skipped": self.skipped}, indent=1) + "\n"


def payload_of(name: str, size_bytes: int) -> bytes:
    """Bytes that compress well and differ from each other by name and position."""
    line = hashlib.sha256(name.encode()).digest()
    return b"".join((number).to_bytes(8, "little") + line[:24] for number in range(-(-size_bytes // 32)))[:size_bytes]


class Writer:
    """Puts into an engine and notes what it put."""

    def __init__(self, engine: Engine, clock: Clock, listing: Listing) -> None:
        self._engine = engine
        self._clock = clock
        self._listing = listing

    async def put(self, namespace: str, key: bytes, size_bytes: int, *, lives_seconds: int = 0, **facts: Any) -> None:
        self._clock.seconds += 1
        payload = payload_of(f"{namespace} {key.hex()} {self._clock.seconds}", size_bytes)
        expires_at = int(self._clock.seconds) + lives_seconds if lives_seconds else 0
        metadata = tuple(facts.get("metadata", {}).items())
        content_type = facts.get("content_type", "")
        session = await self._engine.begin_put(
            namespace, key, size_bytes, expires_at=expires_at, content_type=content_type, metadata=metadata
        )
        await session.write(payload)
        result = await session.commit()
        self._listing.entries[namespace, key.hex()] = {
            "namespace": namespace,
            "key": key.hex(),
            "write_id": result.write_id,
            "payload_bytes": size_bytes,
            "payload_sha256": hashlib.sha256(payload).hexdigest(),
            "content_type": content_type,
            "metadata": dict(metadata),
            "stored_at": self._clock.seconds,
            "expires_at": expires_at,
        }

    async def delete(self, namespace: str, key: bytes) -> None:
        self._clock.seconds += 1
        await self._engine.delete(namespace, key)
        del self._listing.entries[namespace, key.hex()]


def make_fresh(path: Path) -> Listing:
    """A device as formatting leaves it."""
    with path.open("wb") as file:
        file.truncate(SIZE_BYTES)
    device = open_device(path, write=True, io_engine="threads")
    write_format(device, Superblock(UUID, SECRET, CREATED_MS, plan(SIZE_BYTES)))
    device.close()
    return Listing()


async def make_mixed(path: Path, listing: Listing) -> None:
    """Two namespaces, overwrites, deletes, expiries, several classes; two checkpoints and a journal behind them."""
    clock = Clock()
    device = open_device(path, write=True, io_engine="threads")
    engine = Engine(device, OPTIONS, clock)
    await engine.start()
    writer = Writer(engine, clock, listing)
    for number in range(24):
        await writer.put("kv-blocks", b"block/%04d" % number, number * 150, metadata={"layer": str(number)})
    await writer.put("weights.v2", b"\x00\xff binary \xfe key", 20_000, content_type="application/octet-stream")
    await writer.put("weights.v2", "Schlüssel".encode(), 100_000, content_type="text/plain; charset=utf-8")
    await writer.put("weights.v2", b"large", 700_000, metadata={"umlaut": "ä", "empty": ""})
    await writer.put("kv-blocks", b"expiring", 77, lives_seconds=1_000_000)
    await engine.checkpoint()
    for number in range(0, 24, 4):
        await writer.put("kv-blocks", b"block/%04d" % number, 333 + number)
    for number in range(1, 24, 8):
        await writer.delete("kv-blocks", b"block/%04d" % number)
    await writer.put("kv-blocks", b"x" * 1024, 5)
    await engine.checkpoint()
    for number in range(8):
        await writer.put("kv-blocks", b"tail/%d" % number, number * 700, lives_seconds=500_000)
    await writer.put("kv-blocks", b"block/0000", 12, content_type="text/plain")
    await writer.delete("weights.v2", b"large")
    await writer.delete("kv-blocks", b"block/0003")
    await engine.flush()
    await engine.stop(checkpoint=False)
    device.close()


async def make_partial(path: Path, listing: Listing) -> None:
    """The same after one more checkpoint, with a page that no copy has and one record header damaged, after a start
    that found it."""
    await _run(path, 1000, lambda engine: engine.checkpoint())
    geometry = plan(SIZE_BYTES)
    del listing.entries["kv-blocks", b"block/0010".hex()]
    slot = 10  # the eleventh put into the first slab
    with path.open("r+b") as file:
        for copy in range(geometry.copies):
            file.seek(geometry.page_offset(copy, 0))
            file.write(b"\xdb" * geometry.block_bytes)
        file.seek(geometry.slot_offset(0, slot, 0) + 30)
        file.write(b"\xdb")

    async def note_skipped(engine: Engine) -> None:
        for view in engine.skipped(0, 100):
            listing.skipped.append({"reason": view.reason, "slab": view.slab, "slot": view.slot})
        assert [(entry["slab"], entry["slot"]) for entry in listing.skipped] == [(0, slot)]
        await engine.flush()

    await _run(path, 1100, note_skipped)


async def _run(path: Path, seconds: float, step: Callable[[Engine], Awaitable[object]]) -> None:
    """One start of the daemon, which does one thing."""
    device = open_device(path, write=True, io_engine="threads")
    engine = Engine(device, OPTIONS, Clock(STARTED + seconds))
    await engine.start()
    await step(engine)
    await engine.stop(checkpoint=False)
    device.close()


def keep(path: Path, listing: Listing, folder: Path, name: str) -> None:
    geometry = plan(SIZE_BYTES)
    content = bytearray(path.read_bytes())
    # Self tests leave random bytes in the scratch block, which holds nothing.
    content[geometry.scratch_offset : geometry.scratch_offset + geometry.block_bytes] = bytes(geometry.block_bytes)
    (folder / f"{name}.xz").write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    (folder / f"{name}.json").write_text(listing.to_json(), encoding="utf-8")


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "device"
        listing = make_fresh(path)
        keep(path, listing, folder, "v1-fresh")
        asyncio.run(make_mixed(path, listing))
        keep(path, listing, folder, "v1-mixed")
        asyncio.run(make_partial(path, listing))
        keep(path, listing, folder, "v1-partial")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
