"""Geometry: everything has a place of its own, and sizes that make no device are refused by their name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from storage.errors import GeometryInvalid
from storage.format.geometry import (
    CLASSES_MAX,
    SLABS_MIN,
    Geometry,
    default_slab_bytes,
    default_smallest_slot,
    plan,
)
from storage.format.record import header_size
from storage.limits import JOURNAL_MIN_BLOCKS

MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

SIZES = st.one_of(
    st.sampled_from([32 * MIB, 33 * MIB, 64 * MIB, GIB, 16 * GIB, 16 * GIB + 4096, TIB, TIB + 4096, 16 * TIB]),
    st.integers(32 * MIB, GIB),
    st.integers(32 * MIB, 16 * TIB),
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "smallest_slot_bytes": st.sampled_from([4096, 8192, 12288, 16384, 65536, MIB]),
        "slab_bytes": st.sampled_from([MIB << shift for shift in range(7)]),
        "copies": st.integers(2, 8),
        "block_bytes": st.sampled_from([4096, 8192, 16384]),
    },
)


def planned(size_bytes: int, options: dict[str, int]) -> Geometry:
    """The geometry; sizes that don't go together are not this test's."""
    try:
        return plan(size_bytes, **options)
    except GeometryInvalid:
        assume(False)
        raise


def areas(geometry: Geometry) -> list[tuple[int, int, str]]:
    """(start, end, name) of everything on the device, ascending."""
    block = geometry.block_bytes
    found = [(offset, offset + block, "superblock") for offset in geometry.superblock_offsets]
    found.append((geometry.scratch_offset, geometry.scratch_offset + block, "scratch"))
    found.append((geometry.journal_offset, geometry.journal_offset + geometry.journal_bytes, "journal"))
    for copy in range(geometry.copies):
        start = geometry.copy_offset(copy)
        parts = [
            (start, geometry.directory_offset(copy), "copy header"),
            (geometry.directory_offset(copy), geometry.catalogue_offset(copy), "directory"),
            (geometry.catalogue_offset(copy), geometry.page_offset(copy, 0), "catalogue"),
            (geometry.page_offset(copy, 0), start + geometry.copy_bytes, "pages"),
        ]
        found += parts
    found.append((geometry.slab_offset(0), geometry.slab_offset(geometry.slabs), "slabs"))
    return sorted(found)


@settings(max_examples=60, deadline=None)
@given(SIZES, OPTIONS)
def test_everything_fits_and_nothing_overlaps(size_bytes: int, options: dict[str, int]) -> None:
    geometry = planned(size_bytes, options)
    end = 0
    for start, stop, name in areas(geometry):
        assert start >= end, f"{name} overlaps"
        assert start < stop, name
        assert start % geometry.block_bytes == stop % geometry.block_bytes == 0, name
        end = stop
    assert end == geometry.device_bytes <= size_bytes < geometry.device_bytes + geometry.block_bytes
    geometry.check()


@settings(max_examples=40, deadline=None)
@given(SIZES, OPTIONS)
def test_slabs_use_the_device(size_bytes: int, options: dict[str, int]) -> None:
    geometry = planned(size_bytes, options)
    assert geometry.slabs >= SLABS_MIN
    spare = geometry.device_bytes - geometry.end_bytes
    # One slab more needs its pages, directory and journal too; what they take is far below a slab.
    assert 0 <= spare < 2 * geometry.slab_bytes
    assert geometry.reserved_bytes == geometry.device_bytes - geometry.slabs * geometry.slab_bytes


@settings(max_examples=40, deadline=None)
@given(SIZES, OPTIONS)
def test_classes_ascend_to_a_whole_slab(size_bytes: int, options: dict[str, int]) -> None:
    geometry = planned(size_bytes, options)
    sizes = geometry.class_bytes
    assert list(sizes) == sorted(set(sizes))
    assert sizes[0] >= geometry.smallest_slot_bytes
    assert sizes[-1] == geometry.slot_area_bytes
    assert len(sizes) <= min(CLASSES_MAX, max(4, geometry.slabs // 4))
    for slot_class, size in enumerate(sizes):
        assert size % geometry.block_bytes == 0
        slots = geometry.slots_per_slab(slot_class)
        assert 1 <= slots <= geometry.slots_per_slab_max
        last = geometry.slot_offset(geometry.slabs - 1, slots - 1, slot_class) + size
        assert last <= geometry.slab_offset(geometry.slabs)
        assert geometry.slot_offset(1, 0, slot_class) == geometry.slab_offset(1) + geometry.block_bytes


@settings(max_examples=40, deadline=None)
@given(SIZES, OPTIONS, st.data())
def test_class_for_is_the_smallest_that_holds_it(size_bytes: int, options: dict[str, int], data: st.DataObject) -> None:
    geometry = planned(size_bytes, options)
    record_bytes = data.draw(st.integers(1, geometry.slab_bytes + 1))
    slot_class = geometry.class_for(record_bytes)
    if slot_class < 0:
        assert record_bytes > geometry.class_bytes[-1]
    else:
        assert geometry.class_bytes[slot_class] >= record_bytes
        assert slot_class == 0 or geometry.class_bytes[slot_class - 1] < record_bytes


@settings(max_examples=40, deadline=None)
@given(SIZES, OPTIONS)
def test_tables_are_large_enough_l2(size_bytes: int, options: dict[str, int]) -> None:
    geometry = planned(size_bytes, options)
    assert geometry.pages_per_slab * geometry.rows_per_page >= geometry.slots_per_slab_max
    assert geometry.directory_blocks * geometry.directory_entries_per_block >= geometry.pages
    assert geometry.journal_blocks >= JOURNAL_MIN_BLOCKS
    assert geometry.journal_blocks * geometry.rows_per_journal_block >= 2 * geometry.max_entries
    assert geometry.max_entries < 1 << 32
    assert geometry.slots_per_slab_max <= 0xFFFF


@pytest.mark.parametrize(
    ("size", "smallest", "slab"),
    [
        (32 * MIB, 4096, MIB),
        (GIB, 4096, 8 * MIB),
        (16 * GIB, 4096, 64 * MIB),
        (17 * GIB, 16384, 64 * MIB),
        (TIB, 16384, 64 * MIB),
        (2 * TIB, 65536, 64 * MIB),
    ],
)
def test_defaults(size: int, smallest: int, slab: int) -> None:
    assert default_smallest_slot(size) == smallest
    assert default_slab_bytes(size) == slab
    geometry = plan(size)
    assert geometry.smallest_slot_bytes == smallest
    assert geometry.slot_area_bytes == slab + slab // 256


def test_reserved_space_is_as_small_as_promised() -> None:
    for size, ratio in ((16 * GIB, 0.10), (TIB, 0.03), (16 * TIB, 0.01)):
        geometry = plan(size)
        assert geometry.reserved_bytes < ratio * size


@pytest.mark.parametrize("size", [GIB, 16 * GIB, TIB])
def test_a_power_of_two_value_fits_with_its_header_without_waste(size: int) -> None:
    geometry = plan(size)
    for shift in range(16, default_slab_bytes(size).bit_length()):
        record_bytes = (1 << shift) + header_size(256, 1 << shift)
        slot_bytes = geometry.class_bytes[geometry.class_for(record_bytes)]
        assert slot_bytes <= (1 << shift) * 1.08


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"smallest_slot_bytes": 0}, "smallest slot = 0"),
        ({"smallest_slot_bytes": -1}, "smallest slot = -1"),
        ({"smallest_slot_bytes": -4096}, "smallest slot = -4096"),
        ({"smallest_slot_bytes": 4095}, "smallest slot = 4095"),
        ({"smallest_slot_bytes": 2 * GIB}, "smallest slot = 2147483648"),
        ({"slab_bytes": 0}, "slab = 0"),
        ({"slab_bytes": -1}, "slab = -1"),
        ({"slab_bytes": 4095}, "slab = 4095"),
        ({"slab_bytes": 3 * MIB}, "slab = 3145728"),
        ({"slab_bytes": MIB // 2}, "slab = 524288"),
        ({"slab_bytes": 128 * MIB}, "slab = 134217728"),
        ({"copies": 0}, "copies = 0"),
        ({"copies": 1}, "copies = 1"),
        ({"copies": -1}, "copies = -1"),
        ({"copies": 9}, "copies = 9"),
        ({"block_bytes": 0}, "block_bytes = 0"),
        ({"block_bytes": -1}, "block_bytes = -1"),
        ({"block_bytes": 512}, "block_bytes = 512"),
        ({"block_bytes": 4095}, "block_bytes = 4095"),
        ({"block_bytes": 12288}, "block_bytes = 12288"),
        ({"device_bytes": 0}, "size = 0"),
        ({"device_bytes": -1}, "size = -1"),
        ({"device_bytes": 4095}, "size = 4095"),
        ({"device_bytes": 20 * MIB}, "size = 20971520"),
        ({"device_bytes": 64 * MIB, "slab_bytes": 64 * MIB}, "size = 67108864"),
    ],
)
def test_sizes_that_make_no_device_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(GeometryInvalid, match=f"{named}(:|$|, )"):
        plan(**({"device_bytes": GIB} | options))


@settings(max_examples=80, deadline=None)
@given(
    st.integers(-1, 20 * TIB),
    st.one_of(st.none(), st.integers(-1, 1 << 27)),
    st.one_of(st.none(), st.integers(-1, 1 << 27)),
    st.integers(-1, 10),
)
def test_any_sizes_make_a_device_or_are_refused(
    size_bytes: int, smallest: int | None, slab: int | None, copies: int
) -> None:
    try:
        geometry = plan(size_bytes, smallest_slot_bytes=smallest, slab_bytes=slab, copies=copies)
    except GeometryInvalid as error:
        assert error.detail
    else:
        geometry.check()


GEOMETRY = plan(64 * MIB)


@pytest.mark.parametrize(
    "changed",
    [
        {"block_bytes": 2048},
        {"block_bytes": 131072},
        {"block_bytes": 12288},
        {"copies": 1},
        {"copies": 9},
        {"slabs": SLABS_MIN - 1},
        {"slabs": GEOMETRY.slabs + 1},
        {"slab_bytes": GEOMETRY.slab_bytes + 1},
        {"slab_bytes": 0},
        {"smallest_slot_bytes": 0},
        {"smallest_slot_bytes": GEOMETRY.slab_bytes},
        {"journal_blocks": JOURNAL_MIN_BLOCKS - 1},
        {"device_bytes": GEOMETRY.device_bytes - 4096 * 1024},
        {"device_bytes": GEOMETRY.device_bytes + 1},
        {"class_bytes": ()},
        {"class_bytes": (8192, 4096)},
        {"class_bytes": (4096, 4096)},
        {"class_bytes": (4097,)},
        {"class_bytes": (0, 4096)},
        {"class_bytes": (4096, GEOMETRY.slab_bytes)},
    ],
)
def test_what_a_superblock_may_not_claim_b4(changed: dict[str, Any]) -> None:
    with pytest.raises(GeometryInvalid):
        dataclasses.replace(GEOMETRY, **changed).check()
