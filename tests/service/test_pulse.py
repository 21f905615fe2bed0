"""What tells the watchdog that the device answers: operations under way with their age, a read when there are none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from storage.buffers import aligned_buffer
from storage.device.file_device import FileDevice
from storage.device.opening import open_device
from storage.device.pulse import DevicePulse
from tests.support.loop_devices import zero_file


@pytest.fixture(params=["uring", "threads"])
async def device(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FileDevice]:
    path = zero_file(tmp_path / "device", 1 << 20)
    with open_device(path, write=True, io_engine=request.param) as opened:
        opened.start(asyncio.get_running_loop())
        try:
            yield opened
        finally:
            await opened.stop()


async def ended(pulse: DevicePulse, operations: int) -> None:
    async with asyncio.timeout(20):
        while pulse.completed < operations:
            await asyncio.sleep(0.001)


async def test_an_idle_device_is_asked_one_thing_at_a_time(device: FileDevice) -> None:
    pulse = DevicePulse(device)
    assert pulse.waited_seconds == 0.0
    pulse.beat()
    pulse.beat()
    assert len(device.counters.pending) == 1
    await ended(pulse, 1)
    assert device.counters.read.operations == 1
    assert pulse.waited_seconds == 0.0
    pulse.beat()
    await ended(pulse, 2)


async def test_the_oldest_operation_counts(device: FileDevice) -> None:
    pulse = DevicePulse(device)
    writing = device.write(0, aligned_buffer(4096))
    first = pulse.waited_seconds
    assert first > 0.0
    reading = device.read(4096, aligned_buffer(4096))
    pulse.beat()
    assert len(device.counters.pending) == 2, "something is under way already: nothing more to ask"
    assert pulse.waited_seconds > first
    await writing
    await reading
    await device.flush()
    assert pulse.waited_seconds == 0.0
    assert pulse.completed == 3


async def test_a_read_that_fails_is_an_answer(device: FileDevice) -> None:
    pulse = DevicePulse(device)
    os.truncate(device.path, 0)
    pulse.beat()
    await ended(pulse, 1)
    assert device.counters.read.failed == 1
    assert pulse.waited_seconds == 0.0
