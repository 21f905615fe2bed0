"""Many gets as one, in windows: the records of a window are asked for together, lie side by side in one piece of
memory, are verified in one go and handed out together, while the device reads the next window.

What is not plain (a miss, a large record, a record that does not verify, no memory at hand) is left to the ordinary
read of that key, in its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import TypeAlias

from storage.buffers import HUGE_PAGE_BYTES, Buffer, BufferArena
from storage.commit import Commit
from storage.device.interface import BlockDevice
from storage.device.read_batch import ReadBatch
from storage.entries import EntrySketch
from storage.entry_reader import EntryReader, close_all
from storage.errors import Busy, KeyInvalid, LeaseNotFound, RawblockdError
from storage.format.layout import Undecodable, round_up
from storage.identity import Identity
from storage.index import Index
from storage.keys import check_key
from storage.leases import Held
from storage.namespace_settings import NamespaceSettings
from storage.read_path import ReadPath

WINDOW_READS = 64
WINDOW_BYTES = 4 << 20
WINDOWS_MAX = 2
"""A batch has one window handed out and one ahead of it: the depth that saturates a device, 8 MiB of memory."""

Result: TypeAlias = EntryReader | RawblockdError


class _Window:
    """Reads under way, of consecutive keys. It owns slots and memory of those that were not taken yet; those that were
    are their readers', which release their part of the memory here."""

    __slots__ = (
        "batch",
        "buffers",
        "held",
        "leased",
        "left",
        "namespace",
        "needy",
        "plain",
        "records",
        "settings",
        "taken",
    )

    def __init__(
        self,
        held: list[Held | None],
        namespace: str = "",
        settings: NamespaceSettings | None = None,
        leased: Sequence[Held | None] = (),
    ) -> None:
        self.held = held
        """The row of each key, None where the ordinary read is to be made."""
        self.namespace = namespace
        self.settings = settings
        """Of the keys' namespace, if the reads of those that no lease holds count for their expiry."""
        self.leased = leased
        """What a lease holds of each key."""
        self.needy: set[int] = set()
        """Places of keys whose ordinary reads need memory of their own."""
        self.plain: list[Held] = []
        """What is being read, in order, and in ``records`` where to."""
        self.records: list[memoryview] = []
        self.buffers: list[Buffer] = []
        self.batch: ReadBatch | None = None
        self.taken = 0
        self.left = 0
        """Records whose memory is in use."""

    def release(self) -> None:
        """One more of the records is needed no more."""
        self.left -= 1
        if not self.left:
            for buffer in self.buffers:
                buffer.release()


class BatchReads:
    def __init__(
        self,
        path: ReadPath,
        device: BlockDevice,
        index: Index,
        commit: Commit,
        arena: BufferArena,
        identity: Identity,
    ) -> None:
        self._path = path
        self._device = device
        self._index = index
        self._commit = commit
        self._arena = arena
        self._identity = identity

    # -- without I/O ----------------------------------------------------------------------------------------------

    def sketches(self, namespace: str, keys: Sequence[bytes]) -> list[EntrySketch | RawblockdError | None]:
        """What is known of entries; None where there is none, KeyInvalid for what is no key."""
        known = self._index.namespaces.by_name.get(namespace)
        found = self._find_all(known.namespace_id, keys) if known is not None else [None] * len(keys)
        sketches: list[EntrySketch | RawblockdError | None] = [
            held if held is None else EntrySketch(held[1].write_id, held[1].payload_bytes, held[1].expires_at)
            for held in found
        ]
        for position, key in enumerate(keys):
            try:
                check_key(key)
            except KeyInvalid as error:
                sketches[position] = error
        return sketches

    def find(self, namespace_id: int, key: bytes) -> Held | None:
        """The published, unexpired row of a key."""
        return self._find_all(namespace_id, [key])[0]

    def _find_all(self, namespace_id: int, keys: Sequence[bytes]) -> list[Held | None]:
        found = self._commit.published_many(self._identity.digests(namespace_id, keys))
        is_expired = self._commit.is_expired
        return [None if held is not None and held[1].expires_at and is_expired(held[1]) else held for held in found]

    # -- reads ----------------------------------------------------------------------------------------------------

    def open(
        self,
        namespace: str,
        keys: Sequence[bytes],
        leased: Callable[[bytes], Held | None] | None,
        *,
        until_error: bool = False,
    ) -> AsyncGenerator[list[Result], None]:
        """Readers or errors, some at a time, together one for each key, in order; ``until_error``: up to the first
        error, so that no key behind it counts as looked up. ``leased`` says what a lease holds of a key. A list's
        readers are closed before the next list is asked for, at the latest by that, except those that are kept."""

        def look(first: int, last: int) -> _Window:
            known = self._index.namespaces.by_name.get(namespace)
            wanted = keys[first:last]
            nothing: list[Held | None] = [None] * len(wanted)
            if known is None:
                return _Window(nothing)
            if leased is None:
                return _Window(self._find_all(known.namespace_id, wanted), namespace, known.settings)
            try:
                of_lease = list(map(leased, wanted))
            except LeaseNotFound:  # it ended meanwhile: the keys' own reads say so
                return _Window(nothing)
            found = nothing if all(of_lease) else self._find_all(known.namespace_id, wanted)
            held = [one or other for one, other in zip(of_lease, found, strict=True)]
            return _Window(held, namespace, known.settings, of_lease)

        def read(position: int) -> Awaitable[EntryReader]:
            key = keys[position]
            return self._path.open(namespace, key, leased=leased(key) if leased is not None else None)

        return self._windows(len(keys), look, read, lambda position: keys[position], until_error=until_error)

    async def open_held(self, rows: Iterable[Held]) -> AsyncGenerator[tuple[int, Result], None]:
        """Position and reader or error for each row that somebody holds, in order, whatever became of it in the table.
        A reader is closed before the next one is asked for."""
        held = list(rows)
        windows = self._windows(
            len(held),
            lambda first, last: _Window(list(held[first:last])),
            lambda position: self._path.open_held(held[position]),
            lambda _: None,
        )
        position = 0
        async with aclosing(windows):
            async for results in windows:
                for result in results:
                    yield position, result
                    position += 1

    async def _windows(
        self,
        count: int,
        look: Callable[[int, int], _Window],
        read: Callable[[int], Awaitable[EntryReader]],
        key_of: Callable[[int], bytes | None],
        *,
        until_error: bool = False,
    ) -> AsyncGenerator[list[Result], None]:
        """``look`` finds the rows of some keys; ``read`` is the ordinary read of what was not read ahead."""
        ahead: deque[_Window] = deque()
        first = 0
        look_at = WINDOW_READS
        try:
            while first < count:
                begun = first + sum(len(window.held) for window in ahead)
                while begun < count and len(ahead) < WINDOWS_MAX:
                    window = look(begun, min(begun + look_at, count))
                    self._begin(window)
                    ahead.append(window)
                    begun += len(window.held)
                    look_at = min(2 * len(window.held) + 1, WINDOW_READS)
                window = ahead[0]
                async with aclosing(self._results(ahead, first, read, key_of, until_error=until_error)) as results:
                    async for some in results:
                        yield some
                        if until_error and isinstance(some[-1], RawblockdError):
                            return
                first += len(window.held)
                ahead.popleft()
        finally:
            for window in ahead:
                self._drop(window)

    async def _results(
        self,
        ahead: deque[_Window],
        first: int,
        read: Callable[[int], Awaitable[EntryReader]],
        key_of: Callable[[int], bytes | None],
        *,
        until_error: bool,
    ) -> AsyncGenerator[list[Result], None]:
        """The results of the first window; a reader that needs memory of its own is handed out alone.

        Nobody waits for memory and holds some meanwhile: batches that did would wait for each other.
        """
        window = ahead[0]
        results: list[Result] = []
        try:
            if window.batch is not None:
                await window.batch.ended
            for place, held in enumerate(window.held):
                if held is not None:
                    taken = self._take(window, place, key_of(first + place))
                    if taken is not None:
                        results.append(taken)
                        continue
                if place in window.needy and not self._has_memory():
                    if results:
                        yield results
                        _close(results)
                        results = []
                    self._shed(ahead, place + 1)
                try:
                    reader = await read(first + place)
                except RawblockdError as error:
                    results.append(error)
                    if until_error:
                        break
                    continue
                results.append(reader)
                if len(results) > 1:
                    yield results[:-1]
                    _close(results[:-1])
                    results = [reader]
                yield results
                _close(results)
                results = []
            if results:
                yield results
        finally:
            _close(results)

    def _take(self, window: _Window, place: int, key: bytes | None) -> EntryReader | None:
        """The reader of the next record that was read; None if it failed or is another key's."""
        index = window.taken
        window.taken += 1
        row_id, row = window.plain[index]
        record = window.records[index]
        head = None
        assert window.batch is not None
        try:
            if index not in window.batch.failures:
                head = self._path.verified(record, row, key, window.namespace)
        except Undecodable:
            pass  # the key's own read decides what to make of it
        if head is None:
            window.release()
            self._path.let_go(row_id)
            return None
        if key is not None:
            self._path.note_hit(row_id, row)
        settings = window.settings
        if settings is not None and settings.sliding_ttl and not (window.leased and window.leased[place]):
            self._path.slide(settings, row)
        return EntryReader(self._path, row_id, row, head, record, window)

    # -- windows --------------------------------------------------------------------------------------------------

    def _begin(self, window: _Window) -> None:
        """Start reading the small records of a window, as many as there is memory for; the window ends there."""
        held = window.held
        sizes = self._sizes(window)
        count = self._find_memory(window, sizes)
        if count:
            del held[count:]
        else:
            held[:] = [None]
            window.needy.add(0)
        offset_of = self._index.geometry.slot_offset
        plain = window.plain = [one for one in held if one is not None]
        reads = [
            (offset_of(row.slab, row.slot, row.slot_class), record)
            for (_, row), record in zip(plain, window.records, strict=True)
        ]
        window.left = len(reads)
        if not reads:
            return
        try:
            window.batch = self._device.read_many(reads)
        except Busy:
            held[:] = [None] * len(held)
            window.plain = []
            for buffer in window.buffers:
                buffer.release()
            return
        self._index.slots.hold_each([row_id for row_id, _ in plain])

    def _sizes(self, window: _Window) -> list[int]:
        """What is to be read of each, 0 for what is not to be read ahead, up to the bytes of a window."""
        held = window.held
        block_bytes = self._index.geometry.block_bytes
        sizes: list[int] = []
        total_bytes = 0
        for place, one in enumerate(held):
            size = 0
            if one is not None:
                record_bytes = one[1].record_bytes
                if record_bytes > self._path.whole_max_bytes:
                    held[place] = None
                    window.needy.add(place)
                else:
                    size = round_up(record_bytes, block_bytes)
                    total_bytes += size
                    if total_bytes > WINDOW_BYTES:
                        break
            sizes.append(size)
        return sizes

    def _find_memory(self, window: _Window, sizes: list[int]) -> int:
        """Memory for the first so many records of a window, side by side; less is tried where there is not enough."""
        at = 0
        while at < len(sizes):
            stop, total_bytes = at, 0
            while stop < len(sizes) and total_bytes + sizes[stop] <= HUGE_PAGE_BYTES:
                total_bytes += sizes[stop]
                stop += 1
            buffer = None
            while total_bytes and (buffer := self._arena.try_acquire(total_bytes)) is None:
                if stop - at == 1:
                    return at
                stop = at + (stop - at) // 2
                total_bytes = sum(sizes[at:stop])
            if buffer is not None:
                window.buffers.append(buffer)
                _cut(buffer.view, sizes[at:stop], window.records)
            at = stop
        return at

    def _has_memory(self) -> bool:
        """Whether an ordinary read would get its memory at once."""
        buffer = self._arena.try_acquire(self._path.whole_max_bytes)
        if buffer is not None:
            buffer.release()
        return buffer is not None

    def _shed(self, ahead: deque[_Window], count: int) -> None:
        """End the first window behind so many keys and give up what was read ahead of that: it is read again."""
        self._drop(ahead[0])
        del ahead[0].held[count:]
        while len(ahead) > 1:
            self._drop(ahead.pop())

    def _drop(self, window: _Window) -> None:
        """Let go of what was not taken, as soon as the device is done with it."""
        rest = window.plain[window.taken :]
        window.taken = len(window.plain)
        if not rest:
            return
        assert window.batch is not None
        ended = window.batch.ended
        if not ended.done():
            for buffer in window.buffers:
                buffer.hold_for(ended)
            ended.add_done_callback(lambda _: self._let_go(rest))
        else:
            self._let_go(rest)
        for _ in rest:
            window.release()

    def _let_go(self, rows: list[Held]) -> None:
        self._path.space.let_go_each([row_id for row_id, _ in rows])


def _cut(view: memoryview, sizes: list[int], records: list[memoryview]) -> None:
    """Add a part of ``view`` for each size that is not 0."""
    at = 0
    for size in sizes:
        if size:
            records.append(view[at : at + size])
            at += size


def _close(results: list[Result]) -> None:
    """Close what is still open of the readers of a window."""
    close_all([result for result in results if type(result) is EntryReader])
