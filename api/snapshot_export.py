"""``GET /v1/snapshots/{snapshot}/export``: the entries of a snapshot, sent as they are read.

What is not sent yet is bounded by one piece of the answer; a client that takes its time holds nothing but the
snapshot. What can't be read because of damage has its own place in the answer; anything else that fails cuts it, and
the client goes on behind the last entry it has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from api.batch.answer_stream import AnswerStream
from api.batch.answers import answer_lines
from api.batch.forms import Form
from api.batch.packing import hit_result, pack, pack_bin_head
from api.batch.results import etag_text, failure
from api.engine_face import EntryReader
from api.exchange import UNKNOWN_LENGTH
from api.limits import EXPORT_NUMBER_MAX
from api.parameters import read_parameters
from api.parts import list_of_parts
from api.restore_models import SchemaDocument
from api.value_request import ValueRequest
from api.value_windows import copy_window, window_stop
from storage.entries import EntryInfo
from storage.errors import EntryNotFound, EntryUnreadable, ParameterInvalid, RawblockdError, ReadFailed
from storage.format.row import Row
from storage.snapshots import SnapshotView

_PARAMETERS = frozenset({"from", "since"})
FORMAT = 1
_DAMAGE = (EntryNotFound, EntryUnreadable, ReadFailed)
"""What is wrong with one entry and will be wrong again. Without buffers, say, nothing is known of the entry."""


async def answer_export(request: ValueRequest, view: SnapshotView) -> int:
    """Answer 200 with the entries. Raises ParameterInvalid, SnapshotNotFound (also in the middle), ClientGone."""
    start, since = _read_position(request, view)
    return await _Export(request, view, start, since).answer()


async def answer_export_head(request: ValueRequest, view: SnapshotView) -> int:
    """Answer as ``answer_export`` would, without the body."""
    _read_position(request, view)
    request.exchange.answer(200, answer_lines(Form.MSGPACK), length=UNKNOWN_LENGTH)
    return 200


def _read_position(request: ValueRequest, view: SnapshotView) -> tuple[int, int]:
    parameters = read_parameters(request.query, _PARAMETERS)
    start, since = _number(parameters, "from"), _number(parameters, "since")
    if since > view.seq:
        raise ParameterInvalid(f"since is later than the snapshot, whose seq is {view.seq}", parameter="since")
    return start, since


def _number(parameters: dict[str, str], name: str) -> int:
    text = parameters.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= EXPORT_NUMBER_MAX):
        raise ParameterInvalid(f"{name} is a whole number from 0 to {EXPORT_NUMBER_MAX}", parameter=name)
    return int(text)


class _Export:
    """One answer. It begins at position ``start``, with entries that changed after seq ``since``."""

    def __init__(self, request: ValueRequest, view: SnapshotView, start: int, since: int) -> None:
        self._request = request
        self._view = view
        self._start = start
        self._next = start
        """The position behind the last entry that is complete."""
        self._since = since
        self._entries = 0
        self._damaged = 0

    async def answer(self) -> int:
        stream = AnswerStream(self._request, answer_lines(Form.MSGPACK))
        stream.pending += pack(await self._manifest())
        while await self._read_ahead(stream):
            await stream.sent()
        if self._since:
            await self._write_digests(stream)
        stream.pending += pack({"end": True, "entries": self._entries, "damaged": self._damaged})
        stream.end()
        return 200

    async def _manifest(self) -> dict[str, Any]:
        view, engine = self._view, self._request.engine
        return {
            "format": FORMAT,
            "snapshot": view.snapshot_id,
            "namespace": view.namespace,
            "seq": view.seq,
            "since": self._since,
            "from": self._start,
            "entries": await engine.export_entries(view.snapshot_id, start=self._start, since=self._since),
            "snapshot_entries": view.entries,
            "payload_bytes": view.payload_bytes,
            "checksum": view.checksum,
            "schema": asdict(SchemaDocument.of(view.settings)),
            "created_at": view.created_at,
            "device": engine.status().device.uuid,
        }

    async def _read_ahead(self, stream: AnswerStream) -> bool:
        """Write the entries that are left, reading ahead; False once all are written.

        Returns early when the client doesn't take what was sent: while it is waited for, nothing is held for it but
        copies, and what was read ahead is read again.
        """
        engine = self._request.engine
        opened = engine.export(self._view.snapshot_id, start=self._next, since=self._since)
        async with aclosing(opened):
            async for position, row, found in opened:
                prompt = await self._write(stream, position, row, found, opened.aclose)
                self._next = position + 1
                self._entries += 1
                if stream.is_full:
                    prompt = await stream.send_promptly() and prompt
                if not prompt:
                    return True
        return False

    async def _write(
        self,
        stream: AnswerStream,
        position: int,
        row: Row,
        found: EntryReader | RawblockdError,
        release: Callable[[], Awaitable[None]],
    ) -> bool:
        """Write one entry, or why it can't be read; whether the client has kept up."""
        place: dict[str, Any] = {"position": position, "digest": row.digest, "seq": row.seq}
        if isinstance(found, RawblockdError):
            self._note_damage(stream, found, place | {"etag": etag_text(row.write_id), "size": row.payload_bytes})
            return True
        prompt = True
        begun = False
        try:
            size = found.info.payload_bytes
            if window_stop(found, 0, size) == size:
                await _write_whole(stream, found, _head(found.info, row, place))
                return True
            at = 0
            while at < size:
                start, at = at, window_stop(found, at, size)
                data = await copy_window(found, start, at)
                if not begun:
                    begun = True
                    stream.pending += _head(found.info, row, place)
                stream.pending += pack_bin_head(len(data))
                stream.pending += data
                if stream.is_full and not await stream.send_promptly():
                    prompt = False
                    found.keep()
                    await release()
                    await stream.sent()
        except _DAMAGE as error:
            # Behind a head it stands in place of the value's next piece: what the client has of it is no value.
            more = {} if begun else {"etag": etag_text(row.write_id), "size": row.payload_bytes}
            self._note_damage(stream, error, place | more)
        finally:
            found.close()
        return prompt

    def _note_damage(self, stream: AnswerStream, error: RawblockdError, place: dict[str, Any]) -> None:
        """Raises ``error`` if it is none of the entry itself."""
        if not isinstance(error, _DAMAGE):
            raise error
        self._damaged += 1
        stream.pending += pack(failure(error) | place)

    async def _write_digests(self, stream: AnswerStream) -> None:
        """Of all entries of the snapshot: what an earlier one had and this list has not is gone."""
        stream.pending += pack({"digests": self._view.entries})
        async with aclosing(self._request.engine.snapshot_digests(self._view.snapshot_id)) as parts:
            async for part in parts:
                stream.pending += pack_bin_head(len(part))
                stream.pending += part
                if stream.is_full and not await stream.send_promptly():
                    await stream.sent()


def _head(info: EntryInfo, row: Row, place: dict[str, Any]) -> bytes:
    """The map before a value: as in a batch read, with what a restore needs besides."""
    more = {"key": info.key, **place, "payload_checksum": row.payload_checksum}
    return pack(hit_result(info) | {"parts": list_of_parts(info.parts)} | more)


async def _write_whole(stream: AnswerStream, reader: EntryReader, head: bytes) -> None:
    """A value of one piece, straight from the engine's buffer; nothing is written of one that fails."""
    before = len(stream.pending)
    whole = False
    try:
        stream.pending += head
        stream.pending += pack_bin_head(reader.info.payload_bytes)
        async for piece in reader.pieces():
            stream.pending += piece
        whole = True
    finally:
        if not whole:
            del stream.pending[before:]
