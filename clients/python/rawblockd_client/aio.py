"""The client of programs on asyncio: the same calls as ``Client``, on aiohttp."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, TypeVar

import aiohttp
from yarl import URL

from rawblockd_client import arguments, batch_calls, control_calls, value_calls
from rawblockd_client.batch_calls import GetResult
from rawblockd_client.codec import Buffer
from rawblockd_client.endpoint import parse_endpoint
from rawblockd_client.errors import (
    BufferTooSmall,
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    Problem,
    may_succeed_later,
)
from rawblockd_client.exchange import Answer, Call, problem_of_answer
from rawblockd_client.models import (
    Document,
    Entry,
    EntryInfo,
    Key,
    Lease,
    ListedEntry,
    ListingPage,
    Part,
    Presence,
    PutItem,
    PutResult,
)
from rawblockd_client.retries import Attempts, Retries
from rawblockd_client.transport import READ_INTO, gathered
from rawblockd_client.value_calls import Tags

T = TypeVar("T")

LISTING_PAGE = 1000
_HEADERS_OF_AIOHTTP = ("Content-Type", "Accept-Encoding", "Accept", "User-Agent")


class AsyncClient:
    """As ``Client``; made and used in one event loop. ``timeout`` is how many seconds it waits for the daemon at a
    time."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        timeout: float = 30.0,
        retries: Retries = Retries(),  # noqa: B008  (frozen)
        tls: ssl.SSLContext | None = None,
        connections: int = 100,
    ) -> None:
        self._endpoint = parse_endpoint(address)
        self._timeout = timeout
        self._retries = retries
        self._headers = arguments.common_headers(token)
        self._connections = connections
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # -- values ---------------------------------------------------------------------------------------------------

    async def get(self, namespace: str, key: Key, *, lease: str | None = None) -> bytes | None:
        entry = await self.get_entry(namespace, key, lease=lease)
        return None if entry is None else bytes(entry.value)

    async def get_entry(self, namespace: str, key: Key, *, lease: str | None = None) -> Entry | None:
        return await self._run(value_calls.get_call(namespace, key, lease=lease))

    async def get_into(
        self,
        namespace: str,
        key: Key,
        buffer: Any,
        *,
        lease: str | None = None,
        part: str | None = None,
        start: int | None = None,
    ) -> EntryInfo | None:
        sink = arguments.sink_of(buffer)
        return await self._run(value_calls.get_into_call(namespace, key, sink, lease=lease, part=part, start=start))

    async def head(self, namespace: str, key: Key, *, lease: str | None = None) -> EntryInfo | None:
        return await self._run(value_calls.head_call(namespace, key, lease=lease))

    async def exists(self, namespace: str, key: Key) -> bool:
        return (await self.exists_many(namespace, [key])).found[0]

    async def put(
        self,
        namespace: str,
        key: Key,
        value: arguments.Value,
        *,
        ttl: int | str | None = None,
        content_type: str | None = None,
        meta: Mapping[str, str] | None = None,
        durability: str | None = None,
        if_match: Tags = None,
        if_absent: bool = False,
        parts: Sequence[Part] = (),
    ) -> PutResult:
        return await self._run(
            value_calls.put_call(
                namespace,
                key,
                value,
                ttl=ttl,
                content_type=content_type,
                meta=meta,
                durability=durability,
                if_match=if_match,
                if_absent=if_absent,
                parts=parts,
            )
        )

    async def touch(self, namespace: str, key: Key, ttl: int | str, *, if_match: Tags = None) -> str | None:
        return await self._run(value_calls.touch_call(namespace, key, ttl, if_match=if_match))

    async def delete(self, namespace: str, key: Key, *, durability: str | None = None, if_match: Tags = None) -> bool:
        return await self._run(value_calls.delete_call(namespace, key, durability=durability, if_match=if_match))

    # -- parts ----------------------------------------------------------------------------------------------------

    async def put_parts(
        self, namespace: str, key: Key, parts: Mapping[str, arguments.PartValue], **options: Any
    ) -> PutResult:
        described, data = arguments.split_parts(parts)
        return await self.put(namespace, key, data, parts=described, **options)

    async def get_part(self, namespace: str, key: Key, part: str, *, lease: str | None = None) -> Entry | None:
        return await self._run(value_calls.get_call(namespace, key, lease=lease, part=part))

    # -- batches --------------------------------------------------------------------------------------------------

    async def mget(
        self,
        namespace: str,
        keys: Sequence[Key],
        *,
        parts: Sequence[str] | None = None,
        lease: str | None = None,
        stop_at_first_miss: bool = False,
        views: bool = False,
    ) -> list[GetResult]:
        results: list[GetResult] = []
        for chosen in arguments.slices(keys):
            if stop_at_first_miss and results and not isinstance(results[-1], Entry):
                return results + [None] * (len(keys) - len(results))
            call = batch_calls.mget_call(
                namespace, chosen, parts=parts, lease=lease, stop_at_first_miss=stop_at_first_miss
            )
            found = await self._run(call)
            results += found
        return results if views else arguments.copied(results)

    async def mput(
        self,
        namespace: str,
        entries: Mapping[Any, arguments.Value] | Iterable[PutItem | tuple[Key, arguments.Value]],
        *,
        ttl: int | str | None = None,
        durability: str | None = None,
    ) -> list[PutResult | Problem]:
        items = arguments.items_of(entries)
        return await self._run(batch_calls.mput_call(namespace, items, ttl=ttl, durability=durability))

    async def mdelete(
        self, namespace: str, keys: Sequence[Key], *, durability: str | None = None
    ) -> list[bool | Problem]:
        results: list[bool | Problem] = []
        for chosen in arguments.slices(keys):
            found = await self._run(batch_calls.mdelete_call(namespace, chosen, durability=durability))
            results += found
        return results

    async def exists_many(self, namespace: str, keys: Sequence[Key], *, sizes: bool = False) -> Presence:
        chosen = arguments.slices(keys)
        found = [
            await self._run(batch_calls.exists_call(namespace, one, sizes=sizes, lease_seconds=None)) for one in chosen
        ]
        return arguments.joined(found, [len(one) for one in chosen])

    # -- leases ---------------------------------------------------------------------------------------------------

    async def lease(
        self, namespace: str, keys: Sequence[Key], *, ttl_seconds: int, owner: str = "", lease: str | None = None
    ) -> Lease:
        return await self._run(
            batch_calls.lease_call(namespace, keys, ttl_seconds=ttl_seconds, owner=owner, lease_id=lease)
        )

    async def release(self, lease: str) -> None:
        await self._run(control_calls.release_call(lease))

    @asynccontextmanager
    async def held(
        self, namespace: str, keys: Sequence[Key], *, ttl_seconds: int, owner: str = ""
    ) -> AsyncIterator[Lease]:
        lease = await self.lease(namespace, keys, ttl_seconds=ttl_seconds, owner=owner)
        try:
            yield lease
        finally:
            try:
                await self.release(lease.lease_id)
            except Problem as problem:
                if problem.code != "lease_not_found":
                    raise

    # -- namespaces -----------------------------------------------------------------------------------------------

    async def namespaces(self) -> list[Document]:
        return await self._run(control_calls.namespaces_call())

    async def namespace(self, namespace: str) -> Document | None:
        return await self._run(control_calls.namespace_call(namespace))

    async def set_namespace(self, namespace: str, **settings: Any) -> Document:
        return await self._run(control_calls.set_namespace_call(namespace, settings))

    async def wipe_namespace(self, namespace: str) -> Document | None:
        return await self._run(control_calls.wipe_namespace_call(namespace))

    async def listing(
        self, namespace: str, *, prefix: bytes = b"", page: int = LISTING_PAGE
    ) -> AsyncIterator[ListedEntry]:
        cursor: str | None = None
        while True:
            found: ListingPage = await self.list_page(namespace, prefix=prefix, cursor=cursor, limit=page)
            for entry in found.entries:
                yield entry
            cursor = found.cursor
            if cursor is None:
                return

    async def list_page(
        self, namespace: str, *, prefix: bytes = b"", cursor: str | None = None, limit: int = LISTING_PAGE
    ) -> ListingPage:
        return await self._run(control_calls.listing_call(namespace, prefix=prefix, cursor=cursor, limit=limit))

    async def status(self) -> Document:
        return await self._run(control_calls.status_call())

    # -- how a call is made ---------------------------------------------------------------------------------------

    async def _run(self, call: Call[T]) -> T:
        attempts = Attempts(self._retries, repeatable=call.repeatable)
        while True:
            try:
                if not call.repeatable:
                    await _notice_closed_connections()
                answer = await self._exchange(call, attempts.timeout_seconds(self._timeout))
                if answer.status in (429, 503):
                    problem = problem_of_answer(answer)
                    if may_succeed_later(problem):
                        raise problem
                return arguments.finish(call, answer)
            except ClientError as error:
                await asyncio.sleep(attempts.pause_after(error))

    async def _exchange(self, call: Call[Any], timeout_seconds: float) -> Answer:
        try:
            return await self._request(call, timeout_seconds)
        except asyncio.TimeoutError:
            raise DeadlineExceeded(f"no answer within {timeout_seconds:.3g} s") from None
        except (OSError, aiohttp.ClientError) as error:
            raise ConnectionFailed(f"{type(error).__name__}: {error}") from error

    async def _request(self, call: Call[Any], timeout_seconds: float) -> Answer:
        headers = {**self._headers, **call.headers}
        data: Any = None
        if call.body is not None:
            headers["Content-Length"] = str(call.body_bytes)
            data = _pieces(call.body) if call.body_bytes else None
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout_seconds, sock_read=timeout_seconds)
        async with self._opened().request(
            call.method,
            URL(self._endpoint.origin + call.target, encoded=True),
            headers=headers,
            data=data,
            timeout=timeout,
            allow_redirects=False,
        ) as response:
            fields = {name.lower(): text for name, text in response.headers.items()}
            if call.sink is None or response.status not in READ_INTO:
                body = await response.read()
                return Answer(response.status, fields, body, len(body))
            return Answer(response.status, fields, b"", await _read_into(response, call.sink))

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=self._connector(),
                skip_auto_headers=_HEADERS_OF_AIOHTTP,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _connector(self) -> aiohttp.BaseConnector:
        if self._endpoint.unix_path is not None:
            return aiohttp.UnixConnector(self._endpoint.unix_path, limit=self._connections)
        if self._endpoint.tls:
            return aiohttp.TCPConnector(limit=self._connections, ssl=self._tls or ssl.create_default_context())
        return aiohttp.TCPConnector(limit=self._connections)


async def _notice_closed_connections() -> None:
    """The loop hears in its next turn of idle connections that the daemon has closed, and acts in the one behind it."""
    for _ in range(2):
        await asyncio.sleep(0)


async def _pieces(body: Sequence[Buffer]) -> AsyncIterator[Buffer]:
    for piece in gathered(body):
        yield piece


async def _read_into(response: aiohttp.ClientResponse, sink: memoryview) -> int:
    size = response.content_length or 0
    if size > len(sink):
        response.close()
        raise BufferTooSmall(size, len(sink))
    at = 0
    async for piece in response.content.iter_any():
        sink[at : at + len(piece)] = piece
        at += len(piece)
    return at
