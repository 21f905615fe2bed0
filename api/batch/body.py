"""The whole body of a batch request, of bounded size."""

from __future__ import annotations

from api.batch.memory import MemoryShare
from api.errors import BatchTooLarge
from api.value_request import ValueRequest


async def read_whole(request: ValueRequest, limit_bytes: int, share: MemoryShare) -> bytes:
    """At most ``limit_bytes``. Raises BatchTooLarge, Busy, BodyTimeout, ClientGone."""
    check_declared(request, limit_bytes)
    receive = request.exchange.receive
    parts: list[bytes] = []
    size_bytes = 0
    while data := await receive():
        size_bytes += len(data)
        if size_bytes > limit_bytes:
            raise _too_large(limit_bytes)
        share.take(len(data))
        parts.append(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def check_declared(request: ValueRequest, limit_bytes: int) -> None:
    """Refuse a body that is too large by its own account before the first byte of it. Raises BatchTooLarge."""
    declared = request.fields.get(b"content-length", b"0")
    if not declared.isdigit() or len(declared) > 20 or int(declared) > limit_bytes:
        raise _too_large(limit_bytes)


def _too_large(limit_bytes: int) -> BatchTooLarge:
    return BatchTooLarge(f"this body may have {limit_bytes} bytes", max_body_bytes=limit_bytes)
