"""Who the device is and which ids this start draws: what writing and verifying a record needs to know."""

from __future__ import annotations

from collections.abc import Sequence

from storage.errors import Unavailable
from storage.format.checksums import header_hash, key_digest, key_digests
from storage.format.superblock import Superblock
from storage.limits import WRITE_ID_COUNTER_BITS, WRITE_ID_START_BITS


class Identity:
    """Write ids are start count x 2^42 + counter: unique for the device's life, since no start count is used twice."""

    def __init__(self, superblock: Superblock, start_count: int) -> None:
        assert 0 < start_count < 1 << WRITE_ID_START_BITS
        self.uuid = superblock.uuid
        self.secret = superblock.secret
        self.fresh_header_hash = header_hash(superblock.secret)
        """Starts a keyed sum of a record header."""
        self.start_count = start_count
        self._next = start_count << WRITE_ID_COUNTER_BITS | 1
        self._end = (start_count + 1) << WRITE_ID_COUNTER_BITS

    def draw_write_id(self) -> int:
        """A write id no record had before. Raises Unavailable when this start has none left."""
        if self._next >= self._end:
            raise Unavailable("this start has drawn all its write ids; restart the daemon")
        self._next += 1
        return self._next - 1

    def digest(self, namespace_id: int, key: bytes) -> bytes:
        return key_digest(self.secret, namespace_id, key)

    def digests(self, namespace_id: int, keys: Sequence[bytes]) -> list[bytes]:
        """As ``digest``, of many keys."""
        return key_digests(self.secret, namespace_id, keys)
