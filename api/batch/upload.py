"""The entries of one batch put, from their arrival to their results."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from api.batch.entries import BatchOptions, EntryFields
from api.batch.results import Result, etag_text, failure
from api.defaults import durability_of, expiry_of
from api.engine_face import ValuePut
from api.errors import BatchTooLarge
from api.limits import BATCH_WAIT_MAX_SECONDS
from api.value_request import ValueRequest
from storage.entries import Durability, PutResult
from storage.errors import Busy, RawblockdError

NextPiece = Callable[[], Awaitable[memoryview]]
"""The next bytes of a value, empty at its end. What it raises fails the whole batch."""


class _Entry:
    __slots__ = ("key", "outcome", "put", "size_bytes")

    def __init__(self, key: bytes | None) -> None:
        self.key = key
        self.put: ValuePut | None = None
        self.size_bytes = 0
        self.outcome: PutResult | RawblockdError | None = None
        """None while it is not known: for an entry that was superseded it never is."""


class Upload:
    """Takes entries one after the other. Exactly one of ``commit`` and ``abort`` publishes or forgets them."""

    def __init__(self, request: ValueRequest) -> None:
        self._request = request
        self._entries: list[_Entry] = []
        self._last: dict[bytes, _Entry] = {}
        """Of each key the last entry so far: it alone decides what becomes of the key."""
        self._batch_bytes = 0
        self._max_batch_bytes = request.engine.max_batch_bytes
        self._waited_seconds = 0.0
        """How long entries that were refused have waited before."""
        self.options = BatchOptions(None, None, None)

    @property
    def entries(self) -> int:
        return len(self._entries)

    def refuse(self, key: bytes | None, error: RawblockdError) -> None:
        """An entry whose fields are wrong. ``key`` is None if it can't be told."""
        self._add(key).outcome = error

    def take_now(self, key: bytes, value: memoryview) -> int | None:
        """As ``take``, of an entry that is nothing but a key and a value which is here: the bytes of it that were not
        taken, because it was refused. None if something has to be waited for: then the entry is ``take``'s.

        Raises BatchTooLarge.
        """
        request = self._request
        if self._waited_seconds > BATCH_WAIT_MAX_SECONDS:
            return None
        try:
            put = request.engine.begin_put_now(
                request.namespace,
                key,
                len(value),
                expires_at=expiry_of(request, self.options.ttl_seconds),
                durability=self._durability(),
            )
        except RawblockdError as error:
            self._add(key).outcome = error
            return len(value)
        if put is None:
            return None
        entry = self._add(key)
        self._has_begun(entry, put, len(value))
        try:
            fits = put.write_now(value)
            assert fits, "what came in one piece fits into one"
            put.stage()
        except RawblockdError as error:
            self._drop(entry, error)
        return 0

    async def take(self, key: bytes, fields: EntryFields, size_bytes: int, next_piece: NextPiece) -> None:
        """Write an entry's value as it comes. What refuses it becomes its result; its value may then be read in part.

        Raises BatchTooLarge, and what ``next_piece`` raises.
        """
        entry = self._add(key)
        put = await self._begin(entry, key, fields, size_bytes)
        if put is None:
            return
        while piece := await next_piece():
            if fields.check is not None:
                fields.check.update(piece)
            try:
                await put.write(piece)
            except RawblockdError as error:
                self._drop(entry, error)
                return
        try:
            if fields.check is not None:
                fields.check.verify()
            put.stage()
        except RawblockdError as error:
            self._drop(entry, error)

    async def commit(self) -> list[Result]:
        """Publish what was taken, and the results in the order of the entries."""
        open_entries = [entry for entry in self._entries if entry.put is not None]
        outcomes = await self._request.engine.commit_many([entry.put for entry in open_entries if entry.put])
        for entry, outcome in zip(open_entries, outcomes, strict=True):
            entry.put = None
            entry.outcome = outcome
        return [self._result(entry) for entry in self._entries]

    def abort(self) -> None:
        """Give everything back that was not committed. Idempotent."""
        for entry in self._entries:
            if entry.put is not None:
                entry.put.abort()
                entry.put = None

    def _add(self, key: bytes | None) -> _Entry:
        entry = _Entry(key)
        self._entries.append(entry)
        if key is not None:
            earlier = self._last.get(key)
            if earlier is not None:
                self._drop(earlier, earlier.outcome)
            self._last[key] = entry
        return entry

    async def _begin(self, entry: _Entry, key: bytes, fields: EntryFields, size_bytes: int) -> ValuePut | None:
        request = self._request
        began = time.monotonic()
        if self._waited_seconds > BATCH_WAIT_MAX_SECONDS:
            entry.outcome = Busy("earlier entries of this batch have waited in vain")
            return None
        ttl_seconds = self.options.ttl_seconds if fields.ttl_seconds is None else fields.ttl_seconds
        try:
            put = await request.engine.begin_put(
                request.namespace,
                key,
                size_bytes,
                content_type=fields.content_type,
                metadata=fields.metadata,
                expires_at=expiry_of(request, ttl_seconds),
                parts=fields.parts,
                durability=self._durability(),
                conditions=fields.conditions,
            )
        except RawblockdError as error:
            entry.outcome = error
            self._waited_seconds += time.monotonic() - began
            return None
        self._has_begun(entry, put, size_bytes)
        return put

    def _has_begun(self, entry: _Entry, put: ValuePut, size_bytes: int) -> None:
        """Raises BatchTooLarge."""
        entry.put = put
        entry.size_bytes = size_bytes
        self._batch_bytes += size_bytes
        if self._batch_bytes > self._max_batch_bytes:
            most = self._max_batch_bytes
            raise BatchTooLarge(f"one batch has up to {most} bytes of values here", max_batch_bytes=most)

    def _durability(self) -> Durability:
        return durability_of(self._request, self.options.durability)

    def _drop(self, entry: _Entry, outcome: PutResult | RawblockdError | None) -> None:
        """End an entry's put: it failed, or a later entry of its key has come."""
        entry.outcome = outcome
        if entry.put is not None:
            entry.put.abort()
            entry.put = None
            self._batch_bytes -= entry.size_bytes

    def _result(self, entry: _Entry) -> Result:
        if isinstance(entry.outcome, RawblockdError):
            return failure(entry.outcome)
        if entry.outcome is not None:
            return _stored(entry.outcome)
        assert entry.key is not None
        deciding = self._last[entry.key].outcome
        if isinstance(deciding, RawblockdError):
            return failure(deciding)
        assert deciding is not None
        return {"status": 200, "reason": "superseded", "etag": etag_text(deciding.write_id)}


def _stored(result: PutResult) -> Result:
    return {
        "status": 201 if result.created else 204,
        "etag": etag_text(result.write_id),
        "durability": result.durability.value,
    }
