"""Client of rawblockd, a persistent key-value cache on a raw block device.

``Client`` needs nothing but the standard library. ``rawblockd_client.aio.AsyncClient`` has the same calls on aiohttp
(extra ``async``); ``rawblockd_client.table.EmbeddingTable`` keeps embedding rows (extra ``numpy``).
"""

from __future__ import annotations

from rawblockd_client.client import Client
from rawblockd_client.errors import (
    AnswerInvalid,
    BufferTooSmall,
    ClientClosed,
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    Problem,
)
from rawblockd_client.mapping import NamespaceMapping
from rawblockd_client.models import (
    Entry,
    EntryInfo,
    Lease,
    ListedEntry,
    ListingPage,
    Part,
    PartData,
    Presence,
    PutItem,
    PutResult,
)
from rawblockd_client.retries import NO_RETRIES, Retries
from rawblockd_client.version import VERSION

__version__ = VERSION

__all__ = [
    "NO_RETRIES",
    "AnswerInvalid",
    "BufferTooSmall",
    "Client",
    "ClientClosed",
    "ClientError",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Entry",
    "EntryInfo",
    "Lease",
    "ListedEntry",
    "ListingPage",
    "NamespaceMapping",
    "Part",
    "PartData",
    "Presence",
    "Problem",
    "PutItem",
    "PutResult",
    "Retries",
]
