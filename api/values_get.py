"""``GET`` and ``HEAD`` of a value."""

from __future__ import annotations

import time
from contextlib import aclosing
from functools import lru_cache

from api.conditions import Verdict, evaluate_read, maybe_known
from api.engine_face import EntryReader
from api.exchange import Exchange
from api.freshness import freshness_lines
from api.headers import HIT, NO_SCRIPTS, etag, line
from api.limits import PROMPT_SEND_SECONDS
from api.metadata import metadata_lines
from api.parameters import read_lease, read_parameters
from api.parts import PART_FIELD, find_part, parts_lines
from api.ranges import content_range, select_range
from api.value_request import ValueRequest
from storage.entries import EntryInfo
from storage.errors import PreconditionFailed

_PARAMETERS = frozenset({"lease", "part"})
_LASTING = b"accept-ranges: bytes\r\n" + HIT + NO_SCRIPTS


UNPLAIN = frozenset(
    {
        *(b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since", b"range"),
        *(b"content-length", b"transfer-encoding", b"upgrade", b"expect"),
    }
)
"""With one of these fields a GET may be answered with something else than the whole value, or has a body."""


def answer_whole(exchange: Exchange, reader: EntryReader) -> None:
    """Answer a GET without ``UNPLAIN`` fields and query from a record that was read whole."""
    info = reader.info
    value = reader.whole(0, info.payload_bytes)
    assert value is not None
    exchange.answer(200, _entry_lines(info), value)


async def answer_head(request: ValueRequest) -> int:
    """Answer as ``GET`` would, without the body. A HEAD takes no range (RFC 9110, 14.2)."""
    lease_id, part = _read_query(request.query)
    info = await request.engine.head(request.namespace, request.key, lease_id=lease_id)
    first, last, named = _chosen(info, part)
    if _is_not_modified(request, info):
        return _send_not_modified(request.exchange, info)
    request.exchange.answer(200, _entry_lines(info) + named, length=last - first)
    return 200


async def answer_get(request: ValueRequest) -> int:
    """Answer 200, 206 or 304, and return which.

    Every byte is verified before it's sent; the head goes out only after the first piece is. Raises the engine's
    errors, ``PreconditionFailed``, ``RangeUnsatisfiable`` and ``ClientGone``; if the answer has begun by then, it must
    be cut short.
    """
    known_ids = maybe_known(request.fields)
    lease_id, part = _read_query(request.query) if request.query else ("", None)
    sparse = part is not None or b"range" in request.fields
    reader = await request.engine.open_read(
        request.namespace, request.key, lease_id=lease_id, sparse=sparse, known_ids=known_ids
    )
    try:
        info = reader.info
        first, last, named = _chosen(info, part)
        if _is_not_modified(request, info):
            return _send_not_modified(request.exchange, info)
        lines = _entry_lines(info)
        if named:
            lines += named
        size_bytes = last - first
        chosen = select_range(request.fields, info, size_bytes)
        if chosen is None:
            status, start, stop = 200, first, last
        else:
            status, start, stop = 206, first + chosen[0], first + chosen[1]
            lines += line(b"content-range", content_range(*chosen, size_bytes))
        whole = reader.whole(start, stop)
        if whole is None:
            await _send_pieces(request.exchange, reader, status, lines, start, stop)
        else:
            request.exchange.answer(status, lines, whole)
        return status
    finally:
        reader.close()


async def _send_pieces(
    exchange: Exchange, reader: EntryReader, status: int, lines: bytes, start: int, stop: int
) -> None:
    """A value that is read piece by piece, ahead of a client that keeps up.

    While a client takes its time, nothing of the engine's is held for it: what was read ahead is read again.
    """
    if start == stop:
        exchange.answer(status, lines)
        return
    at = start
    while at < stop:
        async with aclosing(reader.pieces(at, stop)) as pieces:
            async for piece in pieces:
                if not exchange.answered:
                    exchange.begin(status, lines, length=stop - start)
                at += len(piece)
                exchange.push(piece)
                if not await exchange.drained(PROMPT_SEND_SECONDS):
                    break
        await exchange.drained()
    exchange.end()


def _read_query(query: bytes) -> tuple[str, str | None]:
    """The lease, "" without one, and the part, None for the whole value."""
    parameters = read_parameters(query, _PARAMETERS)
    return read_lease(parameters), parameters.get("part")


def _chosen(info: EntryInfo, part: str | None) -> tuple[int, int, bytes]:
    """First byte and the byte after the last of what is read, and what names it. Raises PartNotFound."""
    if part is None:
        return 0, info.payload_bytes, b""
    return *find_part(info, part), line(PART_FIELD, part.encode())


def _is_not_modified(request: ValueRequest, info: EntryInfo) -> bool:
    verdict = evaluate_read(request.fields, info)
    if verdict is Verdict.FAILED:
        raise PreconditionFailed(present_write_id=info.write_id)
    return verdict is Verdict.NOT_MODIFIED


def _send_not_modified(exchange: Exchange, info: EntryInfo) -> int:
    exchange.answer(304, line(b"etag", etag(info.write_id)) + HIT + freshness_lines(info, time.time()))
    return 304


def _entry_lines(info: EntryInfo) -> bytes:
    tag = b'etag: "%016x"\r\n' % info.write_id
    if info.metadata or info.parts or info.expires_at:
        return tag + _lines(info, time.time())
    # What is left to tell is the same for all values that came within a second.
    return tag + _plain_lines(info.content_type, int(info.stored_at))


@lru_cache(maxsize=4096)
def _plain_lines(content_type: str, stored_at: int) -> bytes:
    return _lines(EntryInfo("", b"", 0, 0, stored_at, 0, content_type, (), ()), stored_at)


def _lines(info: EntryInfo, now: float) -> bytes:
    """All header fields of an entry but its tag, which is never the same."""
    return b"%b%b%b%b" % (metadata_lines(info), parts_lines(info.parts), freshness_lines(info, now), _LASTING)
