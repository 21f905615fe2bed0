"""One request to a value, as the handlers of its methods get it."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from api.admission import fields_of
from api.engine_face import EngineFace
from api.headers import has_body
from api.settings import ApiSettings


class ClientGone(Exception):
    """The client left, or was cut off, before the request was through: no answer is possible any more."""


class BodyTimeout(Exception):
    """The client paused for longer than ``body_timeout_seconds`` within the body: 408."""


@dataclass(slots=True)
class ValueRequest:
    engine: EngineFace
    settings: ApiSettings
    namespace: str
    key: bytes
    fields: dict[bytes, bytes]
    query: bytes
    receive: Receive
    send: Send
    body_unread: bool
    """True while a body is announced and not wholly read: an error answer then ends the connection."""
    answered: bool = False
    """True from the moment the head of an answer is handed over: nothing else can be answered any more."""

    @property
    def awaits_continue(self) -> bool:
        """True if the client sends its body only after 100 Continue (RFC 9110, 10.1.1)."""
        return self.fields.get(b"expect", b"").lower() == b"100-continue"


def value_request(
    engine: EngineFace, settings: ApiSettings, scope: Scope, receive: Receive, send: Send
) -> ValueRequest:
    """The request of a scope; namespace and key are filled in when they are decoded."""
    fields = fields_of(scope)
    return ValueRequest(
        engine, settings, "", b"", fields, scope["query_string"], receive, send, body_unread=has_body(fields)
    )
