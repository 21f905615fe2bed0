"""Where a daemon of the tests can be reached, and a sync client for tests that are written for both kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rawblockd_client import Client
from rawblockd_client.aio import AsyncClient
from tests.support.daemon_process import DaemonProcess


@dataclass(frozen=True)
class Place:
    daemon: DaemonProcess
    url: str
    unix: str


class Awaitable:
    """A sync client whose calls can be awaited, so that one test serves both kinds."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        async def awaited(*arguments: Any, **named: Any) -> Any:
            return call(*arguments, **named)

        return awaited

    async def listing(self, *arguments: Any, **named: Any) -> AsyncIterator[Any]:
        for entry in self._client.listing(*arguments, **named):
            yield entry

    @asynccontextmanager
    async def held(self, *arguments: Any, **named: Any) -> AsyncIterator[Any]:
        with self._client.held(*arguments, **named) as lease:
            yield lease


@asynccontextmanager
async def opened(kind: str, address: str, **options: Any) -> AsyncIterator[Any]:
    """A client of this kind, ``sync`` or ``async``, with calls that can be awaited."""
    if kind == "sync":
        with Client(address, **options) as client:
            yield Awaitable(client)
    else:
        async with AsyncClient(address, **options) as other:
            yield other
