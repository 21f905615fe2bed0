"""What stands beside a checkpoint's pages: catalogue and page directory as streams, and the header that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from storage.checkpoint.copy_state import CopyState
from storage.checkpoint.writing import Writing
from storage.format.catalogue import (
    CatalogueRecord,
    CounterRecord,
    SlabRecord,
    SlotFailuresRecord,
    encode_record,
)
from storage.format.checkpoint_copy import (
    CATALOGUE_MAGIC,
    DIRECTORY_MAGIC,
    CopyHeader,
    encode_copy_header,
    encode_stream,
    stream_checksum,
    stream_room,
)
from storage.format.geometry import NO_CLASS
from storage.index import Index
from storage.journal import Journal
from storage.namespaces import namespace_record
from storage.turns import Turns

ENCODED_AT_ONCE = 128
"""Records of the catalogue made between two turns of the loop: some 0.5 ms."""


class StreamWriter:
    def __init__(
        self, writing: Writing, index: Index, journal: Journal, uuid: bytes, clock: Callable[[], float]
    ) -> None:
        self._writing = writing
        self._index = index
        self._journal = journal
        self._uuid = uuid
        self._clock = clock

    async def write(
        self, target: CopyState, *, number: int, seq: int, journal_block: int, tail: int
    ) -> tuple[CopyHeader, int]:
        """Write catalogue and directory. The header to be written behind them, and their bytes on the device.

        Raises DeviceFailed, Busy.
        """
        geometry = self._index.geometry
        content = await self._encoded_catalogue()
        assert -(-len(content) // stream_room(geometry.block_bytes)) <= geometry.catalogue_blocks
        directory_checksum, directory_bytes = await self._write_stream(
            DIRECTORY_MAGIC, target.directory.data.cast("B"), geometry.directory_offset(target.copy), target, number
        )
        catalogue_checksum, catalogue_bytes = await self._write_stream(
            CATALOGUE_MAGIC, memoryview(content), geometry.catalogue_offset(target.copy), target, number
        )
        header = CopyHeader(
            copy=target.copy,
            number=number,
            seq=seq,
            journal_block=journal_block,
            start_count=self._journal.start_count,
            pages=geometry.pages,
            directory_checksum=directory_checksum,
            catalogue_checksum=catalogue_checksum,
            catalogue_bytes=len(content),
            written_ms=int(self._clock() * 1000),
            entries=self._index.keys.entries,
            tail=tail,
        )
        return header, catalogue_bytes + directory_bytes

    async def write_header(self, header: CopyHeader) -> None:
        """The copy holds a checkpoint once this is on the device. Raises DeviceFailed, Busy."""
        geometry = self._index.geometry
        block = encode_copy_header(header, self._uuid, geometry.block_bytes)
        await self._writing.write(geometry.copy_offset(header.copy), block)

    async def _write_stream(
        self, magic: bytes, content: memoryview, offset_bytes: int, target: CopyState, number: int
    ) -> tuple[int, int]:
        """Write a stream, some blocks at a time; its checksum, and how many bytes it takes."""
        size = self._index.geometry.block_bytes
        at_once = self._writing.blocks_at_once(size)
        step = at_once * stream_room(size)
        checksum = written = 0
        for begin in range(0, len(content), step):
            blocks = encode_stream(
                magic,
                content[begin : begin + step],
                uuid=self._uuid,
                copy=target.copy,
                number=number,
                block_bytes=size,
                first_index=begin // step * at_once,
            )
            checksum = stream_checksum(blocks, checksum)
            await self._writing.write(offset_bytes + written, blocks)
            written += len(blocks)
            if begin + step < len(content):
                await self._writing.pause()
        return checksum, written

    async def _encoded_catalogue(self) -> bytes:
        """The catalogue's records. Those made later may come from a later moment, which the journal repeats, as with
        the pages."""
        turns = Turns(ENCODED_AT_ONCE)
        encoded: list[bytes] = []
        for record in self._catalogue():
            encoded.append(encode_record(record))
            await turns.after()
        return b"".join(encoded)

    def _catalogue(self) -> Iterator[CatalogueRecord]:
        """The catalogue as records, each with the seq it came into force. Things may change between two of them."""
        table, namespaces = self._index.table, self._index.namespaces
        yield CounterRecord(0, self._journal.start_count, namespaces.next_id)
        for slab in np.flatnonzero(table.slab_class != NO_CLASS).tolist():
            slot_class, generation = int(table.slab_class[slab]), int(table.slab_generation[slab])
            yield SlabRecord(int(table.slab_seq[slab]), slab, slot_class, generation)
        yield from (namespace_record(n) for n in list(namespaces.by_id.values()))
        yield from namespaces.dying_records()
        for (slab, slot), failures in list(self._index.evidence.failures.items()):
            yield SlotFailuresRecord(0, slab, slot, failures)
