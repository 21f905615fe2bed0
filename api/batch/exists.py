"""``:exists`` and ``:lease``: which of many keys are there, and holding those that are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from api.batch.answers import send_document
from api.batch.fields import Fields
from api.batch.forms import Form, form_of_answer
from api.batch.keys import read_keys
from api.batch.memory import BatchMemory
from api.limits import BATCH_SLICE_KEYS, LEASE_ID_MAX_CHARS
from api.parameters import read_parameters
from api.value_request import ValueRequest
from storage.entries import EntrySketch
from storage.errors import KeyInvalid, ParameterInvalid, RawblockdError
from storage.keys import check_key
from storage.leases import LeaseView
from storage.limits import HOLDER_MAX_CHARS, LEASE_MAX_SECONDS

_NO_PARAMETERS: frozenset[str] = frozenset()
_EXISTS_PARAMETERS = frozenset({"lease"})
_EXISTS_FIELDS = frozenset({"sizes"})
_LEASE_FIELDS = frozenset({"ttl_seconds", "owner", "lease"})
_TTL_MAX_SECONDS = int(LEASE_MAX_SECONDS)

Found = Sequence[EntrySketch | RawblockdError | None]


@dataclass(frozen=True, slots=True)
class _LeaseWish:
    ttl_seconds: int
    owner: str = ""
    lease_id: str = ""


async def answer_exists(request: ValueRequest, memory: BatchMemory) -> int:
    """Answer 200 with a bitmap. Raises what ``read_keys`` raises; with a lease, LeasesFull and SpaceHeld."""
    wish = _lease_of_query(read_parameters(request.query, _EXISTS_PARAMETERS))
    with memory.share() as share:
        form, keys, fields = await read_keys(request, _EXISTS_FIELDS, share)
        answered = form_of_answer(request, form)
        found, lease = await _look(request, keys, wish)
        document = _presence(found, answered)
        if fields.flag("sizes"):
            document["sizes"] = [sketch.payload_bytes if isinstance(sketch, EntrySketch) else None for sketch in found]
        if lease is not None:
            document |= {"lease": lease.lease_id, "expires_in_seconds": lease.expires_in_seconds}
        return send_document(request, answered, document)


async def answer_lease(request: ValueRequest, memory: BatchMemory) -> int:
    """Answer 200 with the lease. Raises what ``read_keys`` raises, LeaseNotFound, LeasesFull and SpaceHeld."""
    read_parameters(request.query, _NO_PARAMETERS)
    with memory.share() as share:
        form, keys, fields = await read_keys(request, _LEASE_FIELDS, share)
        answered = form_of_answer(request, form)
        found, lease = await _look(request, keys, _lease_of_fields(fields))
        assert lease is not None
        document = {
            "lease": lease.lease_id,
            "expires_in_seconds": lease.expires_in_seconds,
            "entries": lease.entries,
            "held_bytes": lease.held_bytes,
            **_presence(found, answered),
        }
        return send_document(request, answered, document)


def _lease_of_query(parameters: dict[str, str]) -> _LeaseWish | None:
    text = parameters.get("lease")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= _TTL_MAX_SECONDS):
        raise ParameterInvalid(f"lease is seconds from 1 to {_TTL_MAX_SECONDS}", parameter="lease")
    return _LeaseWish(int(text))


def _lease_of_fields(fields: Fields) -> _LeaseWish:
    ttl_seconds = fields.integer("ttl_seconds", 1, _TTL_MAX_SECONDS)
    if ttl_seconds is None:
        raise fields.refusal("ttl_seconds", "is missing")
    owner = fields.text("owner", HOLDER_MAX_CHARS) or ""
    return _LeaseWish(ttl_seconds, owner, fields.text("lease", LEASE_ID_MAX_CHARS, 1) or "")


async def _look(request: ValueRequest, keys: list[bytes], wish: _LeaseWish | None) -> tuple[Found, LeaseView | None]:
    """What is there of the keys, a slice of them at a time so that others have their turn; held if that is wished for.

    If one slice can't be held, a lease that was made here is given up: the request holds all it found, or nothing.
    """
    found: list[EntrySketch | RawblockdError | None] = []
    lease: LeaseView | None = None
    held = False
    try:
        for at in range(0, max(len(keys), 1), BATCH_SLICE_KEYS):
            if at:
                await asyncio.sleep(0)
            part = keys[at : at + BATCH_SLICE_KEYS]
            if wish is None:
                found += request.engine.exists_many(request.namespace, part)
                continue
            result = request.engine.lease(
                request.namespace,
                part,
                ttl_seconds=wish.ttl_seconds,
                owner=wish.owner,
                lease_id=wish.lease_id if lease is None else lease.lease_id,
            )
            lease = result.lease
            found += map(_named, part, result.held)
        held = True
    finally:
        if lease is not None and not held and wish is not None and not wish.lease_id:
            request.engine.release(lease.lease_id)
    return found, lease


def _named(key: bytes, sketch: EntrySketch | None) -> EntrySketch | RawblockdError | None:
    """A lease doesn't tell a bad key from an absent one."""
    if sketch is None:
        try:
            check_key(key)
        except KeyInvalid as error:
            return error
    return sketch


def _presence(found: Found, form: Form) -> dict[str, Any]:
    """``count``, ``leading_hits`` and ``bitmap``; ``invalid`` are the places of keys that are none."""
    bits = "".join("1" if isinstance(sketch, EntrySketch) else "0" for sketch in found)
    leading_hits = len(bits) - len(bits.lstrip("1"))
    document: dict[str, Any] = {"count": bits.count("1"), "leading_hits": leading_hits}
    if form is Form.JSON:
        document["bitmap"] = bits
    else:
        # Bit i of byte i // 8, least significant first: the text is the number's digits, last one first.
        document["bitmap"] = int(bits[::-1] or "0", 2).to_bytes(-(-len(bits) // 8), "little")
    invalid = [index for index, sketch in enumerate(found) if isinstance(sketch, RawblockdError)]
    if invalid:
        document["invalid"] = invalid
    return document
