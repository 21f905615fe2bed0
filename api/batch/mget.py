"""``:mget``: many values in one answer, sent as they are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing

from api.batch.answer_stream import AnswerStream
from api.batch.answers import answer_headers, send_results
from api.batch.forms import Form, form_of_answer, to_base64
from api.batch.keys import read_keys
from api.batch.memory import BatchMemory
from api.batch.packing import MISS, hit_result, pack, pack_bin_head, pack_hit
from api.batch.results import Result, failure
from api.engine_face import EntryReader
from api.limits import JSON_ANSWER_MAX_BYTES
from api.parameters import read_lease, read_parameters
from api.parts import Bounds, read_names, select_parts
from api.value_request import ValueRequest
from api.value_windows import copy_window, window_stop
from storage.entries import EntryInfo
from storage.errors import BatchTooLarge, EntryNotFound, RawblockdError

_PARAMETERS = frozenset({"lease"})
_FIELDS = frozenset({"parts", "stop_at_first_miss"})
_RESULT_BYTES = 256
"""Of a result in JSON besides value, type and metadata."""


async def answer_mget(request: ValueRequest, memory: BatchMemory) -> int:
    """Answer 200 with a result for each key. Raises what ``read_keys`` raises, LeaseNotFound and ParameterInvalid."""
    parameters = read_parameters(request.query, _PARAMETERS)
    with memory.share() as share:
        form, keys, fields = await read_keys(request, _FIELDS, share)
        names = read_names(fields.get("parts"))
        batch = _BatchRead(request, keys, read_lease(parameters), names, stop=fields.flag("stop_at_first_miss"))
        if form_of_answer(request, form) is Form.JSON:
            return await batch.answer_json()
        return await batch.answer_msgpack()


class _BatchRead:
    def __init__(
        self, request: ValueRequest, keys: list[bytes], lease_id: str, names: tuple[str, ...] | None, *, stop: bool
    ) -> None:
        self._request = request
        self._keys = keys
        self._lease_id = lease_id
        self._names = names
        """The parts to send, None for whole values."""
        self._stop = stop
        self._done = 0
        """Keys whose results are complete."""
        self._hits = 0
        self._leading_hits = 0

    def _note(self, *, hit: bool) -> bool:
        """Count the result of the next key. False if it ends the batch."""
        if hit:
            if self._hits == self._done:
                self._leading_hits += 1
            self._hits += 1
        self._done += 1
        return hit or not self._stop

    @property
    def _end(self) -> Result:
        return {"hits": self._hits, "leading_hits": self._leading_hits}

    # -- msgpack --------------------------------------------------------------------------------------------------

    async def answer_msgpack(self) -> int:
        stream = AnswerStream(self._request, answer_headers(Form.MSGPACK))
        try:
            while await self._read_ahead(stream):
                await stream.sent()
            stream.pending += pack({"end": True, "results": self._done, **self._end})
            await stream.end()
        finally:
            stream.close()
        return 200

    async def _read_ahead(self, stream: AnswerStream) -> bool:
        """Answer the keys that are left, reading ahead; False once the batch has its end.

        Returns early when the client doesn't take what was sent: while it is waited for, nothing is held for it but
        copies, and what was read ahead is read again.
        """
        request = self._request
        opened = request.engine.open_many(request.namespace, self._keys[self._done :], lease_id=self._lease_id)
        try:
            async with aclosing(opened):
                async for _, found in opened:
                    hit, prompt = await self._write(stream, found, opened.aclose)
                    if not self._note(hit=hit):
                        return False
                    if stream.is_full:
                        prompt = await stream.send_promptly() and prompt
                    if not prompt:
                        return True
        except RawblockdError as error:
            if not self._done:
                raise
            self._fail_rest(stream, error)
        return self._done < len(self._keys)

    def _fail_rest(self, stream: AnswerStream, error: RawblockdError) -> None:
        """Nothing more can be read (the lease has come to its end): the keys that are left have this result."""
        packed = pack(failure(error))
        for _ in range(len(self._keys) - self._done):
            stream.pending += packed
            if not self._note(hit=False):
                return

    async def _write(
        self, stream: AnswerStream, found: EntryReader | RawblockdError, release: Callable[[], Awaitable[None]]
    ) -> tuple[bool, bool]:
        if not isinstance(found, RawblockdError):
            return await _send_value(stream, found, self._names, release)
        stream.pending += MISS if type(found) is EntryNotFound else pack(failure(found))
        return False, True

    # -- JSON -----------------------------------------------------------------------------------------------------

    async def answer_json(self) -> int:
        request = self._request
        results: list[Result] = []
        left_bytes = JSON_ANSWER_MAX_BYTES
        opened = request.engine.open_many(request.namespace, self._keys, lease_id=self._lease_id)
        async with aclosing(opened):
            async for _, found in opened:
                if isinstance(found, RawblockdError):
                    result = failure(found)
                else:
                    result, used_bytes = await _value_in_json(found, self._names, left_bytes)
                    left_bytes -= used_bytes
                results.append(result)
                if not self._note(hit=result["status"] == 200):
                    break
        return await send_results(request, Form.JSON, results, self._end)


async def _send_value(
    stream: AnswerStream,
    reader: EntryReader,
    names: tuple[str, ...] | None,
    release: Callable[[], Awaitable[None]],
) -> tuple[bool, bool]:
    """Write a value, or why it can't be read. Whether it is whole, and whether the client has kept up.

    ``release`` gives back what was read ahead: it is called before a client that does not keep up is waited for.
    """
    prompt = True
    begun = False
    try:
        info, places = _chosen(reader.info, names)
        size = info.payload_bytes
        if window_stop(0, size) == size:
            await _write_whole(stream, reader, info, places)
            return True, True
        for start, stop in _windows(places):
            data = await copy_window(reader, start, stop)
            if not begun:
                begun = True
                stream.pending += pack_hit(info)
            stream.pending += pack_bin_head(len(data))
            stream.pending += data
            if stream.is_full and not await stream.send_promptly():
                prompt = False
                await release()
                await stream.sent()
        return True, prompt
    except RawblockdError as error:
        # In place of the value's next piece: what the client has of it is no value.
        stream.pending += pack(failure(error))
        return False, prompt
    finally:
        reader.close()


def _chosen(info: EntryInfo, names: tuple[str, ...] | None) -> tuple[EntryInfo, list[Bounds]]:
    """What is sent of an entry, and where it lies. Raises PartNotFound."""
    return (info, [(0, info.payload_bytes)]) if names is None else select_parts(info, names)


def _windows(places: Sequence[Bounds]) -> Iterator[Bounds]:
    for first, stop in places:
        at = first
        while at < stop:
            start, at = at, window_stop(at, stop)
            yield start, at


async def _write_whole(stream: AnswerStream, reader: EntryReader, info: EntryInfo, places: Sequence[Bounds]) -> None:
    """A value of one piece, straight from the engine's buffer; nothing is written of one that fails."""
    before = len(stream.pending)
    whole = False
    try:
        stream.pending += pack_hit(info) + pack_bin_head(info.payload_bytes)
        for start, stop in places:
            async for piece in reader.pieces(start, stop):
                stream.pending += piece
        whole = True
    finally:
        if not whole:
            del stream.pending[before:]


async def _value_in_json(reader: EntryReader, names: tuple[str, ...] | None, left_bytes: int) -> tuple[Result, int]:
    """The result, and what it takes of the ``left_bytes`` of the answer."""
    try:
        info, places = _chosen(reader.info, names)
        texts = (info.content_type, *(text for item in info.metadata for text in item))
        needed_bytes = _RESULT_BYTES + sum(map(len, texts)) * 2 + info.payload_bytes * 4 // 3
        if needed_bytes > left_bytes:
            error = BatchTooLarge(f"an answer in JSON has up to {JSON_ANSWER_MAX_BYTES} bytes of values")
            return failure(error) | {"size": info.payload_bytes}, 0
        value = bytearray()
        for start, stop in places:
            async for piece in reader.pieces(start, stop):
                value += piece
        return hit_result(info) | {"value": to_base64(value)}, needed_bytes
    except RawblockdError as error:
        return failure(error), 0
    finally:
        reader.close()
