"""Requests to the application without a server: what arrives, and when the client leaves, is the test's to say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Message, Scope

from api.application import Application, create_app
from api.settings import ApiSettings
from storage.engine import Engine


@dataclass
class AsgiAnswer:
    """``status`` 0: there was none. ``complete``: its last piece was sent."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False

    @property
    def code(self) -> str:
        assert self.headers["content-type"] == "application/problem+json", (self.status, self.body)
        return str(json.loads(self.body)["code"])


class AsgiClient:
    def __init__(self, engine: Engine, settings: ApiSettings | None = None) -> None:
        self.app: Application = create_app(engine, settings or ApiSettings(), lambda _: (b"", "text/plain"))

    async def ask(
        self,
        method: str,
        target: str,
        pieces: bytes | Sequence[bytes] = b"",
        headers: Iterable[tuple[str, str]] = (),
        *,
        leaves: bool = False,
        goes_behind: int | None = None,
    ) -> AsgiAnswer:
        """One request, its body in the pieces given.

        With ``leaves`` the client is gone behind the last piece; with ``goes_behind`` once it has got so many pieces of
        the answer.
        """
        parts = [pieces] if isinstance(pieces, bytes) else list(pieces)
        path, _, query = target.partition("?")
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
        if any(parts) or leaves:
            raw.append((b"transfer-encoding", b"chunked"))
        scope: Scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode("latin-1"),
            "query_string": query.encode("latin-1"),
            "headers": [(b"host", b"localhost"), *raw],
            "http_version": "1.1",
            "scheme": "http",
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
        }
        answer = AsgiAnswer()
        messages: list[Message] = [
            {"type": "http.request", "body": part, "more_body": leaves or index < len(parts) - 1}
            for index, part in enumerate(parts)
        ]

        gone = asyncio.Event()
        if leaves:
            gone.set()
        received = 0

        async def receive() -> Message:
            await asyncio.sleep(0)
            if messages:
                return messages.pop(0)
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal received
            await asyncio.sleep(0)
            if gone.is_set():
                return  # as servers do
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
            else:
                answer.body += message["body"]
                answer.complete = not message.get("more_body", False)
                received += 1
                if received == goes_behind:
                    gone.set()

        await self.app(scope, receive, send)
        return answer

    async def batch(self, verb: str, body: bytes | Sequence[bytes], **more: Any) -> AsgiAnswer:
        """A batch call to namespace ``n`` in msgpack."""
        return await self.ask("POST", f"/v1/kv/n:{verb}", body, [("Content-Type", "application/msgpack")], **more)
