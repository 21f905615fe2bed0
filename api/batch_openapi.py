"""The routes of a whole namespace in the OpenAPI document: batch calls and the listing, declared by hand.

The schemas are those of the JSON form. What msgpack has instead is in the descriptions: a stream of objects is nothing
that a schema could say.
"""

from __future__ import annotations

from typing import Any

from api.freshness import NEVER
from api.limits import BATCH_ENTRIES_MAX, ETAGS_MAX, LEASE_ID_MAX_CHARS, LISTING_DEFAULT, LISTING_MAX, TTL_MAX_SECONDS
from api.openapi_parts import Object, lease, namespace, parameter, problems
from api.value_paths import NAMESPACE_TEMPLATE, VERB_TEMPLATE
from storage.entries import Durability
from storage.format.parts import PARTS_MAX
from storage.limits import HOLDER_MAX_CHARS, KEY_MAX_BYTES, LEASE_MAX_SECONDS

_BASE64: Object = {
    "type": "string",
    "contentEncoding": "base64",
    "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
_KEY: Object = {
    "description": "A key: text, taken as UTF-8, or its bytes in base64.",
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {"base64": _BASE64},
            "required": ["base64"],
            "additionalProperties": False,
        },
    ],
}
_PARTS_KEPT: Object = {
    "type": "array",
    "description": "Name, dtype and shape of each part of the value, in the order of their bytes.",
    "items": {"type": "array", "items": {"type": ["string", "array"]}, "minItems": 3, "maxItems": 3},
}
"""In an answer. Tools check answers by an older dialect, which has no word for what stands where in an array."""
_PARTS: Object = {
    "type": "array",
    "description": "Name, dtype and shape of each part of the value, in the order of their bytes; the entry's result "
    "says what is wrong with them.",
    "items": {
        "type": "array",
        "prefixItems": [
            {"type": "string"},
            {"type": "string"},
            {"type": "array"},
        ],
        "minItems": 3,
        "maxItems": 3,
    },
}
_PART_NAMES: Object = {
    "type": "array",
    "items": {"type": "string"},
    "minItems": 1,
    "maxItems": PARTS_MAX,
    "uniqueItems": True,
    "description": "Only these parts of each value, in this order.",
}
_LEVEL: Object = {"type": "string", "enum": [level.value for level in Durability]}
_TTL: Object = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": TTL_MAX_SECONDS}, {"const": NEVER}]}
_LEASE_ID: Object = {"type": "string", "minLength": 1, "maxLength": LEASE_ID_MAX_CHARS}
_LEASE_SECONDS: Object = {"type": "integer", "minimum": 1, "maximum": int(LEASE_MAX_SECONDS)}
_ETAG: Object = {"type": "string", "pattern": '^"[0-9a-f]{16}"$'}
_COUNT: Object = {"type": "integer", "minimum": 0}
_SECONDS: Object = {"type": "number", "minimum": 0}
_BITMAP: Object = {"type": "string", "pattern": "^[01]*$", "description": "A digit for each key; in msgpack bytes."}
_INVALID: Object = {"type": "array", "items": _COUNT, "description": "Places of keys that are none."}

_FORMS = (
    "In msgpack (`application/msgpack`) or JSON; the answer is in the form that Accept names first, else in that of "
    "the request. Each key has its own result: one that fails does not fail the others."
)


def batch_paths() -> Object:
    """The ``paths`` of the document."""
    verbs = {"mget": _mget(), "mput": _mput(), "mdelete": _mdelete(), "exists": _exists(), "lease": _lease()}
    return {
        NAMESPACE_TEMPLATE: {"parameters": [namespace()], "get": _listing()},
        **{VERB_TEMPLATE % verb: {"parameters": [namespace()], "post": post} for verb, post in verbs.items()},
    }


def _mget() -> Object:
    request = _keys({"stop_at_first_miss": {"type": "boolean"}, "parts": _PART_NAMES})
    return _verb(
        "mget",
        "Read many values",
        "The values in the order of the keys, each verified before it is sent. In msgpack a result is a map, followed, "
        "if its status is 200, by one or more binary objects that are the value together; a map instead of the next "
        "one says that the rest can't be read. The last object is a map with `end`. JSON has up to 4 MiB of values.",
        request,
        _results(
            _result({"size": _COUNT, "stored_at": _SECONDS, "expires_at": {"type": ["integer", "null"]}}
                    | {"content_type": {"type": "string"}, "meta": _texts(), "value": _BASE64, "parts": _PARTS_KEPT}),
            {"hits": _COUNT, "leading_hits": _COUNT},
        ),
        parameters=[lease()],
        errors=(404,),
    )  # fmt: skip


def _mput() -> Object:
    entry = _object(
        {
            "key": _KEY,
            "value": _BASE64,
            "ttl": _TTL,
            "content_type": {"type": "string"},
            "meta": _texts(),
            "if_none_match": {"type": "boolean", "description": "Only if there is no entry yet."},
            "if_match": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "maxItems": ETAGS_MAX,
                "description": "Only in place of one of these entries, of any with `*`.",
            },
            "digest": {
                "type": "string",
                "pattern": "^sha-256=:[A-Za-z0-9+/]{43}=:$",
                "description": "As Content-Digest of a put (RFC 9530).",
            },
            "parts": _PARTS,
        },
        required=("key", "value"),
    )
    request = _object(
        {"entries": _list(entry), "ttl": _TTL, "durability": _LEVEL},
        required=("entries",),
    )
    return _verb(
        "mput",
        "Store many values",
        "Nothing is published before the whole body has arrived; then all is, by one commit. Of entries of one key the "
        "last decides. In msgpack the body is a map of options, then for each entry a map and its value as a binary "
        "object; the options may have `entries`, their number.",
        request,
        _results(_result({"durability": _LEVEL, "present_etag": _ETAG}), {"stored": _COUNT}),
    )


def _mdelete() -> Object:
    return _verb(
        "mdelete",
        "Delete many values",
        "By one commit. Of a key that stands twice the second is a miss.",
        _keys({"durability": _LEVEL}),
        _results(_result({}), {"deleted": _COUNT}),
    )


def _exists() -> Object:
    answer = _object(
        {
            "count": _COUNT,
            "leading_hits": {**_COUNT, "description": "How many keys from the first on are there."},
            "bitmap": _BITMAP,
            "invalid": _INVALID,
            "sizes": {"type": "array", "items": {"type": ["integer", "null"]}},
            "lease": _LEASE_ID,
            "expires_in_seconds": _SECONDS,
        },
        required=("count", "leading_hits", "bitmap"),
    )
    seconds = parameter("lease", "query", "Hold those that are there for so many seconds.", _LEASE_SECONDS)
    return _verb(
        "exists",
        "Ask which values are there",
        "Without reading them.",
        _keys({"sizes": {"type": "boolean"}}),
        answer,
        parameters=[seconds],
        errors=(507,),
    )


def _lease() -> Object:
    answer = _object(
        {
            "lease": _LEASE_ID,
            "expires_in_seconds": _SECONDS,
            "entries": _COUNT,
            "held_bytes": _COUNT,
            "count": _COUNT,
            "leading_hits": _COUNT,
            "bitmap": _BITMAP,
            "invalid": _INVALID,
        },
        required=("lease", "expires_in_seconds", "entries", "held_bytes", "count", "leading_hits", "bitmap"),
    )
    fields = {
        "ttl_seconds": _LEASE_SECONDS,
        "owner": {"type": "string", "maxLength": HOLDER_MAX_CHARS, "pattern": "^[ -~]*$"},
        "lease": {**_LEASE_ID, "description": "A lease to extend, by these keys and in time."},
    }
    return _verb(
        "lease",
        "Hold values",
        "Those that are there stay readable to whoever names the lease, whatever becomes of their keys, until it is "
        "released or its time is over.",
        _keys(fields, required=("keys", "ttl_seconds")),
        answer,
        errors=(404, 507),
    )


def _listing() -> Object:
    entry = _object(
        {
            "key": {"type": "string"},
            "key_base64": {**_BASE64, "description": "Instead of `key`, if the key is not UTF-8."},
            "etag": _ETAG,
            "size": _COUNT,
            "stored_at": _SECONDS,
            "expires_at": {"type": ["integer", "null"]},
            "content_type": {"type": "string"},
        },
        required=("etag", "size", "stored_at", "expires_at", "content_type"),
    )
    page = _object(
        {"entries": {"type": "array", "items": entry}, "cursor": {"type": ["string", "null"]}},
        required=("entries", "cursor"),
    )
    limit = {"type": "integer", "minimum": 1, "maximum": LISTING_MAX, "default": LISTING_DEFAULT}
    return {
        "operationId": "list_values",
        "tags": ["values"],
        "summary": "List a namespace",
        "description": "In an order that overwrites and growth do not disturb: complete for entries that are there "
        "throughout. A page may be empty and yet have a cursor; the end has none. In JSON, or in msgpack by Accept.",
        "parameters": [
            parameter(
                "prefix", "query", f"What keys begin with, percent-decoded once, up to {KEY_MAX_BYTES} bytes.",
            ),
            parameter("cursor", "query", "The `cursor` of the page before.", {"type": "string"}),
            parameter("limit", "query", "Most entries of the page.", limit),
        ],
        "responses": {
            "200": {"description": "One page.", "content": _content(page)},
            **problems(400, 404, 503),
        },
    }  # fmt: skip


def _verb(
    name: str,
    summary: str,
    description: str,
    request: Object,
    answer: Object,
    *,
    parameters: list[Object] | None = None,
    errors: tuple[int, ...] = (),
) -> Object:
    return {
        "operationId": name,
        "tags": ["batch"],
        "summary": summary,
        "description": f"{description} {_FORMS}",
        "parameters": parameters or [],
        "requestBody": {"required": True, "content": _content(request)},
        "responses": {
            "200": {"description": "The results.", "content": _content(answer)},
            **problems(*sorted({400, 408, 413, 415, 503, *errors})),
        },
    }


def _content(schema: Object) -> Object:
    return {
        "application/json": {"schema": schema},
        "application/msgpack": {"schema": {"type": "string", "format": "binary"}},
    }


def _keys(fields: Object, required: tuple[str, ...] = ("keys",)) -> Object:
    return _object({"keys": _list(_KEY), **fields}, required=required)


def _list(items: Object) -> Object:
    # No maxItems: beyond the limit the answer is 413, not 400.
    return {"type": "array", "items": items, "description": f"Up to {BATCH_ENTRIES_MAX}."}


def _texts() -> Object:
    return {"type": "object", "additionalProperties": {"type": "string"}}


def _result(fields: Object) -> Object:
    return _object(
        {
            "status": {"type": "integer", "minimum": 200, "maximum": 599},
            "etag": _ETAG,
            "reason": {"type": "string", "description": "The code of what happened instead."},
            "detail": {"type": "string"},
            **fields,
        },
        required=("status",),
    )


def _results(result: Object, end: dict[str, Any]) -> Object:
    return _object({"results": {"type": "array", "items": result}, **end}, required=("results", *end))


def _object(properties: Object, *, required: tuple[str, ...]) -> Object:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
