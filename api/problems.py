"""Problem documents (RFC 9457): what every error answer carries.

``{type, title, status, detail, code, …}``: ``code`` is the stable name of the error class, ``type`` a reference to its
paragraph in ``/docs``, ``title`` its sentence, ``detail`` what this case was about; further members are facts of the
case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from api.errors import RangeUnsatisfiable, RateLimited, Unauthenticated
from api.headers import CORRUPT, MISS, RawHeaders, etag
from api.ranges import unsatisfied_content_range
from storage.errors import EntryCorrupt, EntryNotFound, PreconditionFailed, RawblockdError, WriteBudgetSpent

MEDIA_TYPE = "application/problem+json"

BEARER: RawHeaders = [(b"www-authenticate", b'Bearer realm="rawblockd"')]
BEARER_AND_BASIC: RawHeaders = [*BEARER, (b"www-authenticate", b'Basic realm="rawblockd", charset="UTF-8"')]
"""What a 401 offers. Basic only on pages: a browser would ask its user for a password wherever it is offered."""

HTTP_CODES = {
    404: ("no_such_route", "There is nothing at this path."),
    405: ("method_not_allowed", "The path does not take this method."),
    408: ("request_timeout", "The client paused for too long within the body."),
    422: ("parameters_invalid", "Parameters of the request are missing or not valid."),
    500: ("internal_error", "The daemon made a mistake; its log says more."),
}
"""Code and title, by status, of what a framework answers: they belong to no class of errors."""

NOT_READY = "not_ready"
SERVER_CODES = {
    "bad_request": (400, "The request is no HTTP."),
    "head_too_large": (431, "The head of the request is too large or has too many fields."),
    NOT_READY: (503, "The store does not accept reads and writes now."),
    "target_too_long": (414, "The target of the request is too long."),
    "too_many_connections": (503, "The daemon has as many connections as it allows."),
}
"""Status and title of the other codes without a class."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem document and the header fields that go with it."""

    status: int
    code: str
    title: str
    detail: str = ""
    members: Mapping[str, Any] = field(default_factory=dict)
    headers: RawHeaders = field(default_factory=list)

    def body(self) -> bytes:
        document: dict[str, Any] = {
            "type": f"/docs#problem-{self.code}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail or self.title,
            "code": self.code,
        }
        for name, value in self.members.items():
            document.setdefault(name, value)
        return json.dumps(document, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")

    def all_headers(self) -> RawHeaders:
        """Without Content-Length."""
        return [(b"content-type", MEDIA_TYPE.encode()), (b"cache-control", b"no-store"), *self.headers]


def problem_of(error: RawblockdError, retry_after_seconds: int) -> Problem:
    """The problem of an error raised on purpose. Every 503 says when to come back."""
    headers: RawHeaders = []
    if error.http_status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", b"%d" % retry_after_seconds))
    if isinstance(error, EntryNotFound):
        headers.append(CORRUPT if isinstance(error, EntryCorrupt) else MISS)
    elif isinstance(error, PreconditionFailed) and error.present_write_id:
        headers.append((b"etag", etag(error.present_write_id)))
    elif isinstance(error, Unauthenticated):
        headers.extend(BEARER_AND_BASIC if error.offers_basic else BEARER)
    elif isinstance(error, RateLimited | WriteBudgetSpent):
        headers.append((b"retry-after", b"%d" % error.retry_after_seconds))
    elif isinstance(error, RangeUnsatisfiable):
        headers.append((b"content-range", unsatisfied_content_range(int(error.fields["size_bytes"]))))
    return Problem(error.http_status, error.code, error.sentence, error.detail, error.fields, headers)


def problem_of_status(status: int, detail: str = "", **members: Any) -> Problem:
    """The problem of an HTTP error that belongs to no class of ours."""
    code, title = HTTP_CODES.get(status) or (f"http_{status}", HTTPStatus(status).phrase)
    return Problem(status, code, title, detail, members)
