"""Who a device is and how it is divided."""

from __future__ import annotations

import uuid
from typing import Any

from storage.format.geometry import Geometry
from storage.format.record import header_size
from storage.format.superblock import (
    COMPAT_KNOWN,
    INCOMPAT_KNOWN,
    RO_COMPAT_KNOWN,
    VERSION,
    Superblock,
    writable,
)
from storage.offline.opening import opened

ASSUMED_MAP_BYTES = 256
"""Key, namespace and times of an ordinary record: what the largest value is reckoned with, as the daemon does."""


def info(path: str) -> dict[str, Any]:
    """Identity, geometry and limits of the cache on ``path``; sizes in bytes, times in seconds since 1970.

    Raises as ``opened``. The secret is not among the facts.
    """
    with opened(path) as cache:
        geometry = cache.geometry
        return {
            "device": path,
            "held": cache.held,
            "device_size_bytes": cache.device.size_bytes,
            **_identity(cache.superblock),
            "superblocks": dict(zip(("first", "last"), cache.superblock_verdicts, strict=True)),
            "features": _features(cache.superblock),
            "max_entries": geometry.max_entries,
            "max_value_bytes": max_value_bytes(geometry),
            "reserved_bytes": geometry.reserved_bytes,
            "memory_full_bytes": geometry.memory_full_bytes,
            "geometry": _geometry(geometry),
        }


def max_value_bytes(geometry: Geometry) -> int:
    """The largest payload that fits with a short key and no metadata."""
    slot_bytes = geometry.class_bytes[-1]
    return slot_bytes - header_size(ASSUMED_MAP_BYTES, slot_bytes)


def _identity(superblock: Superblock) -> dict[str, Any]:
    return {
        "uuid": str(uuid.UUID(bytes=superblock.uuid)),
        "format_version": VERSION,
        "created_at": superblock.created_ms / 1000,
        "start_count": superblock.start_count,
    }


def _features(superblock: Superblock) -> dict[str, Any]:
    """Flags set on the device; ``unknown`` are those this program does not know."""
    unknown = superblock.compat & ~COMPAT_KNOWN
    unknown |= superblock.ro_compat & ~RO_COMPAT_KNOWN
    unknown |= superblock.incompat & ~INCOMPAT_KNOWN
    return {
        "compat": superblock.compat,
        "ro_compat": superblock.ro_compat,
        "incompat": superblock.incompat,
        "unknown": unknown,
        "writable": writable(superblock),
    }


def _geometry(geometry: Geometry) -> dict[str, Any]:
    return {
        "size_bytes": geometry.device_bytes,
        "block_bytes": geometry.block_bytes,
        "copies": geometry.copies,
        "copy_bytes": geometry.copy_bytes,
        "copy_offsets": " ".join(str(geometry.copy_offset(copy)) for copy in range(geometry.copies)),
        "pages": geometry.pages,
        "journal_offset": geometry.journal_offset,
        "journal_blocks": geometry.journal_blocks,
        "slabs_offset": geometry.slabs_offset,
        "slabs": geometry.slabs,
        "slab_bytes": geometry.slab_bytes,
        "smallest_slot_bytes": geometry.smallest_slot_bytes,
        "class_bytes": " ".join(str(size) for size in geometry.class_bytes),
    }
