"""``PUT`` of a value."""

from __future__ import annotations

from typing import Any, NamedTuple

from api.conditions import read_conditions
from api.defaults import durability_of, expiry_of
from api.digests import DigestCheck, read_digests
from api.engine_face import ValuePut
from api.errors import ContentRangeUnsupported
from api.exchange import BodyTarget, Exchange
from api.freshness import read_ttl
from api.headers import declared_length
from api.metadata import read_content_type, read_metadata
from api.parameters import read_durability, read_parameters
from api.parts import read_parts
from api.value_request import ValueRequest
from storage.entries import Durability, PutResult
from storage.errors import ParameterInvalid

_PARAMETERS = frozenset({"ttl", "durability"})

_LEVELS = {level: b"rawblockd-durability: %b\r\n" % level.value.encode() for level in Durability}


async def answer_put(request: ValueRequest, sha256: bytes | None = None) -> int:
    """Answer 201 (new) or 204 (replaced), and return which. The body must have the digest ``sha256``, if it is given.

    All that can be refused is refused before the first byte of the body is asked for, so that a client that waits for
    100 Continue never sends it in vain. Raises the engine's errors, those of the header fields, ``BodyTimeout`` and
    ``ClientGone``; then nothing of the put is left.
    """
    head = read_put(request, sha256)
    put = await request.engine.begin_put(request.namespace, request.key, head.payload_bytes, **head.options)
    return await finish_put(request.exchange, put, head.check)


class PutHead(NamedTuple):
    """What the head of a put says."""

    payload_bytes: int
    options: dict[str, Any]
    """What the engine is told besides."""
    check: DigestCheck | None


def read_put(request: ValueRequest, sha256: bytes | None = None) -> PutHead:
    """Raises what the header fields or the query can be refused with."""
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
    options = {
        "content_type": content_type,
        "metadata": metadata,
        "expires_at": expires_at,
        "parts": read_parts(fields),
        "durability": durability,
        "conditions": conditions,
    }
    return PutHead(length, options, check)


async def finish_put(exchange: Exchange, put: ValuePut, check: DigestCheck | None) -> int:
    """Receive what is missing of the body, commit and answer."""
    result: PutResult | None = None
    try:
        await exchange.receive_into(target_of(put, check))
        if check is not None:
            check.verify()
        result = await put.commit()
    finally:
        # Also when the task is cancelled: the slot and the buffer must not stay behind.
        if result is None:
            put.abort()
    return answer_stored(exchange, result)


def answer_stored(exchange: Exchange, result: PutResult) -> int:
    status = 201 if result.created else 204
    exchange.answer(status, b'etag: "%016x"\r\n%b' % (result.write_id, _LEVELS[result.durability]))
    return status


def target_of(put: ValuePut, check: DigestCheck | None) -> BodyTarget:
    """Where the body goes."""
    return put if check is None else _Checked(put, check)


class _Checked:
    """A put whose body must have certain digests besides."""

    def __init__(self, put: ValuePut, check: DigestCheck) -> None:
        self.room = put.room
        self.make_room = put.make_room
        self._put = put
        self._check = check

    def filled(self, count: int) -> None:
        self._check.update(self._put.room()[:count])
        self._put.filled(count)


def _refuse_unsupported(fields: dict[bytes, bytes]) -> None:
    if b"content-range" in fields:
        raise ContentRangeUnsupported()
    if fields.get(b"content-encoding", b"identity").lower() != b"identity":
        # The coding isn't kept, so a later read would hand out coded bytes as if they were plain.
        raise ParameterInvalid("a value is kept without its Content-Encoding", parameter="Content-Encoding")
