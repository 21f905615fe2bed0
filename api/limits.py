"""Named maxima of the HTTP layer (L1). Reaching one is a defined answer, never memory growth."""

from __future__ import annotations

from storage.limits import KEY_MAX_BYTES, SLAB_MAX_BYTES, TTL_MAX_SECONDS

__all__ = ["TTL_MAX_SECONDS"]

SEND_MAX_BYTES = 256 * 1024
"""Largest body message of an answer that comes in several pieces. A client that doesn't take one of them within the
send timeout is stalled, so with 30 s the slowest client served has 8 KiB/s. Smaller messages cost throughput."""

TRICKLE_BYTES = 64 * 1024
"""What a client must send of a body within each body timeout (or all of it, if it is smaller): with 30 s the slowest
upload served has 2 KiB/s. Without it, a byte now and then would hold a slot and a buffer for ever."""

LINGER_MAX_BYTES = SLAB_MAX_BYTES
LINGER_MAX_SECONDS = 5.0
"""How much of an unread body, and for how long, is thrown away behind an error answer before the connection is closed:
closing at once would reset the connection, and the client might never see the answer. No value exceeds a slab."""

ETAGS_MAX = 64
"""Entity tags in one condition."""

SKIPPED_PAGE_MAX = 1000
"""Skipped entries in one page of the recovery report."""

BATCH_ENTRIES_MAX = 10_000
"""Keys or entries in one batch."""
BATCH_HEAD_MAX_BYTES = 16 * 1024
"""The map before a value in a batch put: 1 KiB of key, 8 KiB of metadata, the names of the fields, and room."""
BATCH_KEYS_BODY_MAX_BYTES = BATCH_ENTRIES_MAX * (KEY_MAX_BYTES + 3) + BATCH_HEAD_MAX_BYTES
"""Body of a batch that has keys alone: the most keys, each as long as can be and with a head of 3 bytes."""
BATCH_SKIPPED_MAX_BYTES = 1 << 30
"""Bytes of values that one batch put throws away because their entries were refused."""
BATCH_MEMORY_BYTES = 128 << 20
"""What the batches under way may hold together besides the engine's buffers: bodies of keys, bodies in JSON, and
``BATCH_ENTRY_BYTES`` for each entry of a batch put. Beyond it: 503 ``busy``."""
BATCH_ENTRY_BYTES = 2048
BATCH_SLICE_KEYS = 512
"""Keys looked up in one go (1 ms, and 3 ms under a lease); then others have a turn of the loop."""

JSON_BODY_MAX_BYTES = 1 << 20
"""Parsed, a malicious body takes sixty times its size, and the loop 20 ms."""
JSON_ANSWER_MAX_BYTES = 4 << 20
"""Values in one answer in JSON, as text; msgpack has no such bound."""

CONTROL_BODY_MAX_BYTES = 64 * 1024
"""Body of an operator's request."""

BATCH_WAIT_MAX_SECONDS = 15.0
"""How long the entries of one batch put that get no room may have waited for it together; then the rest is refused at
once. A batch holds the slots of its entries until its end, so one that is too large for the device waits in vain."""

BATCH_SEND_BYTES = 512 * 1024
"""How much of a batch's answer is gathered before it is sent: 64 values of 4 KiB go out in one piece, with a length."""

PROMPT_SEND_SECONDS = 0.05
"""How long what was read ahead for a batch is kept while the client takes its time over an answer."""

LISTING_MAX = 1000
LISTING_DEFAULT = 100
"""Entries in one page of a listing."""

LEASE_ID_MAX_CHARS = 64
"""Longer text is no id of ours."""

IMPORT_CHUNK_KEYS_MAX = 10_000
IMPORT_CHUNK_MAX_BYTES = 4 << 20
"""Rows of one chunk of a part; a chunk of a single row may have a larger one."""
IMPORT_MEMORY_BYTES = 128 << 20
"""What the chunks under way may take together. Beyond it: 503 ``busy``."""
IMPORT_COMMIT_WAIT_MAX_SECONDS = 25
"""How long a commit is waited for before it is answered 202: below what proxies allow for an answer."""
IMPORT_OUTCOMES_MAX = 64
"""Outcomes of commits that are remembered for those who ask later, less than 4 KiB each."""

EXPORT_NUMBER_MAX = (1 << 53) - 1
"""Largest position and seq in a query: larger ones are not exact in JSON."""
