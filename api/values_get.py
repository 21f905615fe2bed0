"""``GET`` and ``HEAD`` of a value."""

from __future__ import annotations

import asyncio
import time

from starlette.types import Receive

from api.answers import send_body, send_head, send_whole
from api.conditions import Verdict, evaluate_read
from api.engine_face import EntryReader
from api.freshness import freshness_headers
from api.headers import HIT, NO_SCRIPTS, RawHeaders, etag
from api.limits import SEND_MAX_BYTES
from api.metadata import metadata_headers
from api.parameters import read_lease, read_parameters
from api.parts import PART_FIELD, find_part, parts_headers
from api.ranges import content_range, select_range
from api.value_request import ClientGone, ValueRequest
from api.value_windows import copy_window, window_stop
from storage.entries import EntryInfo
from storage.errors import PreconditionFailed

_PARAMETERS = frozenset({"lease", "part"})


async def answer_head(request: ValueRequest) -> int:
    """Answer as ``GET`` would, without the body. A HEAD takes no range (RFC 9110, 14.2)."""
    parameters = read_parameters(request.query, _PARAMETERS)
    info = await request.engine.head(request.namespace, request.key, lease_id=read_lease(parameters))
    first, last, named = _chosen(info, parameters.get("part"))
    if _is_not_modified(request, info):
        return await _send_not_modified(request, info)
    headers = [*_entry_headers(info), *named]
    headers.append((b"content-length", b"%d" % (last - first)))
    request.answered = True
    await send_whole(request.send, 200, headers)
    return 200


async def answer_get(request: ValueRequest) -> int:
    """Answer 200, 206 or 304, and return which.

    Every byte is verified before it's sent; the head goes out only after the first piece is. Raises the engine's
    errors, ``PreconditionFailed``, ``RangeUnsatisfiable`` and ``ClientGone``; with ``request.answered`` set, the
    answer has begun and must be cut short.
    """
    parameters = read_parameters(request.query, _PARAMETERS)
    part = parameters.get("part")
    reader = await request.engine.open_read(
        request.namespace, request.key, lease_id=read_lease(parameters), sparse=part is not None
    )
    try:
        info = reader.info
        first, last, named = _chosen(info, part)
        if _is_not_modified(request, info):
            reader.close()
            return await _send_not_modified(request, info)
        headers = [*_entry_headers(info), *named]
        size_bytes = last - first
        chosen = select_range(request.fields, info, size_bytes)
        start, stop = chosen or (0, size_bytes)
        headers.append((b"content-length", b"%d" % (stop - start)))
        if chosen is not None:
            headers.append((b"content-range", content_range(start, stop, size_bytes)))
        status = 200 if chosen is None else 206
        await _send_payload(request, reader, status, headers, first + start, first + stop)
        return status
    finally:
        reader.close()


async def _send_payload(
    request: ValueRequest, reader: EntryReader, status: int, headers: RawHeaders, start: int, stop: int
) -> None:
    at = window_stop(start, stop)
    data = await copy_window(reader, start, at)
    if at == stop:
        # All of it: nothing of the engine's is held any more while the client takes its time.
        reader.close()
        request.answered = True
        await send_whole(request.send, status, headers, data)
        return
    departure = asyncio.ensure_future(_departure(request.receive))
    try:
        request.answered = True
        await send_head(request.send, status, headers)
        await _send_slices(request, departure, data, more=True)
        while at < stop:
            start, at = at, window_stop(at, stop)
            data = await copy_window(reader, start, at)
            await _send_slices(request, departure, data, more=at < stop)
    finally:
        departure.cancel()


async def _send_slices(request: ValueRequest, departure: asyncio.Future[None], data: bytes, *, more: bool) -> None:
    """Send a piece in messages that a client must take one per send timeout, or be cut off. Raises ``ClientGone``."""
    for at in range(0, len(data), SEND_MAX_BYTES):
        # A connection that is gone takes everything at once: without a pause here, its end would never be heard of.
        await asyncio.sleep(0)
        if departure.done():
            raise ClientGone()
        part = data[at : at + SEND_MAX_BYTES]
        try:
            async with asyncio.timeout(request.settings.send_timeout_seconds):
                await send_body(request.send, part, more=more or at + len(part) < len(data))
        except TimeoutError:
            raise ClientGone() from None


async def _departure(receive: Receive) -> None:
    """Return when the client has left: servers swallow what is sent afterwards without a word."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _chosen(info: EntryInfo, part: str | None) -> tuple[int, int, RawHeaders]:
    """First byte and the byte after the last of what is read, and what names it. Raises PartNotFound."""
    if part is None:
        return 0, info.payload_bytes, []
    return *find_part(info, part), [(PART_FIELD, part.encode())]


def _is_not_modified(request: ValueRequest, info: EntryInfo) -> bool:
    verdict = evaluate_read(request.fields, info)
    if verdict is Verdict.FAILED:
        raise PreconditionFailed(present_write_id=info.write_id)
    return verdict is Verdict.NOT_MODIFIED


async def _send_not_modified(request: ValueRequest, info: EntryInfo) -> int:
    headers = [(b"etag", etag(info.write_id)), HIT, *freshness_headers(info, time.time())]
    request.answered = True
    await send_whole(request.send, 304, headers)
    return 304


def _entry_headers(info: EntryInfo) -> RawHeaders:
    return [
        (b"etag", etag(info.write_id)),
        *metadata_headers(info),
        *parts_headers(info.parts),
        *freshness_headers(info, time.time()),
        (b"accept-ranges", b"bytes"),
        HIT,
        *NO_SCRIPTS,
    ]
