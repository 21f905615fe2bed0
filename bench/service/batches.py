"""Complete batch requests for the load generator."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgpack

from bench.service.generator.running import Requests, write_canned
from bench.service.work import Work

CANNED_BYTES = 32 << 20
"""About how large a file of requests gets: more than the caches hold."""
CANNED_MAX = 512


def requests_file(folder: Path, work: Work, keys: int, path: str) -> Requests:
    """Requests of ``work.values`` values each, of keys drawn without repetition within a request."""
    file = folder / f"{work.operation}-{work.values}-{work.size}.requests"
    count = CANNED_MAX
    if work.operation == "mput":
        count = max(8, min(CANNED_MAX, CANNED_BYTES // (work.size * work.values)))
    rng = random.Random(1)
    bodies = (body(work, rng.sample(range(keys), work.values), rng) for _ in range(count))
    write_canned(file, (with_head(path, work.operation, item) for item in bodies))
    reads = work.operation == "mget"
    return Requests(canned=file, values=work.values, read="x" if reads else "", write="" if reads else "x")


def body(work: Work, keys: list[int], rng: random.Random) -> bytes:
    names = [b"%08x" % key for key in keys]
    if work.operation == "mget":
        return bytes(msgpack.packb({"keys": names}))
    return put_body([(name, rng.randbytes(work.size)) for name in names])


def put_body(pairs: list[tuple[bytes, bytes]]) -> bytes:
    parts = [msgpack.packb({"entries": len(pairs)})]
    parts += [msgpack.packb({"key": key}) + msgpack.packb(value) for key, value in pairs]
    return b"".join(parts)


def with_head(path: str, verb: str, content: bytes) -> bytes:
    head = f"POST {path}:{verb} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/msgpack\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def many_puts(keys: int, values: int, value: bytes) -> Iterator[bytes]:
    """Bodies that put so many keys one after the other, ``values`` in each."""
    for begin in range(0, keys, values):
        yield put_body([(b"%08x" % key, value) for key in range(begin, min(begin + values, keys))])
