"""``PROPFIND`` and ``MKCOL`` (RFC 4918) over entries that lie flat under their paths."""

from __future__ import annotations

from urllib.parse import quote
from xml.sax.saxutils import escape

from api.dates import format_date
from api.doors.selection import DoorName
from api.errors import MediaTypeUnsupported
from api.headers import HIT, NO_SCRIPTS, encode, etag
from api.metadata import DEFAULT_CONTENT_TYPE
from api.problems import problem_of_status
from api.refusals import refuse
from api.value_request import ValueRequest
from storage.entries import EntryInfo
from storage.errors import EntryNotFound, ParameterInvalid

PROPFIND_MAX_BYTES = 16 * 1024
"""Largest body of a PROPFIND, in which a client lists the properties it wants."""

_ALLOW_AT_ROOT = b"PROPFIND"
_ALLOW_AT_ENTRY = b"GET, HEAD, PUT, DELETE, PROPFIND"
_DEPTHS = (b"0", b"1", b"infinity")
_NO_TIME = format_date(0).decode("ascii")
"""When a collection was last modified: nothing knows, but clients insist on a date."""


async def answer_propfind(request: ValueRequest) -> int:
    """Answer 207 with the properties of an entry. Raises the engine's errors."""
    _read_depth(request)
    if not await _drop_body(request):
        return refuse(request.exchange, problem_of_status(413, f"a PROPFIND has up to {PROPFIND_MAX_BYTES} bytes"))
    info = await request.engine.head(request.namespace, request.key)
    return _send_properties(request, _href(request.key), _entry_properties(info))


async def answer_propfind_collection(request: ValueRequest) -> int:
    """Answer 207 with the properties of a collection, never with its members: 403 for a depth that asks for them."""
    if _read_depth(request) != b"0":
        detail = "the members of a collection are not listed: ask with Depth: 0 (propfind-finite-depth)"
        return refuse(request.exchange, problem_of_status(403, detail))
    if not await _drop_body(request):
        return refuse(request.exchange, problem_of_status(413, f"a PROPFIND has up to {PROPFIND_MAX_BYTES} bytes"))
    href = _href(request.key + b"/" if request.key else b"")
    return _send_properties(request, href, [("resourcetype", None), ("getlastmodified", _NO_TIME)])


async def answer_mkcol(request: ValueRequest) -> int:
    """Answer 201, also for the second time, since a collection needs no making; 405 for the root.

    Raises ``MediaTypeUnsupported`` for a body (RFC 4918, 9.3).
    """
    if request.exchange.body_unread:
        raise MediaTypeUnsupported("a MKCOL takes no body")
    if not request.key:
        return _refuse_existing(request, _ALLOW_AT_ROOT)
    request.exchange.answer(201, b"")
    return 201


async def answer_mkcol_at_entry(request: ValueRequest) -> int:
    """As ``answer_mkcol`` for a path without a slash at its end, where an entry may lie: then 405."""
    if not request.exchange.body_unread:
        try:
            await request.engine.head(request.namespace, request.key)
        except EntryNotFound:
            pass
        else:
            return _refuse_existing(request, _ALLOW_AT_ENTRY)
    return await answer_mkcol(request)


def _refuse_existing(request: ValueRequest, allow: bytes) -> int:
    problem = problem_of_status(405, "there is something at this path already")
    problem.headers.append((b"allow", allow))
    return refuse(request.exchange, problem)


def _read_depth(request: ValueRequest) -> bytes:
    """Without the field, a client means all depths (RFC 4918, 9.1)."""
    depth = request.fields.get(b"depth", b"infinity").lower()
    if depth not in _DEPTHS:
        raise ParameterInvalid("Depth is 0, 1 or infinity", parameter="Depth")
    return depth


async def _drop_body(request: ValueRequest) -> bool:
    """Read the body without a look at it: every answer has all properties there are. False if it is too large."""
    if int(request.fields.get(b"content-length", b"0")) > PROPFIND_MAX_BYTES:
        return False  # unread, by its own account
    left_bytes = PROPFIND_MAX_BYTES
    while piece := await request.exchange.receive():
        left_bytes -= len(piece)
        if left_bytes < 0:
            return False
    return True


def _entry_properties(info: EntryInfo) -> list[tuple[str, str | None]]:
    return [
        ("resourcetype", ""),
        ("getcontentlength", str(info.payload_bytes)),
        ("getlastmodified", format_date(int(info.stored_at)).decode("ascii")),
        ("getetag", etag(info.write_id).decode("ascii")),
        ("getcontenttype", info.content_type or DEFAULT_CONTENT_TYPE.decode("ascii")),
    ]


def _href(key: bytes) -> str:
    return quote(b"/%s/%s" % (DoorName.SCCACHE.value.encode(), key))


def _send_properties(request: ValueRequest, href: str, properties: list[tuple[str, str | None]]) -> int:
    """``properties`` by name; the type None is that of a collection."""
    listed = "".join(
        f"<D:{name}>{'<D:collection/>' if value is None else escape(value)}</D:{name}>" for name, value in properties
    )
    body = (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<D:multistatus xmlns:D="DAV:"><D:response><D:href>{escape(href)}</D:href>'
        f"<D:propstat><D:prop>{listed}</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat>"
        "</D:response></D:multistatus>\n"
    ).encode()
    lines = encode([(b"content-type", b'application/xml; charset="utf-8"'), (b"cache-control", b"no-store")])
    request.exchange.answer(207, lines + HIT + NO_SCRIPTS, body)
    return 207
