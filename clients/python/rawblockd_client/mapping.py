"""A namespace as a mapping of the standard library."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from rawblockd_client.models import key_bytes

if TYPE_CHECKING:
    from rawblockd_client.client import Client


class NamespaceMapping(MutableMapping[bytes, bytes]):
    """Keys are bytes, or text that stands for its UTF-8; values are bytes. ``len`` asks the daemon's count.

    Iterating is a listing: complete for entries that are there throughout. The daemon is a cache, so a key that was
    set may be gone at any time.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    def __getitem__(self, key: Any) -> bytes:
        value = self._client.get(self._namespace, key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: bytes) -> None:
        self._client.put(self._namespace, key, value)

    def __delitem__(self, key: Any) -> None:
        if not self._client.delete(self._namespace, key):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, (bytes, str)) and bool(key) and self._client.exists(self._namespace, key_bytes(key))

    def __iter__(self) -> Iterator[bytes]:
        if self._client.namespace(self._namespace) is not None:
            for entry in self._client.listing(self._namespace):
                yield entry.key

    def __len__(self) -> int:
        document = self._client.namespace(self._namespace)
        return 0 if document is None else int(document["entries"])

    def clear(self) -> None:
        """Delete every entry; settings of the namespace stay."""
        keys = list(self)
        for at in range(0, len(keys), 10_000):
            self._client.mdelete(self._namespace, keys[at : at + 10_000])
