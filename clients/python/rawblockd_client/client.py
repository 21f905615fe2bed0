"""The client of programs that wait: on the standard library alone."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from rawblockd_client import arguments, batch_calls, control_calls, value_calls
from rawblockd_client.batch_calls import GetResult
from rawblockd_client.endpoint import parse_endpoint
from rawblockd_client.errors import ClientError, Problem, may_succeed_later
from rawblockd_client.exchange import Call, problem_of_answer
from rawblockd_client.mapping import NamespaceMapping
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
from rawblockd_client.transport import Pool
from rawblockd_client.value_calls import Tags

T = TypeVar("T")

LISTING_PAGE = 1000


class Client:
    """A daemon at ``address`` (``http://host:port``, ``https://…``, ``unix:/path`` or a socket's path). Thread-safe.

    ``timeout`` is how many seconds one attempt waits for the daemon at a time. All calls raise ``ClientError``: a
    ``Problem`` where the daemon refuses, ``ConnectionFailed`` and ``DeadlineExceeded`` where it can't be talked to.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        timeout: float = 30.0,
        retries: Retries = Retries(),  # noqa: B008  (frozen)
        tls: ssl.SSLContext | None = None,
        idle_connections: int = 16,
    ) -> None:
        self._endpoint = parse_endpoint(address)
        if self._endpoint.tls and tls is None:
            tls = ssl.create_default_context()
        self._timeout = timeout
        self._retries = retries
        self._headers = arguments.common_headers(token)
        self._pool = Pool(self._endpoint, tls, timeout, idle_connections)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that are idle now; others when their requests are through."""
        self._pool.close()

    # -- values ---------------------------------------------------------------------------------------------------

    def get(self, namespace: str, key: Key, *, lease: str | None = None) -> bytes | None:
        """The value; None for a miss."""
        entry = self.get_entry(namespace, key, lease=lease)
        return None if entry is None else bytes(entry.value)

    def get_entry(self, namespace: str, key: Key, *, lease: str | None = None) -> Entry | None:
        """The value and what is kept with it."""
        return self._run(value_calls.get_call(namespace, key, lease=lease))

    def get_into(
        self,
        namespace: str,
        key: Key,
        buffer: Any,
        *,
        lease: str | None = None,
        part: str | None = None,
        start: int | None = None,
    ) -> EntryInfo | None:
        """Read the value, or one of its parts, into the caller's buffer; ``size_bytes`` says how many bytes it was.

        With ``start`` as many bytes from there as the buffer takes. Raises BufferTooSmall.
        """
        sink = arguments.sink_of(buffer)
        return self._run(value_calls.get_into_call(namespace, key, sink, lease=lease, part=part, start=start))

    def head(self, namespace: str, key: Key, *, lease: str | None = None) -> EntryInfo | None:
        """What is kept with the value; None for a miss."""
        return self._run(value_calls.head_call(namespace, key, lease=lease))

    def exists(self, namespace: str, key: Key) -> bool:
        return self.exists_many(namespace, [key]).found[0]

    def put(
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
        """Store a value. ``ttl`` in seconds, or ``none`` for never. Raises PreconditionFailed."""
        return self._run(
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

    def touch(self, namespace: str, key: Key, ttl: int | str, *, if_match: Tags = None) -> str | None:
        """Give an entry a new time to live; its ETag, None for a miss."""
        return self._run(value_calls.touch_call(namespace, key, ttl, if_match=if_match))

    def delete(self, namespace: str, key: Key, *, durability: str | None = None, if_match: Tags = None) -> bool:
        """True if there was an entry. Made again after a broken connection it may say False of its own work."""
        return self._run(value_calls.delete_call(namespace, key, durability=durability, if_match=if_match))

    # -- parts ----------------------------------------------------------------------------------------------------

    def put_parts(
        self, namespace: str, key: Key, parts: Mapping[str, arguments.PartValue], **options: Any
    ) -> PutResult:
        """Store named arrays as one value under one write id; ``options`` are those of ``put``."""
        described, data = arguments.split_parts(parts)
        return self.put(namespace, key, data, parts=described, **options)

    def get_part(self, namespace: str, key: Key, part: str, *, lease: str | None = None) -> Entry | None:
        """One part: only its blocks are read. Raises PartNotFound."""
        return self._run(value_calls.get_call(namespace, key, lease=lease, part=part))

    # -- batches --------------------------------------------------------------------------------------------------

    def mget(
        self,
        namespace: str,
        keys: Sequence[Key],
        *,
        parts: Sequence[str] | None = None,
        lease: str | None = None,
        stop_at_first_miss: bool = False,
        views: bool = False,
    ) -> list[GetResult]:
        """A result for each key: an entry, None for a miss, or the problem of this one key.

        ``parts``: only these, in this order. ``views``: values are views of one answer, which they keep in memory.
        """
        results: list[GetResult] = []
        for chosen in arguments.slices(keys):
            if stop_at_first_miss and results and not isinstance(results[-1], Entry):
                return results + [None] * (len(keys) - len(results))
            call = batch_calls.mget_call(
                namespace, chosen, parts=parts, lease=lease, stop_at_first_miss=stop_at_first_miss
            )
            found = self._run(call)
            results += found
        return results if views else arguments.copied(results)

    def mput(
        self,
        namespace: str,
        entries: Mapping[Any, arguments.Value] | Iterable[PutItem | tuple[Key, arguments.Value]],
        *,
        ttl: int | str | None = None,
        durability: str | None = None,
    ) -> list[PutResult | Problem]:
        """Store up to 10,000 values; all are published together, each has its own result."""
        items = arguments.items_of(entries)
        return self._run(batch_calls.mput_call(namespace, items, ttl=ttl, durability=durability))

    def mdelete(self, namespace: str, keys: Sequence[Key], *, durability: str | None = None) -> list[bool | Problem]:
        """True where there was an entry."""
        results: list[bool | Problem] = []
        for chosen in arguments.slices(keys):
            found = self._run(batch_calls.mdelete_call(namespace, chosen, durability=durability))
            results += found
        return results

    def exists_many(self, namespace: str, keys: Sequence[Key], *, sizes: bool = False) -> Presence:
        """Which keys are there, and how many from the first on; nothing is read from the device."""
        chosen = arguments.slices(keys)
        found = [self._run(batch_calls.exists_call(namespace, one, sizes=sizes, lease_seconds=None)) for one in chosen]
        return arguments.joined(found, [len(one) for one in chosen])

    # -- leases ---------------------------------------------------------------------------------------------------

    def lease(
        self, namespace: str, keys: Sequence[Key], *, ttl_seconds: int, owner: str = "", lease: str | None = None
    ) -> Lease:
        """Hold the entries that are there; ``lease`` extends one. Up to 10,000 keys. Raises LeasesFull, SpaceHeld."""
        return self._run(batch_calls.lease_call(namespace, keys, ttl_seconds=ttl_seconds, owner=owner, lease_id=lease))

    def release(self, lease: str) -> None:
        """Raises LeaseNotFound."""
        self._run(control_calls.release_call(lease))

    @contextmanager
    def held(self, namespace: str, keys: Sequence[Key], *, ttl_seconds: int, owner: str = "") -> Iterator[Lease]:
        """A lease for the length of a block; one that has run out meanwhile is no error."""
        lease = self.lease(namespace, keys, ttl_seconds=ttl_seconds, owner=owner)
        try:
            yield lease
        finally:
            try:
                self.release(lease.lease_id)
            except Problem as problem:
                if problem.code != "lease_not_found":
                    raise

    # -- namespaces -----------------------------------------------------------------------------------------------

    def namespaces(self) -> list[Document]:
        return self._run(control_calls.namespaces_call())

    def namespace(self, namespace: str) -> Document | None:
        """Settings and usage; None if there is none of this name."""
        return self._run(control_calls.namespace_call(namespace))

    def set_namespace(self, namespace: str, **settings: Any) -> Document:
        """Make a namespace, or replace all its settings. Raises SchemaConflict, ParametersInvalid."""
        return self._run(control_calls.set_namespace_call(namespace, settings))

    def wipe_namespace(self, namespace: str) -> Document | None:
        """End it with all its entries; what it was, None if there was none."""
        return self._run(control_calls.wipe_namespace_call(namespace))

    def listing(self, namespace: str, *, prefix: bytes = b"", page: int = LISTING_PAGE) -> Iterator[ListedEntry]:
        """All entries, a page at a time. Raises NamespaceNotFound."""
        cursor: str | None = None
        while True:
            found: ListingPage = self.list_page(namespace, prefix=prefix, cursor=cursor, limit=page)
            yield from found.entries
            cursor = found.cursor
            if cursor is None:
                return

    def list_page(
        self, namespace: str, *, prefix: bytes = b"", cursor: str | None = None, limit: int = LISTING_PAGE
    ) -> ListingPage:
        return self._run(control_calls.listing_call(namespace, prefix=prefix, cursor=cursor, limit=limit))

    def mapping(self, namespace: str) -> NamespaceMapping:
        """The namespace as a ``MutableMapping`` of bytes."""
        return NamespaceMapping(self, namespace)

    def status(self) -> Document:
        return self._run(control_calls.status_call())

    # -- how a call is made ---------------------------------------------------------------------------------------

    @property
    def retries(self) -> Retries:
        return self._retries

    def _run(self, call: Call[T]) -> T:
        attempts = Attempts(self._retries, repeatable=call.repeatable)
        while True:
            try:
                with self._pool.take() as connection:
                    answer = connection.exchange(call, self._headers, attempts.timeout_seconds(self._timeout))
                if answer.status in (429, 503):
                    problem = problem_of_answer(answer)
                    if may_succeed_later(problem):
                        raise problem
                return arguments.finish(call, answer)
            except ClientError as error:
                time.sleep(attempts.pause_after(error))
