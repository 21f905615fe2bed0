"""The value routes in the OpenAPI document, declared by hand since no framework route stands behind them."""

from __future__ import annotations

from typing import Any

from api.limits import TTL_MAX_SECONDS
from api.problem_schema import problem_answer
from api.value_paths import TEMPLATE
from storage.entries import Durability
from storage.limits import KEY_MAX_BYTES, NAMESPACE_MAX_CHARS

_TAG = r'(W/)?"[!#-~]*"'
_TAGS: dict[str, Any] = {
    "anyOf": [{"const": "*"}, {"type": "string", "pattern": rf"^{_TAG}(, {_TAG}){{0,15}}$"}],
}

_MORE_PUT_HEADERS = {
    "Content-Digest": "Digests of the body (RFC 9530): sha-256 and sha-512 are verified, others are ignored.",
    "Content-Type": "Kept, and sent with the value.",
    "Rawblockd-Meta-*": "Client metadata: kept, and sent with the value.",
    "Expect": "`100-continue`: the body is asked for only if nothing refuses the put before.",
}
"""Fields that no parameter can declare: names with a wildcard, and values that depend on the body."""

_Object = dict[str, Any]


def value_paths() -> _Object:
    """The ``paths`` of the document."""
    return {
        TEMPLATE: {
            "parameters": [_namespace(), _key()],
            "get": _get(),
            "head": _head(),
            "put": _put(),
            "delete": _delete(),
        }
    }


def _namespace() -> _Object:
    return _parameter(
        "namespace",
        "path",
        "The namespace (tenant).",
        {"type": "string", "pattern": f"^[A-Za-z0-9._-]{{1,{NAMESPACE_MAX_CHARS}}}$"},
    )


def _key() -> _Object:
    return _parameter(
        "key",
        "path",
        f"The key: the whole rest of the path, percent-decoded once; 1 to {KEY_MAX_BYTES} bytes, any byte. "
        "A slash may stand for itself or be escaped; nothing is normalised.",
        {"type": "string", "minLength": 1, "maxLength": KEY_MAX_BYTES},
    )


def _get() -> _Object:
    return {
        "operationId": "get_value",
        "tags": ["values"],
        "summary": "Read a value",
        "description": "Exactly the bytes of one put of this namespace and key. An entry found corrupt is a miss, and "
        "`Cache-Status` says so. If the device fails while the body is on its way, the connection ends before the "
        "body is complete.",
        "parameters": [
            *_read_conditions(),
            _parameter("Range", "header", "One range of bytes; several, or an unknown unit: the whole value."),
            _parameter("If-Range", "header", "ETag for which Range holds; with another entry the whole value is sent."),
        ],
        "responses": {
            "200": _answer("The value.", _entry_headers(), body=True),
            "206": _answer("The range.", {**_entry_headers(), "Content-Range": _header("The range sent.")}, body=True),
            "304": _answer("The client's copy is the present one.", _validators()),
            **_problems(400, 404, 412, 416, 503),
        },
    }


def _head() -> _Object:
    without_body = {str(status): {"description": problem_answer(status)["description"]} for status in (400, 404, 412)}
    return {
        "operationId": "head_value",
        "tags": ["values"],
        "summary": "Ask for a value's header fields",
        "description": "As GET, without the body; Range is ignored.",
        "parameters": _read_conditions(),
        "responses": {
            "200": _answer("The entry is there.", _entry_headers()),
            "304": _answer("The client's copy is the present one.", _validators()),
            **without_body,
            **_problems(503),
        },
    }


def _put() -> _Object:
    return {
        "operationId": "put_value",
        "tags": ["values"],
        "summary": "Store a value",
        "description": "Stores the body whole; a reader or a crash sees the old value or the new one. Content-Length "
        "is required. What can be refused is refused before the body is read, also with `Expect: 100-continue`. "
        "`Content-Type` and up to 64 `Rawblockd-Meta-*` fields are kept, 8 KiB together. Content-Range, "
        "Content-Encoding and If-Unmodified-Since are refused.",
        "parameters": [
            _parameter(
                "ttl",
                "query",
                "Seconds to live; decides before Cache-Control.",
                {"type": "integer", "minimum": 1, "maximum": TTL_MAX_SECONDS},
            ),
            _durability(),
            _parameter(
                "Cache-Control",
                "header",
                "`max-age` is the time to live in seconds, if there is no ttl parameter.",
            ),
            _if_match(),
            _parameter(
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
            "201": _answer("Stored; there was no entry.", _stored_headers()),
            "204": _answer("Stored in place of an entry.", _stored_headers()),
            **_problems(400, 408, 411, 412, 413, 503, 507),
        },
    }


def _delete() -> _Object:
    return {
        "operationId": "delete_value",
        "tags": ["values"],
        "summary": "Delete a value",
        "description": "Acknowledged at its durability level, as a put is.",
        "parameters": [_durability(), _if_match()],
        "responses": {"204": {"description": "Deleted."}, **_problems(400, 404, 412, 503)},
    }


def _read_conditions() -> list[_Object]:
    return [
        _if_match(),
        _parameter("If-None-Match", "header", "304 if the entry is one of these.", _TAGS),
        _parameter("If-Modified-Since", "header", "304 if the entry is not newer; without If-None-Match only."),
        _parameter("If-Unmodified-Since", "header", "412 if the entry is newer; without If-Match only."),
    ]


def _if_match() -> _Object:
    return _parameter(
        "If-Match",
        "header",
        "412 unless the entry is one of these.",
        _TAGS,
        example="*",
    )


def _durability() -> _Object:
    return _parameter(
        "durability",
        "query",
        "When to acknowledge: `none` at once, `journal` when it survives the end of the process, `flush` when it "
        "survives power loss.",
        {"type": "string", "enum": [level.value for level in Durability]},
    )


def _parameter(
    name: str, place: str, description: str, schema: _Object | None = None, *, example: str | None = None
) -> _Object:
    shown = {} if example is None else {"example": example}
    return {
        **shown,
        "name": name,
        "in": place,
        "required": place == "path",
        "description": description,
        "schema": schema or {"type": "string"},
    }


def _problems(*statuses: int) -> _Object:
    return {str(status): problem_answer(status) for status in statuses}


def _answer(description: str, headers: _Object, *, body: bool = False) -> _Object:
    answer: _Object = {"description": description, "headers": headers}
    if body:
        # As it was put: any media type, application/octet-stream if the put named none.
        answer["content"] = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
    return answer


def _header(description: str, schema: _Object | None = None, *, required: bool = True) -> _Object:
    return {"description": description, "required": required, "schema": schema or {"type": "string"}}


def _etag() -> _Object:
    return _header("The entry's write id.", {"type": "string", "pattern": '^"[0-9a-f]{16}"$'})


def _stored_headers() -> _Object:
    levels = {"type": "string", "enum": [level.value for level in Durability]}
    return {"ETag": _etag(), "Rawblockd-Durability": _header("The level that was reached.", levels)}


def _validators() -> _Object:
    return {
        "ETag": _etag(),
        "Last-Modified": _header("When the value was stored."),
        "Cache-Status": _header("`rawblockd; hit`."),
        "Age": _header("Seconds since then, if the entry expires.", {"type": "integer", "minimum": 0}, required=False),
        "Cache-Control": _header("`max-age`: the whole time to live, if the entry expires.", required=False),
    }


def _entry_headers() -> _Object:
    return {**_validators(), "Accept-Ranges": _header("`bytes`.")}
