"""What a key and the metadata kept with a value may be."""

from __future__ import annotations

from storage.errors import KeyInvalid, MetadataInvalid
from storage.limits import KEY_MAX_BYTES, METADATA_MAX_BYTES, METADATA_MAX_ITEMS


def check_key(key: bytes) -> None:
    """Raises KeyInvalid."""
    if not 1 <= len(key) <= KEY_MAX_BYTES:
        raise KeyInvalid(f"{len(key)} bytes")


def check_metadata(content_type: str, metadata: tuple[tuple[str, str], ...]) -> None:
    """Raises MetadataInvalid."""
    size = len(content_type.encode()) + sum(len(n.encode()) + len(v.encode()) for n, v in metadata)
    if size > METADATA_MAX_BYTES or len(metadata) > METADATA_MAX_ITEMS:
        raise MetadataInvalid(
            f"{size} bytes in {len(metadata)} items; at most {METADATA_MAX_BYTES} in {METADATA_MAX_ITEMS}"
        )
