"""Where everything lies on a device, and how a device is divided.

::

    superblock A | copies 0..N-2 | journal | slab 0 … slab S-1 | copy N-1 | scratch block | superblock B
    slab = slab header (a block) | slots of one class

All offsets and sizes are multiples of ``block_bytes``. What is written in the superblock is enough to find everything;
the planning rules below may change without making older devices unreadable.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

from storage.errors import GeometryInvalid
from storage.format.layout import round_up
from storage.limits import (
    COPIES_MAX,
    COPIES_MIN,
    JOURNAL_MIN_BLOCKS,
    NAMESPACES_MAX,
    SLAB_MAX_BYTES,
    SLAB_MIN_BYTES,
)

BLOCK_MIN_BYTES = 4096
BLOCK_MAX_BYTES = 65536
LINE_BYTES = 64
JOURNAL_HEADER_LINES = 2
DIRECTORY_ENTRY_BYTES = 16
STREAM_HEADER_BYTES = 64
CLASSES_MAX = 64
SLABS_MIN = 4
"""An overwrite needs a second slot, and the classes of a mixed load a slab each: fewer slabs are no cache."""
CATALOGUE_SLAB_BYTES = 32
CATALOGUE_NAMESPACE_BYTES = 256
CATALOGUE_STATE_BYTES = 65536
JOURNAL_ROWS = 3
"""Rows of journal per slot. A compaction while checkpoints are frozen appends every row that changed, at most one per
slot, and begins when half the ring is used: 1.5 + 1 of 3, which leaves room for what is written meanwhile."""
CLASS_RATIO = 1.25
SNAP_RATIO_MAX = 2.1
"""Steps wider than an octave can't meet every power of two; the first ratio above 2 that is tried still does."""
NO_CLASS = 255
"""Slot class of a slab that no class has needed yet."""


@dataclass(frozen=True)
class Geometry:
    """The division of one device. Sizes in bytes, offsets from the start of the device."""

    device_bytes: int
    block_bytes: int
    copies: int
    slab_bytes: int
    slabs: int
    smallest_slot_bytes: int
    journal_blocks: int
    class_bytes: tuple[int, ...]
    """Slot size of each class, ascending; the last holds a whole slab."""

    @cached_property
    def rows_per_page(self) -> int:
        """One line of a page is its header."""
        return self.block_bytes // LINE_BYTES - 1

    @cached_property
    def rows_per_journal_block(self) -> int:
        return self.block_bytes // LINE_BYTES - JOURNAL_HEADER_LINES

    @cached_property
    def slot_area_bytes(self) -> int:
        """What of a slab holds slots: all but its first block, the slab header."""
        return self.slab_bytes - self.block_bytes

    @cached_property
    def slots_per_slab_max(self) -> int:
        return self.slot_area_bytes // self.smallest_slot_bytes

    @cached_property
    def pages_per_slab(self) -> int:
        return -(-self.slots_per_slab_max // self.rows_per_page)

    @cached_property
    def pages(self) -> int:
        return self.slabs * self.pages_per_slab

    @cached_property
    def max_entries(self) -> int:
        return self.slabs * self.slots_per_slab_max

    @cached_property
    def directory_entries_per_block(self) -> int:
        return (self.block_bytes - STREAM_HEADER_BYTES) // DIRECTORY_ENTRY_BYTES

    @cached_property
    def directory_blocks(self) -> int:
        return -(-self.pages // self.directory_entries_per_block)

    @cached_property
    def catalogue_blocks(self) -> int:
        return catalogue_blocks(self.slabs, self.block_bytes)

    @cached_property
    def copy_bytes(self) -> int:
        return (1 + self.directory_blocks + self.catalogue_blocks + self.pages) * self.block_bytes

    @cached_property
    def journal_bytes(self) -> int:
        return self.journal_blocks * self.block_bytes

    @cached_property
    def journal_offset(self) -> int:
        return self.block_bytes + (self.copies - 1) * self.copy_bytes

    @cached_property
    def slabs_offset(self) -> int:
        return self.journal_offset + self.journal_bytes

    @cached_property
    def superblock_offsets(self) -> tuple[int, int]:
        return 0, self.device_bytes - self.block_bytes

    @cached_property
    def reserved_bytes(self) -> int:
        """Bytes of the device that are not slabs."""
        return self.device_bytes - self.slabs * self.slab_bytes

    @cached_property
    def end_bytes(self) -> int:
        """What the layout needs; at most ``device_bytes``."""
        return self.slabs_offset + self.slabs * self.slab_bytes + self.copy_bytes + 2 * self.block_bytes

    @cached_property
    def scratch_offset(self) -> int:
        """The block that self tests write to; it holds nothing."""
        return self.device_bytes - 2 * self.block_bytes

    @cached_property
    def buckets(self) -> int:
        """Of the key map: two thirds of them are in use when every slot of the smallest class is live."""
        return max(1024, self.max_entries * 3 // 2)

    @cached_property
    def memory_full_bytes(self) -> int:
        """Memory of what grows with the slots, when every one of them is live: 65 B of slot table a row, 4 B x the
        buckets of the key map; of eviction 8 B of links a row, and 4 B a key remembered in a table of a power of two of
        places, three quarters full at most; 5 B a row for lists of freed slots; per page 8 B, and 16 B per copy."""
        lines = self.pages * (self.block_bytes // LINE_BYTES)
        remembered = 1 << max(10, (self.max_entries * 6 // 5).bit_length())
        tracking = self.pages * (8 + DIRECTORY_ENTRY_BYTES * self.copies)
        return self.pages * self.block_bytes + (self.buckets + remembered) * 4 + lines * (8 + 5) + tracking

    def copy_offset(self, copy: int) -> int:
        """Where checkpoint copy ``copy`` starts: the last copy stands behind the slabs, so that each end has one."""
        if copy == self.copies - 1:
            return self.scratch_offset - self.copy_bytes
        return self.block_bytes + copy * self.copy_bytes

    def directory_offset(self, copy: int) -> int:
        return self.copy_offset(copy) + self.block_bytes

    def catalogue_offset(self, copy: int) -> int:
        return self.directory_offset(copy) + self.directory_blocks * self.block_bytes

    def page_offset(self, copy: int, page: int) -> int:
        return self.catalogue_offset(copy) + (self.catalogue_blocks + page) * self.block_bytes

    def journal_block_offset(self, number: int) -> int:
        """Where the journal block of consecutive ``number`` lies in the ring."""
        return self.journal_offset + number % self.journal_blocks * self.block_bytes

    def slot_offset(self, slab: int, slot: int, slot_class: int) -> int:
        # As ``slab_offset``, and behind the slab's header.
        return self.slabs_offset + slab * self.slab_bytes + self.block_bytes + slot * self.class_bytes[slot_class]

    def slab_offset(self, slab: int) -> int:
        """Where a slab starts, with its header."""
        return self.slabs_offset + slab * self.slab_bytes

    def slots_per_slab(self, slot_class: int) -> int:
        return self.slot_area_bytes // self.class_bytes[slot_class]

    def class_for(self, record_bytes: int) -> int:
        """The smallest class whose slots hold ``record_bytes``; -1 if none does."""
        slot_class = bisect_left(self.class_bytes, record_bytes)
        return slot_class if slot_class < len(self.class_bytes) else -1

    def check(self) -> None:
        """Refuse sizes that make no device; the decoder of superblocks relies on it. Raises GeometryInvalid."""
        _require(BLOCK_MIN_BYTES <= self.block_bytes <= BLOCK_MAX_BYTES, "block_bytes is out of range")
        _require(self.block_bytes & (self.block_bytes - 1) == 0, "block_bytes is not a power of two")
        _require(COPIES_MIN <= self.copies <= COPIES_MAX, f"copies must be {COPIES_MIN} to {COPIES_MAX}")
        for name in ("slab_bytes", "smallest_slot_bytes", "device_bytes"):
            value = getattr(self, name)
            _require(value > 0 and value % self.block_bytes == 0, f"{name} is not a positive multiple of the block")
        _require(self.smallest_slot_bytes <= self.slot_area_bytes, "smallest_slot_bytes is larger than a slab")
        _require(self.slabs >= SLABS_MIN, f"fewer than {SLABS_MIN} slabs fit")
        _require(self.journal_blocks >= JOURNAL_MIN_BLOCKS, f"the journal has fewer than {JOURNAL_MIN_BLOCKS} blocks")
        _require(self.slots_per_slab_max <= 0xFFFF, "more slots in a slab than a row can name")
        sizes = self.class_bytes
        _require(0 < len(sizes) <= CLASSES_MAX, "no slot classes, or too many")
        _require(all(a < b for a, b in zip(sizes, sizes[1:], strict=False)), "slot classes are not ascending")
        _require(all(s % self.block_bytes == 0 for s in sizes), "a slot class is not a multiple of the block")
        _require(sizes[0] >= self.smallest_slot_bytes, "a slot class is smaller than the smallest slot")
        _require(sizes[-1] <= self.slot_area_bytes, "a slot class is larger than a slab")
        _require(self.end_bytes <= self.device_bytes, "the layout is larger than the device")


def _require(condition: bool, cause: str) -> None:
    if not condition:
        raise GeometryInvalid(cause)


def catalogue_blocks(slabs: int, block_bytes: int) -> int:
    """Blocks of a copy's catalogue when full, so that it never gets too large for its area (L2)."""
    size_bytes = slabs * CATALOGUE_SLAB_BYTES + NAMESPACES_MAX * CATALOGUE_NAMESPACE_BYTES + CATALOGUE_STATE_BYTES
    return -(-size_bytes // (block_bytes - STREAM_HEADER_BYTES))


def default_smallest_slot(device_bytes: int) -> int:
    """4 KiB up to 16 GiB, 16 KiB up to 1 TiB, 64 KiB above: bounds rows, hence memory and reserved space."""
    if device_bytes <= 16 << 30:
        return 4096
    return 16384 if device_bytes <= 1 << 40 else 65536


def default_slab_bytes(device_bytes: int) -> int:
    """A 128th of the device as a power of two within 1 to 64 MiB."""
    size_bytes = 1 << max(0, (device_bytes // 128).bit_length() - 1)
    return min(SLAB_MAX_BYTES, max(SLAB_MIN_BYTES, size_bytes))


def plan_classes(smallest_slot_bytes: int, slot_area_bytes: int, block_bytes: int, classes_max: int) -> tuple[int, ...]:
    """Slot sizes from the smallest slot to a whole slab, in steps of about 1.25, wider if there would be too many.

    Each power of two has a class one block above it, so that a power-of-two payload with its header wastes nothing;
    each size is then stretched until its slots fill the slab.
    """
    ratio = CLASS_RATIO
    while True:
        sizes = _class_sizes(smallest_slot_bytes, slot_area_bytes, block_bytes, ratio)
        if len(sizes) <= classes_max or ratio > 64:
            return sizes
        ratio *= 1.05


def _class_sizes(smallest_slot_bytes: int, slot_area_bytes: int, block_bytes: int, ratio: float) -> tuple[int, ...]:
    sizes: list[int] = []
    size = smallest_slot_bytes
    while size < slot_area_bytes:
        slots = slot_area_bytes // size
        stretched = slot_area_bytes // slots // block_bytes * block_bytes
        if stretched >= 16 * block_bytes and stretched & (stretched - 1) == 0 and ratio < SNAP_RATIO_MAX:
            # Slots of just a power of two would not take such a payload with its header: fewer and larger ones.
            slots = slot_area_bytes // (stretched + block_bytes)
            stretched = slot_area_bytes // slots // block_bytes * block_bytes
        sizes.append(stretched)
        following = max(stretched + block_bytes, int(stretched * ratio) // block_bytes * block_bytes)
        power = 1 << stretched.bit_length()
        # Steps of a block meet every size anyway; from 16 blocks on, a step that reaches a power of two goes one above.
        if ratio < SNAP_RATIO_MAX and power >= 16 * block_bytes and power <= following:
            following = power + block_bytes
        size = following
    if not sizes or sizes[-1] != slot_area_bytes:
        sizes.append(slot_area_bytes)
    return tuple(sizes)


def plan(
    device_bytes: int,
    *,
    block_bytes: int = BLOCK_MIN_BYTES,
    smallest_slot_bytes: int | None = None,
    slab_bytes: int | None = None,
    copies: int = 3,
) -> Geometry:
    """Divide a device of ``device_bytes``. Raises GeometryInvalid naming the size that is wrong.

    ``slab_bytes`` is a power of two; 1/256 is added to it, so that power-of-two payloads fit with their headers, and
    a block for the slab's own header.
    """
    _require(block_bytes >= BLOCK_MIN_BYTES and block_bytes & (block_bytes - 1) == 0, f"block_bytes = {block_bytes}")
    _require(device_bytes > 0, f"size = {device_bytes}: not a positive size")
    usable_bytes = device_bytes // block_bytes * block_bytes
    smallest = default_smallest_slot(device_bytes) if smallest_slot_bytes is None else smallest_slot_bytes
    smallest = max(smallest, block_bytes) if smallest_slot_bytes is None else smallest
    _require(
        smallest > 0 and smallest % block_bytes == 0,
        f"smallest slot = {smallest}: not a positive multiple of the block of {block_bytes} bytes",
    )
    slab = default_slab_bytes(device_bytes) if slab_bytes is None else slab_bytes
    _require(slab > 0 and slab & (slab - 1) == 0, f"slab = {slab}: not a power of two")
    _require(
        SLAB_MIN_BYTES <= slab <= SLAB_MAX_BYTES,
        f"slab = {slab}: not within {SLAB_MIN_BYTES} to {SLAB_MAX_BYTES} bytes",
    )
    _require(smallest <= slab, f"smallest slot = {smallest}: larger than a slab of {slab} bytes")
    _require(COPIES_MIN <= copies <= COPIES_MAX, f"copies = {copies}: not within {COPIES_MIN} to {COPIES_MAX}")
    slab += round_up(slab // 256, block_bytes) + block_bytes
    slabs = _slabs_that_fit(usable_bytes, block_bytes, smallest, slab, copies)
    _require(slabs >= SLABS_MIN, f"size = {device_bytes}: fewer than {SLABS_MIN} slabs of {slab} bytes fit")
    geometry = _divide(usable_bytes, block_bytes, smallest, slab, copies, slabs)
    geometry.check()
    return geometry


def _divide(device_bytes: int, block_bytes: int, smallest: int, slab: int, copies: int, slabs: int) -> Geometry:
    rows = slabs * ((slab - block_bytes) // smallest)
    rows_per_block = block_bytes // LINE_BYTES - JOURNAL_HEADER_LINES
    return Geometry(
        device_bytes=device_bytes,
        block_bytes=block_bytes,
        copies=copies,
        slab_bytes=slab,
        slabs=slabs,
        smallest_slot_bytes=smallest,
        journal_blocks=max(JOURNAL_MIN_BLOCKS, -(-JOURNAL_ROWS * rows // rows_per_block)),
        class_bytes=plan_classes(smallest, slab - block_bytes, block_bytes, min(CLASSES_MAX, max(4, slabs // 4))),
    )


def _slabs_that_fit(device_bytes: int, block_bytes: int, smallest: int, slab: int, copies: int) -> int:
    low, high = 0, device_bytes // slab
    while low < high:
        middle = (low + high + 1) // 2
        if _divide(device_bytes, block_bytes, smallest, slab, copies, middle).end_bytes <= device_bytes:
            low = middle
        else:
            high = middle - 1
    return low
