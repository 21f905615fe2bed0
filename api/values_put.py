"""``PUT`` of a value."""

from __future__ import annotations

import asyncio

from api.answers import send_whole
from api.conditions import read_conditions
from api.defaults import durability_of, expiry_of
from api.digests import DigestCheck, read_digests
from api.engine_face import ValuePut
from api.freshness import read_ttl
from api.headers import declared_length, etag
from api.limits import TRICKLE_BYTES
from api.metadata import read_content_type, read_metadata
from api.parameters import read_durability, read_parameters
from api.parts import read_parts
from api.value_request import BodyTimeout, ClientGone, ValueRequest
from storage.entries import Durability, PutResult
from storage.errors import ContentRangeUnsupported, LengthMismatch, ParameterInvalid

_PARAMETERS = frozenset({"ttl", "durability"})

_LEVELS = {level: level.value.encode() for level in Durability}


async def answer_put(request: ValueRequest, sha256: bytes | None = None) -> int:
    """Answer 201 (new) or 204 (replaced), and return which. The body must have the digest ``sha256``, if it is given.

    All that can be refused is refused before the first byte of the body is asked for, so that a client that waits for
    100 Continue never sends it in vain. Raises the engine's errors, those of the header fields, ``BodyTimeout`` and
    ``ClientGone``; then nothing of the put is left.
    """
    fields = request.fields
    length = declared_length(fields)
    _refuse_unsupported(fields)
    parameters = read_parameters(request.query, _PARAMETERS)
    durability = durability_of(request, read_durability(parameters))
    expires_at = expiry_of(request, read_ttl(parameters, fields))
    conditions = read_conditions(fields)
    check = read_digests(fields)
    if sha256 is not None:
        check = DigestCheck({}) if check is None else check
        check.demand("sha256", sha256)
    content_type = read_content_type(fields)
    metadata = read_metadata(fields, content_type)
    parts = read_parts(fields)
    put = await request.engine.begin_put(
        request.namespace,
        request.key,
        length,
        content_type=content_type,
        metadata=metadata,
        expires_at=expires_at,
        parts=parts,
        durability=durability,
        conditions=conditions,
    )
    result: PutResult | None = None
    try:
        await _take_body(request, put, length, check)
        if check is not None:
            check.verify()
        result = await put.commit()
    finally:
        # Also when the task is cancelled: the slot and the buffer must not stay behind.
        if result is None:
            put.abort()
    status = 201 if result.created else 204
    headers = [(b"etag", etag(result.write_id)), (b"rawblockd-durability", _LEVELS[result.durability])]
    if status == 201:
        headers.append((b"content-length", b"0"))
    request.answered = True
    await send_whole(request.send, status, headers)
    return status


async def _take_body(request: ValueRequest, put: ValuePut, length: int, check: DigestCheck | None) -> None:
    """Hand the body on as it comes, all ``length`` bytes of it, as long as the client keeps up its pace.

    A client that pauses holds a slot and a buffer: it has the body timeout for each ``TRICKLE_BYTES`` of its body.
    """
    loop = asyncio.get_running_loop()
    timeout_seconds = request.settings.body_timeout_seconds
    deadline = loop.time() + timeout_seconds
    fresh_bytes = 0
    left_bytes = length
    while left_bytes:
        try:
            async with asyncio.timeout_at(deadline):
                message = await request.receive()
        except TimeoutError:
            raise BodyTimeout() from None
        if message["type"] != "http.request":
            raise ClientGone()
        data = message.get("body", b"")
        left_bytes -= len(data)
        if left_bytes < 0 or (left_bytes and not message.get("more_body", False)):
            raise LengthMismatch(f"{length} bytes were declared")
        if check is not None:
            check.update(data)
        began = loop.time()
        await put.write(data)
        now = loop.time()
        fresh_bytes += len(data)
        if fresh_bytes >= TRICKLE_BYTES:
            fresh_bytes = 0
            deadline = now + timeout_seconds
        else:
            deadline += now - began  # the device's time is not the client's
    request.body_unread = False


def _refuse_unsupported(fields: dict[bytes, bytes]) -> None:
    if b"content-range" in fields:
        raise ContentRangeUnsupported()
    if fields.get(b"content-encoding", b"identity").lower() != b"identity":
        # The coding isn't kept, so a later read would hand out coded bytes as if they were plain.
        raise ParameterInvalid("a value is kept without its Content-Encoding", parameter="Content-Encoding")
