"""Listing a namespace's keys, a page at a time, in an order that nothing but a key's own coming and going disturbs.

The order is that of the keys' digests, in which the key map has them. A digest depends on the namespace and the key
alone, so an overwrite, the growth of a namespace and a restart leave every key's place as it is: a listing is complete
for the entries that are there throughout. The cursor is the digest of the last key looked at.

Keys stand in record headers, so a page is read from the device, in parallel but never more than a few at once for all
listings together. What one call does is bounded; where it finds little, it returns a short or empty page with a cursor.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.commit import Commit
from storage.entries import EntryInfo
from storage.errors import NamespaceNotFound, ParameterInvalid
from storage.format.row import SlotState
from storage.index import Index
from storage.key_map import KeyMap, orders_of
from storage.known_keys import KnownKey, KnownKeys
from storage.namespaces import check_name
from storage.read_path import ReadPath

LIMIT_MAX = 1000
BUCKETS_AT_ONCE = 4096
"""Buckets of the key map looked at between two turns of the loop: some 0.5 ms, as the rows lie all over the table."""
BUCKETS_A_CALL = 2_097_152
"""512 such steps: a million entries in one to two calls, where the namespace has few of them."""
HEADERS_A_CALL = 2_000
"""Record headers one call reads at most, where few keys have the prefix."""
HEADERS_AT_ONCE = 16
"""Header reads under way for all listings together: a small part of what a device takes at once."""

_CURSOR = struct.Struct("<BI16s")
_VERSION = 2


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """A line of a listing. Times are seconds since 1970; ``expires_at`` is 0 for never."""

    key: bytes
    write_id: int
    payload_bytes: int
    stored_at: float
    expires_at: int
    content_type: str


@dataclass(frozen=True, slots=True)
class ListingPage:
    """``cursor`` continues the listing; None at its end."""

    entries: list[ListedEntry]
    cursor: str | None


class Listings:
    def __init__(self, index: Index, commit: Commit, read_path: ReadPath, known_keys: KnownKeys | None) -> None:
        self._known_keys = known_keys
        self._index = index
        self._commit = commit
        self._read_path = read_path
        self._reading = asyncio.Semaphore(HEADERS_AT_ONCE)

    async def page(self, namespace: str, prefix: bytes, cursor: str, limit: int) -> ListingPage:
        """Up to ``limit`` entries with a prefix behind a cursor. Raises NamespaceInvalid, NamespaceNotFound,
        ParameterInvalid, Busy."""
        known = self._index.namespaces.by_name.get(namespace)
        if known is None:
            check_name(namespace)
            raise NamespaceNotFound(namespace)
        if not 1 <= limit <= LIMIT_MAX:
            raise ParameterInvalid(f"limit is from 1 to {LIMIT_MAX}", parameter="limit")
        walk = _Walk(self._index.keys, known.namespace_id, _read_cursor(cursor, known.namespace_id))
        entries: list[ListedEntry] = []
        looked_at = headers = 0
        while not walk.at_end and looked_at < BUCKETS_A_CALL and headers < HEADERS_A_CALL:
            row_ids = walk.step(self._index.table.lines, BUCKETS_AT_ONCE, HEADERS_A_CALL - headers)
            looked_at += BUCKETS_AT_ONCE
            # As many headers as entries are wanted at least, in case few have the prefix: then the next ones.
            for begin in range(0, len(row_ids), HEADERS_AT_ONCE):
                part = row_ids[begin : begin + HEADERS_AT_ONCE]
                headers += len(part)
                for row_id, digest, entry in await self._entries(part):
                    if entry is not None and entry.key.startswith(prefix):
                        entries.append(entry)
                    if len(entries) == limit or (row_id == part[-1][0] and headers >= HEADERS_A_CALL):
                        return ListingPage(entries, _write_cursor(known.namespace_id, digest))
            await asyncio.sleep(0)
        if walk.at_end:
            return ListingPage(entries, None)
        return ListingPage(entries, _write_cursor(known.namespace_id, walk.reached()))

    async def _entries(self, part: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes, ListedEntry | None]]:
        """What the record headers of some rows tell; None for entries that went meanwhile, expired or fail."""
        listed = [self._known(digest) for _, digest in part]
        unknown = [position for position, entry in enumerate(listed) if entry is None]
        read = await asyncio.gather(*(self._entry(part[position][1]) for position in unknown))
        for position, entry in zip(unknown, read, strict=True):
            listed[position] = entry
        return [(row_id, digest, entry) for (row_id, digest), entry in zip(part, listed, strict=True)]

    def _known(self, digest: bytes) -> ListedEntry | None:
        """An entry whose key is kept in memory."""
        found = self._commit.published(digest) if self._known_keys is not None else None
        if found is None or self._commit.is_expired(found[1]):
            return None
        assert self._known_keys is not None
        row_id, row = found
        known = self._known_keys.find(row_id, row.write_id)
        if known is None:
            return None
        facts = (known.stored_at, row.expires_at, known.content_type)
        return ListedEntry(known.key, row.write_id, row.payload_bytes, *facts)

    async def _entry(self, digest: bytes) -> ListedEntry | None:
        async with self._reading:
            # An entry that is overwritten while it is listed is listed as what it has become.
            while (found := self._commit.published(digest)) is not None:
                if self._commit.is_expired(found[1]):
                    return None
                info = await self._read_path.info(*found)
                if info is not None:
                    self._remember(found[0], info)
                    facts = (info.stored_at, info.expires_at, info.content_type)
                    return ListedEntry(info.key, info.write_id, info.payload_bytes, *facts)
                if self._commit.published(digest) == found:
                    return None
            return None

    def _remember(self, row_id: int, info: EntryInfo) -> None:
        if self._known_keys is not None:
            self._known_keys.remember(row_id, KnownKey(info.write_id, info.key, info.stored_at, info.content_type))


class _Walk:
    """A walk over the key map in the order of home buckets, from behind a digest on."""

    def __init__(self, keys: KeyMap, namespace_id: int, behind: bytes | None) -> None:
        self._keys = keys
        self._namespace_id = namespace_id
        self._behind = behind
        self._home = 0 if behind is None else keys.home_of(behind)

    @property
    def at_end(self) -> bool:
        return self._home >= self._keys.size

    def reached(self) -> bytes:
        """A digest that lies behind everything looked at so far."""
        return self._keys.last_of(self._home - 1)

    def step(self, lines: npt.NDArray[np.void], homes: int, limit: int) -> list[tuple[int, bytes]]:
        """Row ids and digests of the namespace's live rows in the next home buckets, in order; up to ``limit``, more
        than which the caller does not look at."""
        first, last = self._home, min(self._home + homes, self._keys.size)
        self._home = last
        row_ids = self._keys.row_ids_of_homes(first, last)
        row_ids = row_ids[lines["namespace_id"][row_ids] == self._namespace_id]
        row_ids = row_ids[lines["state"][row_ids] == SlotState.LIVE]
        digests = np.ascontiguousarray(lines["digest"][row_ids])
        places = orders_of(digests)
        if self._behind is not None:
            high, low = (column[0] for column in orders_of(np.array([self._behind], dtype="V16")))
            later = (places[0] > high) | ((places[0] == high) & (places[1] > low))
            row_ids, digests, places = row_ids[later], digests[later], [column[later] for column in places]
        order = np.lexsort(places[::-1])[:limit]
        return [(row_id, d.tobytes()) for row_id, d in zip(row_ids[order].tolist(), digests[order], strict=True)]


def _write_cursor(namespace_id: int, digest: bytes) -> str:
    return base64.urlsafe_b64encode(_CURSOR.pack(_VERSION, namespace_id, digest)).decode().rstrip("=")


def _read_cursor(cursor: str, namespace_id: int) -> bytes | None:
    """The digest in a cursor, None for the start. Raises ParameterInvalid for a cursor of another namespace, too."""
    if not cursor:
        return None
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        version, of_namespace, digest = _CURSOR.unpack(raw)
    except (binascii.Error, struct.error, ValueError) as error:
        raise ParameterInvalid("not a cursor of a listing", parameter="cursor") from error
    if version != _VERSION or of_namespace != namespace_id:
        raise ParameterInvalid("the cursor is of another namespace, or of one that was wiped", parameter="cursor")
    return bytes(digest)
