"""``:mput``: many values in one body, written as they arrive, published together by one journal commit."""

from __future__ import annotations

from typing import Any

from api.batch.answers import send_results
from api.batch.body import check_declared, read_whole
from api.batch.entries import PLAIN, BatchOptions, EntryFields, read_entry, read_options
from api.batch.forms import Form, checked_map, form_of_answer, form_of_body, from_base64, key_from_json, parse_json
from api.batch.memory import BatchMemory, MemoryShare
from api.batch.msgpack_reader import MsgpackReader, OddMap
from api.batch.upload import NextPiece, Upload
from api.errors import BatchTooLarge, BodyInvalid
from api.limits import (
    BATCH_ENTRIES_MAX,
    BATCH_ENTRY_BYTES,
    BATCH_HEAD_MAX_BYTES,
    BATCH_SKIPPED_MAX_BYTES,
    JSON_BODY_MAX_BYTES,
)
from api.parameters import read_parameters
from api.value_request import ValueRequest
from storage.errors import MetadataInvalid, ParameterInvalid, RawblockdError

_NO_PARAMETERS: frozenset[str] = frozenset()
_NOTHING = memoryview(b"")
_BIN_HEAD_BYTES = 5


async def answer_mput(request: ValueRequest, memory: BatchMemory) -> int:
    """Answer 200 with a result for each entry.

    Nothing is published before the whole body has arrived and was understood. Raises MediaTypeUnsupported,
    BatchTooLarge, BodyInvalid, ParameterInvalid (of the options), Busy, BodyTimeout and ClientGone; then nothing is.
    """
    read_parameters(request.query, _NO_PARAMETERS)
    form = form_of_body(request)
    with memory.share() as share:
        upload = Upload(request)
        try:
            await (_take_msgpack if form is Form.MSGPACK else _take_json)(request, upload, share)
            results = await upload.commit()
        finally:
            # Also when the task is cancelled: no slot and no buffer may stay behind.
            upload.abort()
        stored = sum(result["status"] in (201, 204) for result in results)
        return send_results(request, form_of_answer(request, form), results, {"stored": stored})


# -- msgpack ------------------------------------------------------------------------------------------------------


async def _take_msgpack(request: ValueRequest, upload: Upload, share: MemoryShare) -> None:
    heads_bytes = (BATCH_ENTRIES_MAX + 1) * (BATCH_HEAD_MAX_BYTES + _BIN_HEAD_BYTES)
    check_declared(request, request.engine.max_batch_bytes + BATCH_SKIPPED_MAX_BYTES + heads_bytes)
    reader = MsgpackReader(request.exchange.receive, BATCH_HEAD_MAX_BYTES)
    options = read_options(checked_map(await reader.next_map(), "the first object"))
    upload.options = options
    skipped_bytes = 0
    while True:
        plain = reader.plain_entry_now()
        head = await reader.next_map() if plain is None else None
        if plain is None and head is None:
            break
        if upload.entries == BATCH_ENTRIES_MAX:
            raise _too_many()
        share.take(BATCH_ENTRY_BYTES)
        if plain is not None:
            skipped = upload.take_now(*plain)
            skipped_bytes += await _take_plain(upload, *plain) if skipped is None else skipped
        elif head is not None:
            size_bytes = await reader.next_bin()
            value = _Value(reader, size_bytes)
            await _take_entry(upload, head, size_bytes, value.next)
            skipped_bytes += value.left_bytes
            await value.skip()
        if skipped_bytes > BATCH_SKIPPED_MAX_BYTES:
            raise BatchTooLarge("the values of entries that were refused are too large together")
    _check_count(options, upload)


async def _take_plain(upload: Upload, key: bytes, value: memoryview) -> int:
    """Take an entry that is there whole, but has something to wait for; the bytes of its value that were not taken."""
    whole = _Whole(value)
    await upload.take(key, PLAIN, len(value), whole.next)
    return whole.left_bytes


class _Value:
    """The value under way, piece by piece."""

    def __init__(self, reader: MsgpackReader, size_bytes: int) -> None:
        self._reader = reader
        self.left_bytes = size_bytes

    async def next(self) -> memoryview:
        if not self.left_bytes:
            return _NOTHING
        piece = await self._reader.read(self.left_bytes)
        self.left_bytes -= len(piece)
        return piece

    async def skip(self) -> None:
        while await self.next():
            pass


async def _take_entry(upload: Upload, head: dict[str, Any] | OddMap, size_bytes: int, next_piece: NextPiece) -> None:
    """Whatever is wrong with an entry is its own result: the stream goes on behind its value."""
    if isinstance(head, OddMap):
        upload.refuse(None, ParameterInvalid(head.detail, parameter=""))
        return
    key = head.get("key")
    if type(key) is not bytes:
        upload.refuse(None, ParameterInvalid("field key is missing or is not binary", parameter="key"))
        return
    try:
        fields = read_entry(head)
    except RawblockdError as error:
        upload.refuse(key, error)
        return
    await upload.take(key, fields, size_bytes, next_piece)


def _check_count(options: BatchOptions, upload: Upload) -> None:
    if options.entries is not None and options.entries != upload.entries:
        raise BodyInvalid(f"{upload.entries} entries came of {options.entries}")


# -- JSON ---------------------------------------------------------------------------------------------------------


async def _take_json(request: ValueRequest, upload: Upload, share: MemoryShare) -> None:
    """What is wrong with the form of an entry refuses the request: a body that is there whole can be checked whole."""
    found = parse_json(await read_whole(request, JSON_BODY_MAX_BYTES, share))
    listed = found.pop("entries", None)
    upload.options = read_options(found, counted=False)
    if type(listed) is not list:
        raise BodyInvalid("entries is missing or is not a list")
    if len(listed) > BATCH_ENTRIES_MAX:
        raise _too_many()
    share.take(len(listed) * BATCH_ENTRY_BYTES)
    entries = [_entry_of_json(entry, f"entries[{index}]") for index, entry in enumerate(listed)]
    for key, value, fields in entries:
        if isinstance(fields, RawblockdError):
            upload.refuse(key, fields)
        else:
            await upload.take(key, fields, len(value), _Whole(value).next)


class _Whole:
    """A value that is there already, as one piece."""

    def __init__(self, value: bytes | memoryview) -> None:
        self._rest = memoryview(value)

    @property
    def left_bytes(self) -> int:
        return len(self._rest)

    async def next(self) -> memoryview:
        piece, self._rest = self._rest, _NOTHING
        return piece


def _entry_of_json(entry: object, place: str) -> tuple[bytes, bytes, EntryFields | RawblockdError]:
    found = checked_map(entry, place)
    key = key_from_json(found.get("key"), f"{place}.key")
    value = from_base64(found.pop("value", None), f"{place}.value")
    try:
        return key, value, read_entry(found, f"{place}.")
    except MetadataInvalid as error:
        return key, value, error


def _too_many() -> BatchTooLarge:
    return BatchTooLarge(f"one batch has up to {BATCH_ENTRIES_MAX} entries", max_entries=BATCH_ENTRIES_MAX)
