"""Layouts: every byte belongs to one field, and the sizes are those the device has."""

from __future__ import annotations

import pytest

from storage.format.checkpoint_copy import COPY, DIRECTORY_DTYPE, DIRECTORY_ENTRY, STREAM
from storage.format.geometry import (
    BLOCK_MIN_BYTES,
    DIRECTORY_ENTRY_BYTES,
    JOURNAL_HEADER_LINES,
    LINE_BYTES,
    STREAM_HEADER_BYTES,
)
from storage.format.journal_block import JOURNAL
from storage.format.layout import Field, Layout, round_up
from storage.format.page import PAGE
from storage.format.record import RECORD
from storage.format.row import ROW, ROW_DTYPE
from storage.format.superblock import SUPERBLOCK

LAYOUTS = [SUPERBLOCK, COPY, STREAM, DIRECTORY_ENTRY, PAGE, ROW, RECORD, JOURNAL]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_every_byte_belongs_to_one_field(layout: Layout) -> None:
    end = 0
    for offset, size, name, meaning in layout.table():
        assert offset == end == layout.offsets[name]
        assert size > 0
        assert meaning
        end += size
    assert end == layout.size_bytes == layout.struct.size
    assert len(layout.offsets) == len(layout.fields)


def test_sizes_that_geometry_reckons_with() -> None:
    assert ROW.size_bytes == PAGE.size_bytes == LINE_BYTES
    assert JOURNAL.size_bytes == JOURNAL_HEADER_LINES * LINE_BYTES
    assert STREAM.size_bytes == STREAM_HEADER_BYTES
    assert DIRECTORY_ENTRY.size_bytes == DIRECTORY_ENTRY_BYTES
    assert SUPERBLOCK.size_bytes == 512
    assert all(layout.size_bytes <= BLOCK_MIN_BYTES for layout in LAYOUTS)


@pytest.mark.parametrize(("layout", "dtype"), [(ROW, ROW_DTYPE), (DIRECTORY_ENTRY, DIRECTORY_DTYPE)])
def test_arrays_are_laid_out_as_the_structures(layout: Layout, dtype: object) -> None:
    fields = dtype.fields  # type: ignore[attr-defined]
    assert {name: offset for name, (_, offset, *_) in fields.items()} == layout.offsets


def test_magics_are_distinct() -> None:
    meanings = [layout.fields[0].meaning for layout in LAYOUTS if layout.fields[0].name == "magic"]
    assert len(set(meanings)) == len(meanings) == 6


def test_wrong_size_is_a_programming_error() -> None:
    with pytest.raises(AssertionError, match="wrong: 8 bytes, not 9"):
        Layout("wrong", 9, [Field("a", "Q", "eight bytes")])


@pytest.mark.parametrize(("size", "unit", "rounded"), [(0, 64, 0), (1, 64, 64), (64, 64, 64), (65, 64, 128)])
def test_round_up(size: int, unit: int, rounded: int) -> None:
    assert round_up(size, unit) == rounded
