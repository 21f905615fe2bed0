"""Device files for the offline tools: written by a real engine, then damaged with care."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from storage.device.opening import open_device
from storage.engine import Engine
from storage.format.checkpoint_copy import (
    COPY,
    DIRECTORY_MAGIC,
    decode_copy_header,
    decode_directory,
    decode_stream,
    encode_copy_header,
    encode_stream,
    stream_checksum,
)
from storage.format.checksums import crc32c_without
from storage.format.geometry import Geometry
from storage.format.page import PAGE
from storage.format.superblock import Superblock, decode_superblock
from storage.formatting import format_device
from storage.options import EngineOptions

SIZE_BYTES = 32 << 20
NOW = 1_700_000_000.0
OPTIONS = EngineOptions(background=False, buffer_bytes=8 << 20)


@dataclass(slots=True)
class Expected:
    """What was put and not deleted, by namespace and key: payload and expiry."""

    entries: dict[tuple[str, bytes], tuple[bytes, int]] = field(default_factory=dict)


class DeviceFile:
    """A file with a cache. ``unchanged`` proves that nothing was written since it was last noted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def superblock(self) -> Superblock:
        return decode_superblock(self.read(0, 4096), 0)

    @property
    def geometry(self) -> Geometry:
        return self.superblock.geometry

    def read(self, offset_bytes: int, size_bytes: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(offset_bytes)
            return file.read(size_bytes)

    def write(self, offset_bytes: int, content: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(offset_bytes)
            file.write(content)

    def flip(self, offset_bytes: int, bits: int = 0x10) -> None:
        """Damage one byte."""
        self.write(offset_bytes, bytes([self.read(offset_bytes, 1)[0] ^ bits]))

    def sum(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    # -- what a program with a bug could write ----------------------------------------------------------------------

    def rewrite_page(self, copy: int, page: int, change: Callable[[bytearray], None]) -> None:
        """Change a page under right checksums, up to the copy's header."""
        superblock, geometry = self.superblock, self.geometry
        block_bytes = geometry.block_bytes
        block = bytearray(self.read(geometry.page_offset(copy, page), block_bytes))
        change(block)
        checksum = crc32c_without(block, PAGE.offsets["checksum"])
        struct.pack_into("<I", block, PAGE.offsets["checksum"], checksum)
        self.write(geometry.page_offset(copy, page), bytes(block))
        header_block = self.read(geometry.copy_offset(copy), block_bytes)
        header = decode_copy_header(header_block, superblock.uuid, copy=copy, pages=geometry.pages)
        place = {"uuid": superblock.uuid, "copy": copy, "number": header.number, "block_bytes": block_bytes}
        blocks = self.read(geometry.directory_offset(copy), geometry.directory_blocks * block_bytes)
        directory = decode_directory(decode_stream(DIRECTORY_MAGIC, blocks, **place), geometry.pages)  # type: ignore[arg-type]
        directory["checksum"][page] = checksum
        directory["seq"][page] = int.from_bytes(block[PAGE.offsets["seq"] :][:8], "little")
        blocks = encode_stream(DIRECTORY_MAGIC, directory.tobytes(), **place)  # type: ignore[arg-type]
        self.write(geometry.directory_offset(copy), blocks)
        header = header._replace(directory_checksum=stream_checksum(blocks))
        self.write(geometry.copy_offset(copy), encode_copy_header(header, superblock.uuid, block_bytes))


NEWEST, MIDDLE, OLDEST = 0, 2, 1
"""Copies of the populated device, by age: the fourth checkpoint (formatting wrote the first) is in copy 0 again."""


def populate(path: Path) -> Expected:
    """Two namespaces, several classes, overwrites, deletes, an expiry, three checkpoints, then a journal since."""
    format_device(str(path), size_bytes=SIZE_BYTES)
    expected = Expected()
    asyncio.run(_write(path, expected))
    return expected


async def _write(path: Path, expected: Expected) -> None:
    device = open_device(path, write=True, io_engine="threads")
    engine = Engine(device, OPTIONS, clock=lambda: NOW)
    await engine.start()

    async def put(namespace: str, key: bytes, payload: bytes, expires_at: int = 0) -> None:
        session = await engine.begin_put(
            namespace,
            key,
            len(payload),
            expires_at=expires_at,
            content_type="text/plain",
            metadata=(("colour", "red"),),
        )
        await session.write(payload)
        await session.commit()
        expected.entries[namespace, key] = (payload, expires_at)

    async def delete(namespace: str, key: bytes) -> None:
        await engine.delete(namespace, key)
        del expected.entries[namespace, key]

    for number in range(40):
        await put("small", b"early %d" % number, b"%d " % number * (number * 20))
    await put("large", b"\xff\xfebinary", bytes(range(256)) * 3600)
    await put("large", b"middling", b"m" * 30_000)
    await put("large", b"expired", b"e" * 100, expires_at=int(NOW) + 10)
    await engine.checkpoint()
    for number in range(5):
        await put("small", b"early %d" % number, b"overwritten")
    await engine.checkpoint()
    for number in range(5, 8):
        await delete("small", b"early %d" % number)
    await put("small", b"late", b"l" * 5000)
    await engine.checkpoint()
    for number in range(10):
        await put("small", b"tail %d" % number, b"t" * (number * 100 + 1))
    await delete("small", b"early 8")
    await engine.flush()
    await engine.stop(checkpoint=False)
    device.close()


def cut_checkpoint_short(device: DeviceFile, snapshot: Path) -> DeviceFile:
    """The device as it is when a checkpoint has written pages, catalogue and directory, and its header is to come."""

    def keep(step: str) -> None:
        if step == "checkpoint_header":
            shutil.copyfile(device.path, snapshot)

    async def run() -> None:
        opened = open_device(device.path, write=True, io_engine="threads")
        engine = Engine(opened, OPTIONS, clock=lambda: NOW)
        engine.step = keep
        await engine.start()
        await engine.checkpoint()
        await engine.stop()
        opened.close()

    asyncio.run(run())
    return DeviceFile(snapshot)


def copy_of(original: Path, target: Path) -> DeviceFile:
    shutil.copyfile(original, target)
    return DeviceFile(target)


def header_field(device: DeviceFile, copy: int, name: str) -> int:
    """A field of a copy's header."""
    block = device.read(device.geometry.copy_offset(copy), 4096)
    names = [item.name for item in COPY.fields]
    return int(COPY.struct.unpack_from(block, 0)[names.index(name)])
