"""Named maxima (L1). Reaching one is a defined answer, never memory growth."""

from __future__ import annotations

KEY_MAX_BYTES = 1024
NAMESPACE_MAX_CHARS = 128
NAMESPACES_MAX = 4096
# 4096 namespaces x (128 name + about 80 of settings) = 0.8 MiB of catalogue per copy.

SCHEMAS_MAX_BYTES = 256 * 1024
"""Of the catalogue's 1 MiB for namespaces; 2 KiB each at most, so that 3072 others keep their 256 bytes."""
NAMESPACES_WIPED_MAX = 65536
"""Wiped namespaces remembered until no copy speaks of them any more: 100 B each, 6.5 MB."""
TTL_MAX_SECONDS = 2**31 - 1
"""68 years, the largest age HTTP caches must understand (RFC 9111, 1.2.2). Expiries are 32-bit seconds since 1970: a
put until 2038 may ask for as much."""

IMPORTS_MAX = 4
IMPORT_KEYS_MAX = 8_000_000
"""Keys of all parts of one import together, about 80 B each besides their own bytes: 640 MB."""
IMPORT_KEY_BYTES_MAX = 512 << 20
SNAPSHOTS_MAX = 8
"""Each copies the rows of its namespace: 73 B an entry, so at most eight times the index."""
LEASES_MAX = 4096
LEASED_ENTRIES_MAX = 262_144
"""Entries held by leases, about 300 B each: 80 MB."""
LEASED_SHARE_MAX = 0.25
"""Share of the device's slots that leases may hold."""
LEASE_MAX_SECONDS = 3600.0
HOLDER_MAX_CHARS = 128

CHUNK_BYTES = 64 * 1024
"""Payload bytes under one checksum of the record header: a range verifies at most twice this more than it sends."""

METADATA_MAX_BYTES = 8 * 1024
"""Content type plus client metadata of one entry, names and values together."""
METADATA_MAX_ITEMS = 64

SLAB_MIN_BYTES = 1 << 20
SLAB_MAX_BYTES = 64 << 20

HEADER_MAX_BYTES = 16 * 1024
# 128 fixed + 4 B x 1028 chunks of a 64.25 MiB slot (4112) + key 1024 + metadata 8192 + 64 x 6 B of msgpack heads
# + parts 1952 + 200 B for the other fields = 15,992, rounded up.

TRANSFER_MAX_BYTES = 1 << 20
"""Largest single I/O of the value path: 1 MiB at depth 1 has the device's full bandwidth; a huge page holds two."""

WRITE_ID_START_BITS = 22
WRITE_ID_COUNTER_BITS = 42
# 2^22 starts: one every 5 s for 242 days. 2^42 puts within one start: 100,000 a second for 509 days;
# then puts are refused until a restart.

COPIES_MIN = 2
COPIES_MAX = 8
JOURNAL_MIN_BLOCKS = 4096

SKIPPED_LISTED_MAX = 1_000_000
"""Skipped entries kept in the report, 96 B each in memory while partial: 96 MB. Counts stay exact beyond it."""
