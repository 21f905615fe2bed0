"""Requests that are a list of keys and a few fields: ``:mget``, ``:mdelete``, ``:exists``, ``:lease``."""

from __future__ import annotations

from typing import Any

from msgpack import OutOfData, Unpacker

from api.batch.body import read_whole
from api.batch.fields import Fields
from api.batch.forms import Form, form_of_body, key_from_json, parse_json
from api.batch.memory import MemoryShare
from api.errors import BatchTooLarge, BodyInvalid
from api.limits import BATCH_ENTRIES_MAX, BATCH_KEYS_BODY_MAX_BYTES, JSON_BODY_MAX_BYTES
from api.value_request import ValueRequest

_FIELDS_MAX = 16
_LISTS = frozenset({"parts"})
"""Fields that are a list of a few texts."""
_LIST_MAX = 64


async def read_keys(
    request: ValueRequest, allowed: frozenset[str], share: MemoryShare
) -> tuple[Form, list[bytes], Fields]:
    """The form, the keys and the other fields of a request.

    Keys may be of any length: one that is none gets its own result. Raises MediaTypeUnsupported, BatchTooLarge,
    BodyInvalid, ParameterInvalid, Busy, BodyTimeout, ClientGone.
    """
    form = form_of_body(request)
    if form is Form.MSGPACK:
        keys, found = parse_msgpack(await read_whole(request, BATCH_KEYS_BODY_MAX_BYTES, share))
    else:
        found = parse_json(await read_whole(request, JSON_BODY_MAX_BYTES, share))
        keys = _keys_of_json(found.pop("keys", None))
    if keys is None:
        raise BodyInvalid("keys are missing")
    return form, keys, Fields(found, allowed)


def parse_msgpack(body: bytes) -> tuple[list[bytes] | None, dict[str, Any]]:
    """The one map of a body: its keys and its other fields, which are scalars or short lists of them.

    It is taken apart by hand so that nothing in it can grow: any other container is refused unread. Raises BodyInvalid,
    BatchTooLarge.
    """
    unpacker = Unpacker(
        max_buffer_size=max(len(body), 1), max_array_len=0, max_map_len=0, unicode_errors="surrogateescape"
    )
    unpacker.feed(body)
    keys: list[bytes] | None = None
    found: dict[str, Any] = {}
    try:
        count = unpacker.read_map_header()
        if count > _FIELDS_MAX:
            raise BodyInvalid(f"a map of {count} fields")
        for _ in range(count):
            name = unpacker.unpack()
            if type(name) is not str or name in found or (name == "keys" and keys is not None):
                raise BodyInvalid("the name of a field is not text or stands twice")
            if name == "keys":
                keys = _read_array(unpacker)
            else:
                found[name] = _read_list(unpacker) if name in _LISTS else unpacker.unpack()
    except OutOfData:
        raise BodyInvalid("the body ends within its map") from None
    except (ValueError, TypeError) as error:
        raise BodyInvalid(f"not valid here: {str(error)[:100]}") from None
    if unpacker.tell() != len(body):
        raise BodyInvalid("something follows the map")
    return keys, found


def _read_array(unpacker: Any) -> list[bytes]:
    count = unpacker.read_array_header()
    if count > BATCH_ENTRIES_MAX:
        raise _too_many(count)
    keys = [unpacker.unpack() for _ in range(count)]
    for index, key in enumerate(keys):
        if type(key) is not bytes:
            raise BodyInvalid(f"keys[{index}] is not binary")
    return keys


def _read_list(unpacker: Any) -> list[Any]:
    count = unpacker.read_array_header()
    if count > _LIST_MAX:
        raise BodyInvalid(f"a list of {count}")
    return [unpacker.unpack() for _ in range(count)]


def _keys_of_json(found: object) -> list[bytes] | None:
    if found is None:
        return None
    if type(found) is not list:
        raise BodyInvalid("keys is not a list")
    if len(found) > BATCH_ENTRIES_MAX:
        raise _too_many(len(found))
    return [key_from_json(key, f"keys[{index}]") for index, key in enumerate(found)]


def _too_many(count: int) -> BatchTooLarge:
    return BatchTooLarge(f"{count} keys; one batch has up to {BATCH_ENTRIES_MAX}", max_entries=BATCH_ENTRIES_MAX)
