"""``GET /v1/kv/{namespace}``: the entries of a namespace, page by page."""

from __future__ import annotations

from typing import Any

from api.batch.forms import Form, dump_json, form_of_answer, to_base64
from api.batch.packing import pack
from api.batch.results import etag_text
from api.headers import NO_SCRIPTS, encode
from api.limits import LISTING_DEFAULT, LISTING_MAX
from api.metadata import DEFAULT_CONTENT_TYPE
from api.parameters import read_raw_parameters, text_of
from api.value_request import ValueRequest
from storage.errors import ParameterInvalid
from storage.limits import KEY_MAX_BYTES
from storage.listing import ListedEntry

_PARAMETERS = frozenset({"prefix", "cursor", "limit"})


async def answer_listing(request: ValueRequest) -> int:
    """Answer 200 with one page. Raises NamespaceNotFound, Busy, ParameterInvalid (also of an odd cursor)."""
    parameters = read_raw_parameters(request.query, _PARAMETERS)
    prefix = parameters.get("prefix", b"")
    if len(prefix) > KEY_MAX_BYTES:
        raise ParameterInvalid(f"prefix is longer than a key, {KEY_MAX_BYTES} bytes", parameter="prefix")
    cursor = text_of(parameters.get("cursor", b""))
    limit = _limit(text_of(parameters.get("limit", b"%d" % LISTING_DEFAULT)))
    page = await request.engine.list_entries(request.namespace, prefix=prefix, cursor=cursor, limit=limit)
    form = form_of_answer(request, Form.JSON)
    describe = _in_json if form is Form.JSON else _in_msgpack
    document = {"entries": [describe(info) for info in page.entries], "cursor": page.cursor}
    body = dump_json(document) if form is Form.JSON else pack(document)
    lines = encode([(b"content-type", form.value), (b"cache-control", b"no-store"), (b"vary", b"Accept")])
    request.exchange.answer(200, lines + NO_SCRIPTS, body)
    return 200


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= LISTING_MAX):
        raise ParameterInvalid(f"limit is from 1 to {LISTING_MAX}", parameter="limit")
    return int(text)


def _in_json(info: ListedEntry) -> dict[str, Any]:
    try:
        named: dict[str, Any] = {"key": info.key.decode("utf-8")}
    except UnicodeDecodeError:
        named = {"key_base64": to_base64(info.key)}
    return named | _facts(info)


def _in_msgpack(info: ListedEntry) -> dict[str, Any]:
    return {"key": info.key, **_facts(info)}


def _facts(info: ListedEntry) -> dict[str, Any]:
    return {
        "etag": etag_text(info.write_id),
        "size": info.payload_bytes,
        "stored_at": info.stored_at,
        "expires_at": info.expires_at or None,
        "content_type": info.content_type or DEFAULT_CONTENT_TYPE.decode(),
    }
