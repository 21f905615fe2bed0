"""What a start writes before it serves: who it is, where the journal goes on, what the recovery found.

Order: the start count in both superblocks (so that no write id is ever drawn twice), then one run of journal rows: the
start record, corrections of unproven rows, the partial state with its report and the quarantine of skipped slots; then
a flush. Only then requests come in. Nothing here is written when recovery refused the start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import islice

from storage.assembly import Machine
from storage.buffers import BufferArena
from storage.device.interface import BlockDevice
from storage.format.catalogue import StartRecord
from storage.format.superblock import encode_superblock
from storage.journal import Unit
from storage.recovery.recover import Recovered

UNITS_AT_ONCE = 1024
"""Units joined before waiting: a report may hold more rows than the journal's queue takes."""


async def write_start(device: BlockDevice, recovered: Recovered, machine: Machine, step: Callable[[str], None]) -> None:
    """Raises DeviceFailed, JournalUnavailable, Busy.

    ``step`` is told what was done: a place for tests to stop the process.
    """
    await _write_start_count(device, recovered, machine.internal, step)
    position, commit = recovered.position, machine.commit

    def units() -> Iterator[Unit]:
        yield commit.record(
            lambda seq: StartRecord(
                seq, position.start_count, position.last_block, position.last_checksum, int(machine.clock() * 1000)
            )
        )
        yield from (commit.restate(row_id) for row_id in recovered.corrections)
        yield from machine.partial.join_findings()

    joined = units()
    while batch := list(islice(joined, UNITS_AT_ONCE)):
        for unit in batch:
            assert unit.done is not None
            await unit.done
    step("start_recorded")
    await machine.journal.flush()


async def _write_start_count(
    device: BlockDevice, recovered: Recovered, arena: BufferArena, step: Callable[[str], None]
) -> None:
    """One superblock after the other, with a flush between: one of them verifies at any time."""
    superblock = dataclasses.replace(recovered.superblock, start_count=recovered.position.start_count)
    size = superblock.geometry.block_bytes
    buffer = await arena.acquire(size, 5.0)
    try:
        for place, offset_bytes in enumerate(superblock.geometry.superblock_offsets):
            buffer.view[:size] = encode_superblock(superblock, place)
            await device.write(offset_bytes, buffer.view[:size])
            await device.flush()
            step("start_counted")
    finally:
        buffer.release()
