"""The value routes in the OpenAPI document, declared by hand since no framework route stands behind them."""

from __future__ import annotations

from typing import Any

from api.freshness import NEVER
from api.limits import TTL_MAX_SECONDS
from api.openapi_parts import Object, answer, durability, etag, header, lease, namespace, parameter, problems
from api.problem_schema import problem_answer
from api.value_paths import TEMPLATE
from api.values_patch import NO_META
from storage.entries import Durability
from storage.format.parts import PART_NAME_MAX_CHARS
from storage.limits import KEY_MAX_BYTES

_TAG = r'(W/)?"[!#-~]*"'
_TAGS: dict[str, Any] = {
    "anyOf": [{"const": "*"}, {"type": "string", "pattern": rf"^{_TAG}(, {_TAG}){{0,15}}$"}],
}

_MORE_PUT_HEADERS = {
    "Content-Digest": "Digests of the body (RFC 9530): sha-256 and sha-512 are verified, others are ignored.",
    "Content-Type": "Kept, and sent with the value.",
    "Rawblockd-Meta-*": "Client metadata: kept, and sent with the value.",
    "Rawblockd-Parts": "Names, dtypes and shapes of the parts that the body consists of, in the order of their bytes: "
    "`w=float32[8], m=float32[8]`. Kept; what it must be is the namespace's schema.",
    "Expect": "`100-continue`: the body is asked for only if nothing refuses the put before.",
}
"""Fields that no parameter can declare: names with a wildcard, and values that depend on the body."""


def value_paths() -> Object:
    """The ``paths`` of the document."""
    return {
        TEMPLATE: {
            "parameters": [namespace(), _key()],
            "get": _get(),
            "head": _head(),
            "put": _put(),
            "patch": _patch(),
            "delete": _delete(),
        }
    }


def _key() -> Object:
    return parameter(
        "key",
        "path",
        f"The key: the whole rest of the path, percent-decoded once; 1 to {KEY_MAX_BYTES} bytes, any byte. "
        "A slash may stand for itself or be escaped; nothing is normalised.",
        {"type": "string", "minLength": 1, "maxLength": KEY_MAX_BYTES},
    )


def _get() -> Object:
    return {
        "operationId": "get_value",
        "tags": ["values"],
        "summary": "Read a value",
        "description": "Exactly the bytes of one put of this namespace and key. An entry found corrupt is a miss, and "
        "`Cache-Status` says so. If the device fails while the body is on its way, the connection ends before the "
        "body is complete.",
        "parameters": [
            lease(),
            _part(),
            *_read_conditions(),
            parameter("Range", "header", "One range of bytes; several, or an unknown unit: the whole value."),
            parameter("If-Range", "header", "ETag for which Range holds; with another entry the whole value is sent."),
        ],
        "responses": {
            "200": answer("The value.", _entry_headers(), body=True),
            "206": answer("The range.", {**_entry_headers(), "Content-Range": header("The range sent.")}, body=True),
            "304": answer("The client's copy is the present one.", _validators()),
            **problems(400, 404, 412, 416, 503),
        },
    }


def _head() -> Object:
    without_body = {str(status): {"description": problem_answer(status)["description"]} for status in (400, 404, 412)}
    return {
        "operationId": "head_value",
        "tags": ["values"],
        "summary": "Ask for a value's header fields",
        "description": "As GET, without the body; Range is ignored.",
        "parameters": [lease(), _part(), *_read_conditions()],
        "responses": {
            "200": answer("The entry is there.", _entry_headers()),
            "304": answer("The client's copy is the present one.", _validators()),
            **without_body,
            **problems(503),
        },
    }


def _put() -> Object:
    return {
        "operationId": "put_value",
        "tags": ["values"],
        "summary": "Store a value",
        "description": "Stores the body whole; a reader or a crash sees the old value or the new one. Content-Length "
        "is required. What can be refused is refused before the body is read, also with `Expect: 100-continue`. "
        "`Content-Type` and up to 64 `Rawblockd-Meta-*` fields are kept, 8 KiB together. Content-Range, "
        "Content-Encoding and If-Unmodified-Since are refused.",
        "parameters": [
            _ttl("Seconds to live, or `none`; decides before Cache-Control. Without either, the namespace's default."),
            durability(),
            parameter(
                "Cache-Control",
                "header",
                "`max-age` is the time to live in seconds, if there is no ttl parameter.",
            ),
            _if_match(),
            parameter(
                "If-None-Match",
                "header",
                "`*`: only if there is no entry yet.",
                {"type": "string", "enum": ["*"]},
            ),
        ],
        "x-more-headers": _MORE_PUT_HEADERS,
        "requestBody": {
            "description": "The value, of any content type; without a body (`Content-Length: 0`), the empty value.",
            "required": False,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        "responses": {
            "201": answer("Stored; there was no entry.", _stored_headers()),
            "204": answer("Stored in place of an entry.", _stored_headers()),
            **problems(400, 408, 411, 412, 413, 422, 503, 507),
        },
    }


def _patch() -> Object:
    return {
        "operationId": "patch_value",
        "tags": ["values"],
        "summary": "Change what is kept with a value",
        "description": "`ttl` alone changes when the entry expires: it stays the same entry. With `Content-Type` or "
        "`Rawblockd-Meta-*` fields (which replace all metadata; `meta=none` removes it) the record is copied inside "
        "the daemon: a new entry with the same bytes. There is no body.",
        "parameters": [
            _ttl("Seconds to live from now on, or `none`."),
            parameter("meta", "query", "`none` removes the client metadata.", {"type": "string", "enum": [NO_META]}),
            durability(),
            _if_match(),
        ],
        "x-more-headers": {
            "Content-Type": "Replaces the type that is kept.",
            "Rawblockd-Meta-*": "Replace all client metadata.",
        },
        "responses": {
            "204": answer("Changed.", {"ETag": etag()}),
            **problems(400, 404, 412, 503, 507),
        },
    }


def _ttl(description: str) -> Object:
    seconds = {"type": "integer", "minimum": 1, "maximum": TTL_MAX_SECONDS}
    return parameter("ttl", "query", description, {"anyOf": [seconds, {"const": NEVER}]})


def _delete() -> Object:
    return {
        "operationId": "delete_value",
        "tags": ["values"],
        "summary": "Delete a value",
        "description": "Acknowledged at its durability level, as a put is.",
        "parameters": [durability(), _if_match()],
        "responses": {"204": {"description": "Deleted."}, **problems(400, 404, 412, 503)},
    }


def _read_conditions() -> list[Object]:
    return [
        _if_match(),
        parameter("If-None-Match", "header", "304 if the entry is one of these.", _TAGS),
        parameter("If-Modified-Since", "header", "304 if the entry is not newer; without If-None-Match only."),
        parameter("If-Unmodified-Since", "header", "412 if the entry is newer; without If-Match only."),
    ]


def _part() -> Object:
    return parameter(
        "part",
        "query",
        "Only this part of the value, as if it were a value of its own; only its blocks are read.",
        {"type": "string", "pattern": f"^[A-Za-z0-9._-]{{1,{PART_NAME_MAX_CHARS}}}$"},
    )


def _if_match() -> Object:
    return parameter(
        "If-Match",
        "header",
        "412 unless the entry is one of these.",
        _TAGS,
        example="*",
    )


def _stored_headers() -> Object:
    levels = {"type": "string", "enum": [level.value for level in Durability]}
    return {"ETag": etag(), "Rawblockd-Durability": header("The level that was reached.", levels)}


def _validators() -> Object:
    return {
        "ETag": etag(),
        "Last-Modified": header("When the value was stored."),
        "Cache-Status": header("`rawblockd; hit`."),
        "Age": header("Seconds since then, if the entry expires.", {"type": "integer", "minimum": 0}, required=False),
        "Cache-Control": header("`max-age`: the whole time to live, if the entry expires.", required=False),
    }


def _entry_headers() -> Object:
    return {
        **_validators(),
        "Accept-Ranges": header("`bytes`."),
        "Rawblockd-Parts": header("The parts that the whole value consists of, if it has any.", required=False),
        "Rawblockd-Part": header("The part that is sent, if one was asked for.", required=False),
    }
