"""A daemon that breaks its promises, so that it is known that the crash kit would notice: ``--lie`` says how.

- ``forgets``: now and then a write is answered as done that never reached the device;
- ``swaps``: now and then a value is written with a byte of it changed, before its checksum is made;
- ``early``: journal blocks are written a moment after they were acknowledged;
- ``silent``: a damaged entry is freed without a word.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from unittest import mock

from rawblockd.entrance import Entrance
from rawblockd.lifecycle import Daemon
from rawblockd.torture.faulty_server import flags_of, serve
from storage.device.counters import OpKind
from storage.device.interface import BlockDevice
from storage.device.operations import IoFuture
from storage.errors import EntryNotFound
from storage.format.row import FreeReason, Row
from storage.put_session import PutSession
from storage.read_path import ReadPath
from storage.torture.faulty_device import FaultRates, FaultyDevice

FORGOTTEN_RATIO = 0.02
EARLY_SECONDS = 0.3
JOURNAL_MAGIC = b"RAWBLKJR"


class ForgetfulDevice(FaultyDevice):
    """Some writes are answered and forgotten."""

    def __init__(self, device: BlockDevice) -> None:
        super().__init__(device, "", FaultRates(failing=0.0, slow=0.0))
        self._chance = random.Random("forgetful")

    def _submit(self, kind: OpKind, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        if kind is OpKind.WRITE and self._chance.random() < FORGOTTEN_RATIO:
            assert self._loop is not None
            done = IoFuture(loop=self._loop)
            done.set_result(None)
            return done
        return super()._submit(kind, offset_bytes, buffer)


class EarlyDevice(ForgetfulDevice):
    """Journal blocks are answered at once and written later."""

    def _submit(self, kind: OpKind, offset_bytes: int, buffer: memoryview) -> asyncio.Future[None]:
        if kind is not OpKind.WRITE or bytes(buffer[:8]) != JOURNAL_MAGIC:
            return self._plainly(kind, offset_bytes, buffer)
        assert self._loop is not None
        copy = memoryview(bytearray(buffer))
        self._loop.call_later(EARLY_SECONDS, self._device.write_now, offset_bytes, copy)
        done = IoFuture(loop=self._loop)
        done.set_result(None)
        return done


class LyingDaemon(Daemon):
    kind: type[ForgetfulDevice] | None = None

    async def _serve_device(self, entrance: Entrance, device: BlockDevice) -> None:
        await super()._serve_device(entrance, self.kind(device) if self.kind is not None else device)


class SwappingPut(PutSession):
    """Changes a byte in the middle of large values."""

    def write_now(self, data: bytes | bytearray | memoryview) -> bool:
        changed = bytearray(data)
        if len(changed) > 20_000:
            changed[10_000] ^= 1
        return super().write_now(changed)


async def free_silently(path: ReadPath, row_id: int, row: Row, *_: object, **__: object) -> None:
    unit = path._commit.free(row_id, row.seq, FreeReason.CORRUPT)
    assert unit is not None and unit.done is not None
    await unit.done
    raise EntryNotFound


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lie", required=True)
    flags = flags_of(parser, sys.argv[1:])
    lie = flags.pop("lie")
    if lie == "swaps":
        mock.patch("storage.write_path.PutSession", SwappingPut).start()
    elif lie == "silent":
        mock.patch.object(ReadPath, "failed", free_silently).start()
    else:
        LyingDaemon.kind = {"forgets": ForgetfulDevice, "early": EarlyDevice}[lie]
    sys.exit(serve(LyingDaemon, flags))


if __name__ == "__main__":
    main()
