"""``GET /v1/events``: the event feed as server-sent events.

Each block of the stream has an ``id``: the position to come back with (``Last-Event-ID``, or ``since``). Blocks with an
``id`` alone say that nothing of interest happened up to there, so that who filters doesn't fall behind.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import WithJsonSchema
from starlette.types import Receive, Scope, Send

from api.access.credentials import EVERYBODY
from api.access.roles import Role
from api.admission import credentials_of
from api.batch.forms import to_base64
from api.engine_face import EngineFace
from api.problem_schema import problem_answer, problem_answers
from storage.events import EVENT_TYPES, RESYNC_REASONS, Event, Position, Resync, Subscription
from storage.limits import NAMESPACE_MAX_CHARS

MEDIA_TYPE = "text/event-stream"
HEAD_ONLY = "rawblockd.head"
"""Key of a scope: the request was a HEAD, so that a body that never ends need not begin."""
ENDLESS = "rawblockd.endless"
"""Key of a scope: the answer goes on until the client or the daemon ends it."""

HEARTBEAT_SECONDS = 15.0
"""Proxies take a connection for dead after 30 s or more."""
PIECE_CHARS = 64 * 1024
"""What is sent at once: a client that does not read holds little more than this."""
RETRY_MS = 2000
"""How long a browser waits before it connects again: a restart takes about as long."""
LAST_MAX = 1000
WAIT_MAX_SECONDS = 3600

POSITION = r"^[0-9]{1,19}(-[1-9][0-9]{0,9}-[0-9a-f]{8})?$"
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}

_STREAM: dict[str, Any] = {
    "description": "Server-sent events: `position` once at the beginning, `stored`, `deleted`, `wiped`, and `resync` "
    f"where something was missed (`reason`: {', '.join(RESYNC_REASONS)}). `data` is a JSON object with `seq`; `id` is "
    "what to come back with.",
    "content": {
        MEDIA_TYPE: {
            "schema": {
                "type": "object",
                "description": "One block of the stream.",
                "properties": {
                    "event": {"type": "string", "enum": ["position", *EVENT_TYPES, "resync"]},
                    "id": {"type": "string", "pattern": POSITION},
                    "data": {"type": "string", "contentMediaType": "application/json"},
                    "retry": {"type": "integer"},
                },
            }
        }
    },
}

_Since = Annotated[
    str | None,
    Query(description="Go on after this position: the `id` of an event, or a bare seq.", pattern=POSITION),
]
_LastEventId = Annotated[
    str | None,
    WithJsonSchema({"type": "string", "pattern": POSITION}),
    Header(description="As `since`, and before it: what a browser sends.", pattern=POSITION),
]
_Namespace = Annotated[
    str | None,
    Query(description="Only this namespace.", pattern=f"^[A-Za-z0-9._-]{{1,{NAMESPACE_MAX_CHARS}}}$"),
]
_Keys = Annotated[int, Query(description="1: read the keys that are not known otherwise.", ge=0, le=1)]
_Last = Annotated[int, Query(description="Without a position: begin so many events ago.", ge=0, le=LAST_MAX)]
_Wait = Annotated[
    int | None,
    Query(
        description="End the stream after so many seconds; 0 as soon as everything there is was sent.",
        ge=0,
        le=WAIT_MAX_SECONDS,
    ),
]


def events_router(engine: EngineFace) -> APIRouter:
    """The route of one engine."""
    router = APIRouter(tags=["events"])

    @router.get(
        "/v1/events",
        summary="Follow what changes",
        operation_id="events",
        response_class=Response,
        responses={200: _STREAM, **problem_answers(503), 422: problem_answer(422)},
    )
    async def events(
        request: Request,
        since: _Since = None,
        last_event_id: _LastEventId = None,
        namespace: _Namespace = None,
        keys: _Keys = 0,
        last: _Last = 0,
        wait: _Wait = None,
    ) -> Response:
        """Every durable change, in the order of seqs. Without a position the stream begins with what happens next.

        An index kept elsewhere drops an entry at `deleted`, all of a namespace at `wiped`, the one that was `replaced`
        at `stored`, and is made anew at `resync`.
        """
        if request.scope.get(HEAD_ONLY):
            return Response(headers=_HEADERS, media_type=MEDIA_TYPE)
        resume = last_event_id or since
        position = Position.parse(resume) if resume else None
        accepts = _accepts(request, namespace)
        subscription = engine.events.subscribe(position, last=last, accepts=accepts)
        stream = _Stream(engine, subscription, with_keys=keys == 1, wait_seconds=wait)
        return _EventResponse(stream)

    return router


def _accepts(request: Request, namespace: str | None) -> Callable[[str], bool] | None:
    """What the client asked for and may see; None for all."""
    credentials = credentials_of(request.scope)
    if credentials is EVERYBODY or credentials.may_device(Role.READER):
        return None if namespace is None else lambda name: name == namespace
    return lambda name: (namespace is None or name == namespace) and credentials.may(Role.READER, name)


class _EventResponse(StreamingResponse):
    def __init__(self, stream: _Stream) -> None:
        super().__init__(stream.blocks(), headers=_HEADERS, media_type=MEDIA_TYPE)
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ENDLESS] = True
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.close()  # also where the client left before the body began


class _Stream:
    def __init__(
        self, engine: EngineFace, subscription: Subscription, *, with_keys: bool, wait_seconds: int | None
    ) -> None:
        self._engine = engine
        self._subscription = subscription
        self._with_keys = with_keys
        self._deadline = None if wait_seconds is None else time.monotonic() + wait_seconds

    async def blocks(self) -> AsyncIterator[str]:
        """The body, until the feed closes, the time is over or the client leaves."""
        subscription = self._subscription
        yield f"retry: {RETRY_MS}\n\n" + self._beginning()
        while True:
            resync, events = subscription.take()
            if self._with_keys:
                events = await self._engine.event_keys(events)
            text = "" if resync is None else self._resync(resync)
            for event in events:
                text += self._event(event)
                if len(text) >= PIECE_CHARS:
                    yield text
                    text = ""
            yield text + f"id: {subscription.position}\n\n"
            if subscription.ended or (subscription.waiting and self._is_over()):
                return
            await self._pause()

    def close(self) -> None:
        self._subscription.close()

    async def _pause(self) -> None:
        """Wait for something to send, or until it is time for a sign of life; others have a turn in any case."""
        if self._subscription.waiting:
            left = HEARTBEAT_SECONDS
            if self._deadline is not None:
                left = min(left, max(0.0, self._deadline - time.monotonic()))
            await self._subscription.wait(left)
        else:
            await asyncio.sleep(0)

    def _is_over(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _beginning(self) -> str:
        position = self._subscription.position
        return f'event: position\nid: {position}\ndata: {{"seq":{position.seq}}}\n\n'

    def _resync(self, resync: Resync) -> str:
        position = self._engine.events.position(resync.seq)
        return f'event: resync\nid: {position}\ndata: {{"seq":{resync.seq},"reason":"{resync.reason}"}}\n\n'

    def _event(self, event: Event) -> str:
        return f"event: {event.kind}\nid: {self._engine.events.position(event.seq)}\ndata: {event_json(event)}\n\n"


def event_json(event: Event) -> str:
    """The event as a JSON object. What is not known or does not apply is left out."""
    parts = [f'{{"seq":{event.seq},"namespace":"{event.namespace}"']
    if event.write_id:
        parts.append(f'"etag":"\\"{event.write_id:016x}\\""')
    if event.key:
        try:
            parts.append(f'"key":{json.dumps(event.key.decode("utf-8"))}')
        except UnicodeDecodeError:
            parts.append(f'"key_base64":"{to_base64(event.key)}"')
    if event.reason:
        parts.append(f'"reason":"{event.reason}"')
    if event.kind == "stored":
        parts.append(f'"size":{event.size_bytes}')
    if event.expires_at:
        parts.append(f'"expires_at":{event.expires_at}')
    if event.replaced:
        parts.append(f'"replaced":"\\"{event.replaced:016x}\\""')
    if event.time:
        parts.append(f'"time":{event.time:.3f}')
    return ",".join(parts) + "}"
