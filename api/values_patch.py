"""``PATCH`` of a value: its time to live alone, or what is kept with it; never its bytes."""

from __future__ import annotations

from api.conditions import read_conditions
from api.defaults import durability_of, expiry_of
from api.freshness import read_ttl
from api.headers import etag, line
from api.metadata import META_PREFIX, read_content_type, read_metadata
from api.parameters import read_durability, read_parameters
from api.value_request import ValueRequest
from storage.errors import ParameterInvalid

_PARAMETERS = frozenset({"ttl", "meta", "durability"})
NO_META = "none"


async def answer_patch(request: ValueRequest) -> int:
    """Answer 204 with the entry's ETag: a new one if metadata changed, since the record was then written anew.

    Raises the engine's errors (EntryNotFound, PreconditionFailed, what a put raises), ParameterInvalid and
    MetadataInvalid.
    """
    fields = request.fields
    if request.exchange.body_unread:
        raise ParameterInvalid("a PATCH changes what is kept with a value, and has no body", parameter="Content-Length")
    parameters = read_parameters(request.query, _PARAMETERS)
    durability = durability_of(request, read_durability(parameters))
    conditions = read_conditions(fields)
    ttl_seconds = read_ttl(parameters, {})
    expires_at = None if ttl_seconds is None else expiry_of(request, ttl_seconds)
    content_type = read_content_type(fields) if b"content-type" in fields else None
    metadata = _new_metadata(parameters, fields, content_type or "")
    if content_type is None and metadata is None:
        if expires_at is None:
            raise ParameterInvalid("nothing is to be changed: neither ttl, nor type, nor metadata", parameter="")
        sketch = await request.engine.touch(
            request.namespace, request.key, expires_at=expires_at, conditions=conditions, durability=durability
        )
        write_id = sketch.write_id
    else:
        result = await request.engine.update(
            request.namespace,
            request.key,
            content_type=content_type,
            metadata=metadata,
            expires_at=expires_at,
            conditions=conditions,
            durability=durability,
        )
        write_id = result.write_id
    request.exchange.answer(204, line(b"etag", etag(write_id)))
    return 204


def _new_metadata(
    parameters: dict[str, str], fields: dict[bytes, bytes], content_type: str
) -> tuple[tuple[str, str], ...] | None:
    """What replaces all client metadata, None if it stays."""
    given = any(name.startswith(META_PREFIX) for name in fields)
    text = parameters.get("meta")
    if text is None:
        return read_metadata(fields, content_type) if given else None
    if text != NO_META or given:
        raise ParameterInvalid("meta is none, without Rawblockd-Meta- fields: it removes them all", parameter="meta")
    return ()
