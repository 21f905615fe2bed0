"""``:mget``: many values in one answer, sent as they are read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing

from api.batch.answer_stream import AnswerStream
from api.batch.answers import answer_lines, send_results
from api.batch.forms import Form, form_of_answer, to_base64
from api.batch.keys import read_keys
from api.batch.memory import BatchMemory
from api.batch.packing import MISS, hit_result, pack, pack_bin_head, pack_hit
from api.batch.results import Result, failure
from api.engine_face import EntryReader
from api.errors import BatchTooLarge
from api.exchange import Body
from api.limits import BATCH_SEND_BYTES, JSON_ANSWER_MAX_BYTES
from api.parameters import read_lease, read_parameters
from api.parts import Bounds, read_names, select_parts
from api.value_request import ValueRequest
from api.value_windows import copy_window, window_stop
from storage.entries import EntryInfo
from storage.errors import EntryNotFound, RawblockdError

_PARAMETERS = frozenset({"lease"})
_FIELDS = frozenset({"parts", "stop_at_first_miss"})
_SEND_BYTES = 64 * 1024
"""Less than this is copied and waits for more, rather than be sent while it lies in the engine's memory."""
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
        self._over = False
        """The answer has its end."""

    def _note(self, *, hit: bool) -> bool:
        """Count the result of the next key. False if it ends the batch."""
        if hit:
            if self._hits == self._done:
                self._leading_hits += 1
            self._hits += 1
        self._done += 1
        return hit or not self._stop

    def _open(self) -> AsyncGenerator[Sequence[EntryReader | RawblockdError], None]:
        """Read the keys that are left."""
        request = self._request
        keys = self._keys[self._done :]
        return request.engine.open_many(request.namespace, keys, lease_id=self._lease_id, until_error=self._stop)

    @property
    def _end(self) -> Result:
        return {"hits": self._hits, "leading_hits": self._leading_hits}

    # -- msgpack --------------------------------------------------------------------------------------------------

    async def answer_msgpack(self) -> int:
        stream = AnswerStream(self._request, answer_lines(Form.MSGPACK))
        while not self._over:
            await self._read_ahead(stream)
            await stream.sent()
        return 200

    async def _read_ahead(self, stream: AnswerStream) -> None:
        """Answer the keys that are left, reading ahead, and end the answer behind the last.

        Returns early when the client doesn't take what was sent: while it is waited for, nothing is held for it but
        copies, and what was read ahead is read again.
        """
        try:
            opened = self._open()
            async with aclosing(opened):
                async for some in opened:
                    if not await self._send(stream, some, opened.aclose) or self._over:
                        return
        except RawblockdError as error:
            if not self._done:
                raise
            self._fail_rest(stream, error)
        self._end_answer(stream)

    async def _send(
        self, stream: AnswerStream, some: Sequence[EntryReader | RawblockdError], release: Callable[[], Awaitable[None]]
    ) -> bool:
        """Send the results of some keys, values straight from the engine's memory. Whether the client has kept up."""
        prompt = goes_on = True
        pieces: list[Body] = []
        size_bytes = 0
        for found in some:
            result = _pieces_of(found, self._names)
            if result is not None:
                pieces += result
                size_bytes += len(result[-1])
                hit = len(result) > 1
            else:
                stream.add(pieces)
                pieces = []
                hit, prompt = await _send_value(stream, found, self._names, release)
            goes_on = self._note(hit=hit)
            if size_bytes >= BATCH_SEND_BYTES:
                stream.add(pieces)
                pieces, size_bytes = [], 0
                prompt = await stream.send_promptly() and prompt
            if not (prompt and goes_on):
                break
        stream.add(pieces)
        if not goes_on or self._done == len(self._keys):
            self._end_answer(stream)
        elif prompt and stream.size_bytes >= _SEND_BYTES:
            prompt = await stream.send_promptly()
        else:
            stream.keep()
        return prompt

    def _end_answer(self, stream: AnswerStream) -> None:
        self._over = True
        stream.pending += pack({"end": True, "results": self._done, **self._end})
        stream.end()

    def _fail_rest(self, stream: AnswerStream, error: RawblockdError) -> None:
        """Nothing more can be read (the lease has come to its end): the keys that are left have this result."""
        packed = pack(failure(error))
        for _ in range(len(self._keys) - self._done):
            stream.pending += packed
            if not self._note(hit=False):
                return

    # -- JSON -----------------------------------------------------------------------------------------------------

    async def answer_json(self) -> int:
        request = self._request
        results: list[Result] = []
        left_bytes = JSON_ANSWER_MAX_BYTES
        opened = self._open()
        async with aclosing(opened):
            async for some in opened:
                for found in some:
                    if isinstance(found, RawblockdError):
                        result = failure(found)
                    else:
                        result, used_bytes = await _value_in_json(found, self._names, left_bytes)
                        left_bytes -= used_bytes
                    results.append(result)
                    if not self._note(hit=result["status"] == 200):
                        return send_results(request, Form.JSON, results, self._end)
        return send_results(request, Form.JSON, results, self._end)


def _pieces_of(found: EntryReader | RawblockdError, names: tuple[str, ...] | None) -> tuple[Body, ...] | None:
    """What is sent for a key: a head and a value, or why there is none; None where there is more to it."""
    if isinstance(found, RawblockdError):
        return (MISS if type(found) is EntryNotFound else pack(failure(found)),)
    info = found.info
    value = found.whole(0, info.payload_bytes) if names is None else None
    return None if value is None else (pack_hit(info) + pack_bin_head(info.payload_bytes), value)


async def _send_value(
    stream: AnswerStream,
    reader: EntryReader | RawblockdError,
    names: tuple[str, ...] | None,
    release: Callable[[], Awaitable[None]],
) -> tuple[bool, bool]:
    """Write a value, or why it can't be read. Whether it is whole, and whether the client has kept up.

    ``release`` gives back what was read ahead: it is called before a client that does not keep up is waited for.
    """
    assert not isinstance(reader, RawblockdError)
    prompt = True
    begun = False
    try:
        info, places = _chosen(reader.info, names)
        size = info.payload_bytes
        if window_stop(reader, 0, size) == size:
            await _write_whole(stream, reader, info, places)
            return True, True
        for start, stop in _windows(reader, places):
            data = await copy_window(reader, start, stop)
            if not begun:
                begun = True
                stream.pending += pack_hit(info)
            stream.pending += pack_bin_head(len(data))
            stream.pending += data
            if stream.is_full and not await stream.send_promptly():
                prompt = False
                reader.keep()
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


def _windows(reader: EntryReader, places: Sequence[Bounds]) -> Iterator[Bounds]:
    for first, stop in places:
        at = first
        while at < stop:
            start, at = at, window_stop(reader, at, stop)
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
