"""Every device operation of a scripted life goes wrong once, in every way, and then for a while (D1, D2, D3, A1).

A life: start, puts of several sizes and levels, an overwrite, a delete, reads, checkpoint, flush, stop. It is lived
again with the fault at operation 1, 2, 3, … What failed is invisible, what succeeded is intact, nothing hangs, no slot
and no buffer is lost, and a start without faults finds everything that was acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from storage.device.counters import OpKind
from storage.engine import Engine
from storage.entries import Durability
from storage.errors import (
    EntryCorrupt,
    EntryNotFound,
    EntryUnreadable,
    FlushFailed,
    RawblockdError,
)
from storage.status import EngineState
from tests.support.engines import (
    CRASH_OPTIONS,
    FakeClock,
    assert_clean,
    check_accounts,
    formatted_image,
    get,
    payload_of,
    put,
    short_journal,
)
from tests.support.faulty_device import FAULTS, Fault, FaultyDevice
from tests.support.simulated_device import Image, SimulatedDevice
from tests.support.virtual_loop import run_virtually

JOURNAL_BLOCKS = 64
REST_SECONDS = 2.0
"""After an error, so that a journal that gave up can come back: what follows must then be right too."""
HANG_SECONDS = 600.0
"""Of the loop's clock. The longest wait in the engine is 30 s, of the device 30 s."""

Value = bytes | None


@pytest.fixture(autouse=True)
def _short_journal() -> Iterator[None]:
    with short_journal(JOURNAL_BLOCKS, reserve=8):
        yield


@dataclass
class Life:
    """One run of the script: what each key holds for sure, and what else a restart may find."""

    engine: Engine
    device: FaultyDevice
    now: dict[bytes, set[Value]] = field(default_factory=dict)
    """What a reader may see at run time."""
    later: dict[bytes, set[Value]] = field(default_factory=dict)
    """What a restart may find: besides, what failed and may have reached the device all the same."""
    errors: list[RawblockdError] = field(default_factory=list)
    lost: set[bytes] = field(default_factory=set)
    """Keys whose record the device failed to read: quarantined, which is an answer too."""

    def _changed(self, key: bytes, value: Value) -> None:
        self.now[key] = {value}
        self.later[key] = {value}
        self.lost.discard(key)

    def _failed(self, key: bytes, value: Value, error: RawblockdError) -> None:
        self.errors.append(error)
        if isinstance(error, FlushFailed):
            # Its row is in the journal: the level was missed, not the mutation.
            self.now.setdefault(key, {None}).add(value)
        self.later.setdefault(key, {None}).add(value)
        self.now.setdefault(key, {None})

    async def put(self, key: bytes, value: bytes, durability: Durability = Durability.JOURNAL) -> None:
        try:
            await put(self.engine, key, value, durability=durability)
        except RawblockdError as error:
            self._failed(key, value, error)
            await asyncio.sleep(REST_SECONDS)
        else:
            if durability is Durability.NONE:
                # Accepted only: it becomes visible, or is lost if the device fails its payload.
                for known in (self.now, self.later):
                    known[key] = known.get(key, {None}) | {value}
            else:
                self._changed(key, value)

    async def delete(self, key: bytes) -> None:
        try:
            await self.engine.delete("n", key)
        except EntryNotFound:
            assert None in self.now[key]
            self._changed(key, None)
        except RawblockdError as error:
            self._failed(key, None, error)
            await asyncio.sleep(REST_SECONDS)
        else:
            self._changed(key, None)

    async def look(self, key: bytes) -> None:
        """B1, D2: what a reader sees is allowed; the device's failure to read is an answer of its own."""
        try:
            value: Value = await get(self.engine, key)
        except (EntryCorrupt, EntryUnreadable) as error:
            assert any(kind is OpKind.READ for kind, _ in self.device.hits), error
            self.errors.append(error)
            self.lost.add(key)
            return
        except EntryNotFound:
            value = None
        if value is None and key in self.lost:
            return
        assert value in self.now[key], f"{key!r}: {value[:20] if value else value!r} after {self.errors}"

    async def attempt(self, step: str) -> None:
        try:
            await getattr(self.engine, step)()
        except RawblockdError as error:
            self.errors.append(error)


async def live(life: Life) -> None:
    """The script, about 80 operations of the device long."""
    await life.put(b"small", payload_of(1, 300))
    await life.put(b"block", payload_of(2, 4000))
    await life.put(b"large", payload_of(3, 700_000), Durability.FLUSH)
    await life.look(b"small")
    await life.put(b"small", payload_of(4, 5000))
    await life.put(b"accepted", payload_of(5, 9000), Durability.NONE)
    await life.attempt("checkpoint")
    await asyncio.gather(*(life.put(b"together %d" % n, payload_of(10 + n, 2000 * n + 1)) for n in range(4)))
    await life.delete(b"block")
    await life.put(b"empty", b"")
    await life.attempt("flush")
    await life.put(b"small", payload_of(6, 100), Durability.FLUSH)
    await life.delete(b"together 1")
    await life.put(b"again", payload_of(7, 4000))
    await life.attempt("checkpoint")
    await life.put(b"last", payload_of(8, 100_000))
    await life.put(b"large", payload_of(9, 650_000))
    for key in list(life.now):
        await life.look(key)
    await life.attempt("flush")


async def settle(life: Life) -> None:
    """A1, A2, L1: the device is well again; what waited goes on, and every slot and buffer is accounted for."""
    engine, device = life.engine, life.device
    device.fault = None
    async with asyncio.timeout(HANG_SECONDS):
        while engine._journal.unavailable or engine._write_path._background or engine._journal._writer is not None:
            await asyncio.sleep(0.1)
        await life.attempt("flush")
        await life.attempt("flush")
        while engine._index.slots.limbo_count or engine._index.slots.in_flight:
            await asyncio.sleep(0.1)
            await life.attempt("flush")
    check_accounts(engine)
    for key in life.now:
        await life.look(key)
    assert engine._arena.used_bytes == 0, "a buffer was not given back"
    assert engine._internal.used_bytes == engine._journal._buffer.size_bytes, "an internal buffer was not given back"
    if engine.state is not EngineState.READ_ONLY:
        await put(engine, b"well again", b"x" * 5000)
        assert await get(engine, b"well again") == b"x" * 5000


async def whole_life(image: Image, fault: Fault | None, first: int, last: int) -> FaultyDevice:
    clock = FakeClock()
    device = FaultyDevice(image.copy(), fault, first, last)
    life = Life(Engine(device, CRASH_OPTIONS, clock), device)
    async with asyncio.timeout(HANG_SECONDS):
        try:
            await life.engine.start()
        except RawblockdError:
            assert device.hits, "nothing failed, and yet the start did"
            assert life.engine.state is EngineState.FAILED
            await device.stop()
        else:
            await live(life)
            await reopened(life, clock)
            if fault is not None and device.total >= first:
                await settle(life)
            await life.engine.stop()
    assert_clean(device)
    await reopened(life, clock)
    return device


async def reopened(life: Life, clock: FakeClock) -> None:
    """D1, D2, A1: a start without faults finds what was acknowledged, and nothing that may not be.

    Both after an orderly stop and as the device stands when the process is killed.
    """
    again = Engine(SimulatedDevice(life.device.image.copy()), CRASH_OPTIONS, clock)
    await again.start()
    status = again.status()
    assert not status.partial_recovery, (status.recovery, again.skipped(0, 5))
    check_accounts(again)
    for key, allowed in life.later.items():
        try:
            value: Value = await get(again, key)
        except EntryNotFound:
            value = None
        assert value in allowed or (value is None and key in life.lost), f"{key!r} after a restart, {life.errors}"
    await again.stop()


@pytest.fixture(scope="module")
def image() -> Image:
    with short_journal(JOURNAL_BLOCKS, reserve=8):
        return formatted_image(8, journal_blocks=JOURNAL_BLOCKS)


@pytest.fixture(scope="module")
def operations(image: Image) -> int:
    """How many operations the life without a fault has."""
    with short_journal(JOURNAL_BLOCKS, reserve=8):
        return run_virtually(whole_life(image, None, 0, 0)).total


def test_the_script_is_long_enough(operations: int) -> None:
    assert 60 <= operations <= 200


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_operation_goes_wrong_once(image: Image, operations: int, fault: Fault) -> None:
    """D1, D2, D3, A1, R7."""
    hit = 0
    for number in range(1, operations + 1):
        try:
            device = run_virtually(whole_life(image, fault, number, number))
        except BaseException as error:
            error.add_note(f"{fault.name} at operation {number} of {operations}")
            raise
        hit += len(device.hits)
    assert hit >= operations * 3 // 4, "most of the operations must really have been hit"


@pytest.mark.parametrize("length", [6, 25, 1 << 30])
@pytest.mark.parametrize("name", ["EIO", "torn"])
def test_the_device_fails_for_a_while(image: Image, operations: int, name: str, length: int) -> None:
    """D1, D3, A1: retries fail too, the journal gives up and comes back, or never does; nothing hangs."""
    [fault] = [fault for fault in FAULTS if fault.name == name]
    for number in range(1, operations + 1, 2):
        try:
            run_virtually(whole_life(image, fault, number, number + length - 1))
        except BaseException as error:
            error.add_note(f"{fault.name} at operations {number} to {number + length - 1} of {operations}")
            raise
