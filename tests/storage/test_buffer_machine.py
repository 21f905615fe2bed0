"""Whatever is taken and given back in whatever order: what is free can be had, whole or in parts, and nothing twice
(B1, L1)."""

from __future__ import annotations

import asyncio
import ctypes

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from storage.buffers import HUGE_PAGE_BYTES, PAGE_BYTES, Buffer, BufferArena

TOTAL_BYTES = 2 * HUGE_PAGE_BYTES
PAGES = TOTAL_BYTES // PAGE_BYTES


class ArenaMachine(RuleBasedStateMachine):
    """Against a map of pages: a request is refused only if no aligned run of free pages is as long."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.arena = BufferArena(TOTAL_BYTES)
        whole = [self.arena.try_acquire(HUGE_PAGE_BYTES) for _ in range(2)]
        self.base = min(_address(buffer) for buffer in whole if buffer is not None)
        for buffer in whole:
            assert buffer is not None
            buffer.release()
        self.owned = [False] * PAGES
        self.under_way: list[tuple[asyncio.Future[None], range]] = []
        self.loop = asyncio.new_event_loop()

    @rule(target=taken, size_bytes=st.sampled_from([1, 4096, 4097, 20_000, 65_536, 300_000, 1 << 20, 2 << 20]))
    def take(self, size_bytes: int) -> tuple[Buffer, range] | None:
        pages = 1 << ((size_bytes - 1) // PAGE_BYTES).bit_length()
        buffer = self.arena.try_acquire(size_bytes)
        if buffer is None:
            assert all(any(self.owned[at : at + pages]) for at in range(0, PAGES, pages))
            return None
        first = (_address(buffer) - self.base) // PAGE_BYTES
        assert first % pages == 0
        assert not any(self.owned[first : first + pages])
        place = range(first, first + pages)
        self._own(place, owned=True)
        return buffer, place

    @rule(one=consumes(taken), many=st.integers(0, 200))
    def give_back(self, one: tuple[Buffer, range] | None, many: int) -> None:
        """Also after many small ones, more than are kept loose."""
        small = [self.arena.try_acquire(1) for _ in range(many)]
        if one is not None:
            one[0].release()
            self._own(one[1], owned=False)
        for buffer in small:
            if buffer is not None:
                buffer.release()

    @rule(one=consumes(taken))
    def give_back_under_way(self, one: tuple[Buffer, range] | None) -> None:
        """I/O in flight keeps a piece out of the arena."""
        if one is not None:
            io = self.loop.create_future()
            one[0].hold_for(io)
            one[0].release()
            self.under_way.append((io, one[1]))

    @rule()
    def io_ends(self) -> None:
        if self.under_way:
            io, place = self.under_way.pop(0)
            io.set_result(None)
            self.loop.run_until_complete(asyncio.sleep(0))
            self._own(place, owned=False)

    @invariant()
    def the_sum_is_exact(self) -> None:
        assert self.arena.used_bytes == PAGE_BYTES * sum(self.owned)

    def _own(self, place: range, *, owned: bool) -> None:
        self.owned[place.start : place.stop] = [owned] * len(place)

    def teardown(self) -> None:
        self.arena.close()
        self.loop.close()


def _address(buffer: Buffer) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer.view))


TestArena = ArenaMachine.TestCase
TestArena.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
