"""The one record that says what a table is: its parts, and where its buckets are.

A table's rows are those of the buckets of its present generation: exchanging the generation, by compare-and-swap of
this record, replaces all rows at once.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, replace
from typing import Any

from rawblockd_client.client import Client
from rawblockd_client.errors import ConnectionFailed, DeadlineExceeded
from rawblockd_client.models import EntryInfo
from rawblockd_client.problems import FlushFailed, PreconditionFailed
from rawblockd_client.table.columns import Column, check_columns, column_of
from rawblockd_client.table.errors import BucketInvalid

FORMAT = "rawblockd-table-1"
BUCKETS_MAX = 1 << 31


@dataclass(frozen=True)
class Descriptor:
    columns: tuple[Column, ...]
    filter_freq: int
    bucket_bytes: int
    generation: int
    buckets: int
    etag: str | None = None

    def document(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "parts": [column.document() for column in self.columns],
            "filter_freq": self.filter_freq,
            "bucket_bytes": self.bucket_bytes,
            "generation": f"{self.generation:016x}",
            "buckets": self.buckets,
        }


def draw_generation() -> int:
    """One that nobody has drawn before."""
    return secrets.randbits(64) or 1


class DescriptorRecord:
    """The record under its key."""

    def __init__(self, client: Client, namespace: str, table: str, durability: str | None) -> None:
        self._client = client
        self._namespace = namespace
        self._key = f"{table}/table"
        self._durability = durability

    def read(self) -> Descriptor | None:
        """None if there is none. Raises BucketInvalid for a record of something else."""
        entry = self._client.get_entry(self._namespace, self._key)
        return None if entry is None else _decode(bytes(entry.value), entry.info)

    def write(self, descriptor: Descriptor) -> Descriptor | None:
        """Put it in place of the one it was made from; None if that isn't the present one any more."""
        body = json.dumps(descriptor.document(), sort_keys=True, separators=(",", ":")).encode()
        try:
            result = self._client.put(
                self._namespace,
                self._key,
                body,
                content_type="application/json",
                ttl="none",
                if_match=descriptor.etag,
                if_absent=descriptor.etag is None,
                durability=self._durability,
            )
        except PreconditionFailed:
            return None
        except (ConnectionFailed, DeadlineExceeded, FlushFailed):
            # It may be in effect all the same.
            present = self.read()
            if present is not None and replace(present, etag=descriptor.etag) == descriptor:
                return present
            raise
        return replace(descriptor, etag=result.etag)


def _decode(body: bytes, info: EntryInfo) -> Descriptor:
    try:
        found = json.loads(body)
        if found["format"] != FORMAT:
            raise BucketInvalid(f"this is no table but {str(found['format'])[:40]!r}")
        columns = check_columns([column_of(document) for document in found["parts"]])
        generation, buckets = int(found["generation"], 16), int(found["buckets"])
        if not 1 <= buckets <= BUCKETS_MAX:
            raise BucketInvalid(f"a table of {buckets} buckets")
        return Descriptor(
            columns, int(found["filter_freq"]), int(found["bucket_bytes"]), generation, buckets, info.etag
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BucketInvalid(f"the record of the table: {error}") from None
