"""Every crash of a recorded run: each moment, what was loose dropped, kept or torn, then a recovery and a look."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

from storage.engine import Engine
from tests.support.engines import CRASH_OPTIONS, FakeClock, Rig, abandon, check_accounts, peek, put
from tests.support.model import Ledger
from tests.support.simulated_device import SECTOR_BYTES, Image, SimulatedDevice, Write, torn

Keep = Callable[[Write], "Iterable[tuple[int, int]] | bool"]


def moments(device: SimulatedDevice, first: int = 0) -> list[int]:
    """Positions behind each event from ``first`` on."""
    return list(range(first, device.now + 1))


def images(device: SimulatedDevice, moment: int, rng: random.Random, *, power_loss: bool) -> Iterator[Image]:
    """Images a crash at the moment may leave: all loose writes absent, all there, each one alone missing or torn."""
    loose = device.loose_writes(moment, power_loss=power_loss)
    yield device.crash_image(moment, power_loss=power_loss)
    if not loose:
        return
    yield device.crash_image(moment, power_loss=power_loss, keep=lambda _: True)
    last = loose[-1]
    cut = rng.randrange(1, max(2, len(last.content) // SECTOR_BYTES)) * SECTOR_BYTES
    yield device.crash_image(moment, power_loss=power_loss, keep=lambda w: [(0, cut)] if w is last else True)
    if len(loose) > 1:
        victim = rng.choice(loose[:-1])
        yield device.crash_image(moment, power_loss=power_loss, keep=lambda w: w is not victim)
        yield device.crash_image(moment, power_loss=power_loss, keep=torn(rng))


async def recovered(image: Image, clock: FakeClock) -> Rig:
    rig = Rig(image.copy(), options=CRASH_OPTIONS, clock=clock)
    await rig.start()
    return rig


async def examine(image: Image, ledger: Ledger, moment: int, clock: FakeClock, *, power_loss: bool) -> None:
    """Recover one image: values are allowed ones, nothing counts as damage, accounts are right, puts go on, twice."""
    rig = await recovered(image, clock)
    try:
        await look(rig.engine, ledger, moment, power_loss=power_loss)
        known = {key: await peek(rig.engine, key) for key in ledger.mutations}
        # Nothing says yet that the corrections of this start were flushed: they are read as unproven rows themselves.
        at_once = await recovered(rig.device.crash_image(power_loss=True), clock)
        try:
            again = {key: await peek(at_once.engine, key) for key in ledger.mutations}
            assert again == known, f"a power loss right after the start that followed the crash at {moment}"
        finally:
            await abandon(at_once.device)
        await put(rig.engine, b"after the crash", b"still serving")
        # The corrections of the first recovery must leave a journal that reads the same (R9).
        before = {key: await peek(rig.engine, key) for key in ledger.mutations}
        second = await recovered(rig.device.crash_image(), clock)
        try:
            after = {key: await peek(second.engine, key) for key in ledger.mutations}
            assert after == before, f"a second crash right after the one at {moment} changed values"
            assert await peek(second.engine, b"after the crash") == b"still serving"
            assert not second.engine.status().partial_recovery
            check_accounts(second.engine)
        finally:
            await second.stop(checkpoint=False)
    finally:
        await abandon(rig.device)


async def look(engine: Engine, ledger: Ledger, moment: int, *, power_loss: bool) -> None:
    status = engine.status()
    assert not status.partial_recovery, (
        f"a crash at event {moment} counts as damage: {engine.skipped(0, 5)} {status.recovery}"
    )
    await ledger.check(engine, moment, power_loss=power_loss)
    check_accounts(engine)


async def examine_all(
    rig: Rig, ledger: Ledger, *, first: int = 0, every: int = 1, seed: int = 1, power_loss: bool = True
) -> int:
    """Each moment of the run from ``first`` on, as process crash and as power loss; returns how many images."""
    rng = random.Random(seed)
    count = 0
    device = rig.device
    await abandon(device)
    for moment in moments(device, first)[::every]:
        for lost in (False, True) if power_loss else (False,):
            for image in images(device, moment, rng, power_loss=lost):
                await examine(image, ledger, moment, rig.clock, power_loss=lost)
                count += 1
    return count
