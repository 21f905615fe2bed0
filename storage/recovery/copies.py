"""Reading the checkpoint copies: header, directory, catalogue. Pages are read by ``storage.recovery.pages``."""

from __future__ import annotations

from dataclasses import dataclass

from storage.format.catalogue import CatalogueRecord, NamespaceRecord, SlabRecord, decode_records
from storage.format.checkpoint_copy import (
    CATALOGUE_MAGIC,
    DIRECTORY_MAGIC,
    CopyHeader,
    Directory,
    decode_copy_header,
    decode_directory,
    decode_stream,
    stream_checksum,
)
from storage.format.geometry import STREAM_HEADER_BYTES, Geometry
from storage.format.layout import Defect, Undecodable
from storage.namespace_settings import decode_settings
from storage.recovery.reading import BlockReader


@dataclass(slots=True)
class FoundCopy:
    """``verdict`` is ``valid``, ``absent`` (never written), or part and defect, such as ``header: checksum``."""

    copy: int
    verdict: str
    header: CopyHeader | None = None
    directory: Directory | None = None
    catalogue: list[CatalogueRecord] | None = None

    @property
    def valid(self) -> bool:
        return self.verdict == "valid"


def read_copies(reader: BlockReader, geometry: Geometry, uuid: bytes) -> list[FoundCopy]:
    """All copies, in the order of their places."""
    return [_read_copy(reader, geometry, uuid, copy) for copy in range(geometry.copies)]


def _read_copy(reader: BlockReader, geometry: Geometry, uuid: bytes, copy: int) -> FoundCopy:
    block = reader.block(geometry.copy_offset(copy))
    if block is None:
        return FoundCopy(copy, "header: unreadable")
    if not any(block):
        return FoundCopy(copy, "absent")
    found = FoundCopy(copy, "")
    part = "header"
    try:
        header = decode_copy_header(block, uuid, copy=copy, pages=geometry.pages)
        found.header = header
        part = "directory"
        found.directory = decode_directory(
            _read_stream(
                reader,
                geometry,
                uuid,
                header,
                DIRECTORY_MAGIC,
                geometry.directory_offset(copy),
                geometry.directory_blocks,
                header.directory_checksum,
            ),
            geometry.pages,
        )
        part = "catalogue"
        blocks = -(-header.catalogue_bytes // (geometry.block_bytes - STREAM_HEADER_BYTES))
        if blocks > geometry.catalogue_blocks:
            raise Undecodable(Defect.INVALID, "catalogue: larger than its area")
        content = _read_stream(
            reader,
            geometry,
            uuid,
            header,
            CATALOGUE_MAGIC,
            geometry.catalogue_offset(copy),
            blocks,
            header.catalogue_checksum,
        )
        found.catalogue = decode_records(content)
        _check_records(found.catalogue, geometry)
    except Undecodable as error:
        found.verdict = f"{part}: {error.reason}"
        return found
    found.verdict = "valid"
    return found


def _check_records(catalogue: list[CatalogueRecord], geometry: Geometry) -> None:
    """Raises Undecodable for a slab or a class the device does not have, and for settings no namespace can have."""
    for record in catalogue:
        if isinstance(record, SlabRecord) and (
            record.slab >= geometry.slabs or record.slot_class >= len(geometry.class_bytes)
        ):
            raise Undecodable(Defect.INVALID, f"catalogue: slab {record.slab} in class {record.slot_class}")
        if isinstance(record, NamespaceRecord):
            decode_settings(record.settings)


def _read_stream(
    reader: BlockReader,
    geometry: Geometry,
    uuid: bytes,
    header: CopyHeader,
    magic: bytes,
    offset_bytes: int,
    blocks: int,
    checksum: int,
) -> bytes:
    content, unreadable = reader.whole(offset_bytes, blocks * geometry.block_bytes)
    if unreadable:
        raise Undecodable("unreadable", f"{len(unreadable)} blocks")
    decoded = decode_stream(
        magic, content, uuid=uuid, copy=header.copy, number=header.number, block_bytes=geometry.block_bytes
    )
    if stream_checksum(content) != checksum:
        raise Undecodable(Defect.CHECKSUM, "not the stream the header names")
    return decoded


def copy_header(copy: FoundCopy) -> CopyHeader:
    """The header of a copy that has one."""
    assert copy.header is not None
    return copy.header
