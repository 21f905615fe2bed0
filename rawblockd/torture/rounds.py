"""Rounds of torture on one device. Between two rounds a daemon serves, and was just held to the ledger.

===========  ==================================================================================================
round        what
===========  ==================================================================================================
kill         load, SIGKILL at a random moment, restart
torn         as kill; before the restart, writes that may have been under way are torn
power loss   as kill; before the restart, the unflushed end of the journal is lost
flip         as kill; before the restart, bits are flipped anywhere
inject       load on a device that fails now and then, then SIGKILL or an orderly stop, restart on a sound device
===========  ==================================================================================================

After each restart every key is held to the ledger.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from rawblockd.torture.daemon import DAEMON, FAULTY_DAEMON, DaemonRefusedStart, TorturedDaemon
from rawblockd.torture.ledger import Ledger
from rawblockd.torture.load import UNFLUSHED_LEVELS, Load, Mix, TortureFailed, exchange, path_of
from rawblockd.torture.patience import ending_later
from rawblockd.torture.values import make_value
from rawblockd.torture.verification import (
    AFTER_A_KILL,
    AFTER_A_POWER_LOSS,
    AFTER_DAMAGE,
    AFTER_TORN_WRITES,
    Expectation,
    verify,
)
from storage.format.geometry import Geometry
from storage.torture import flipping, tearing
from storage.torture.closed_device import ClosedDevice, Edit, undo
from storage.torture.faulty_device import INJECTED
from storage.torture.survey import Survey, survey

KINDS = ("kill", "torn", "kill", "flip", "power loss", "kill", "inject", "torn", "kill", "flip")
"""In this order, again and again."""
EXPECTED = {"kill": AFTER_A_KILL, "torn": AFTER_TORN_WRITES, "flip": AFTER_DAMAGE}
FREE_SLABS = 16
"""Slabs left to the load; the others are filled once, so that each slot is used again and again."""
ANSWERS_MAX = 700
LIFE_SECONDS = 20.0
REFUSALS = frozenset({10, 12, 13, 14, 15, 16, 20, 21, 30, 31, 32})
"""Exit codes of a start that refuses with a reason."""
FILLERS_SAMPLED = 4

VALUE_MAX_BYTES = 4 << 20
"""However large the slabs: else a round is a few requests."""

Harm = Callable[[ClosedDevice, Survey, random.Random], None]


@dataclass
class Tally:
    """What was done so far."""

    rounds: int = 0
    kills: int = 0
    kills_with_requests_in_flight: int = 0
    torn: int = 0
    flips: int = 0
    injected: int = 0
    refusals: int = 0
    keys_checked: int = 0


@dataclass
class Torture:
    """The device, its ledger and its daemon; a context manager that leaves no process and no folder behind."""

    device: str
    geometry: Geometry
    seed: str
    server: tuple[str, ...] = DAEMON
    ledger: Ledger = field(default_factory=Ledger)
    tally: Tally = field(default_factory=Tally)
    edits: list[Edit] = field(default_factory=list)
    """What was done to the closed device last: for the report of a failure."""
    _fillers: list[str] = field(default_factory=list)
    _daemon: TorturedDaemon | None = None
    _folder: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="torture-")
    )

    def __enter__(self) -> Torture:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self._folder.cleanup()

    @property
    def mix(self) -> Mix:
        """A few keys of up to 3 kB, a few up to nearly a slab."""
        largest = min(self.geometry.class_bytes[-1] * 9 // 10, VALUE_MAX_BYTES)
        sizes = {f"small-{number}": (100, 3000) for number in range(12)}
        return Mix(sizes | {f"large-{number}": (4096, largest) for number in range(6)})

    def prepare(self) -> None:
        """Start, and occupy most of the device for good."""
        daemon = self._start(self.server)
        size = min(self.geometry.class_bytes[-1] * 98 // 100, VALUE_MAX_BYTES)
        connection = daemon.connect()
        for number in range(max(0, self.geometry.slabs - FREE_SLABS)):
            key, version = f"filler-{number}", self.ledger.draw_version()
            attempt = self.ledger.begin(key, version, "flush")
            code, answer = exchange(
                connection, "PUT", f"{path_of(key)}?durability=flush", make_value(key, version, size)
            )
            if code != 201:
                raise TortureFailed(f"filling the device: {code} {answer[:300]!r}")
            self.ledger.acknowledge(attempt, "put flush")
            self._fillers.append(key)
        connection.close()

    @property
    def next_kind(self) -> str:
        return KINDS[self.tally.rounds % len(KINDS)]

    def round(self) -> None:
        """One round. Raises TortureFailed."""
        number, kind = self.tally.rounds, self.next_kind
        rng = random.Random(f"{self.seed}/{number}")
        self.edits = []
        mix = self.mix
        if kind == "inject":
            self._inject(rng, number)
        elif kind == "power loss":
            self._live_and_kill(rng, number, Mix(mix.sizes, UNFLUSHED_LEVELS))
            self._harm(tearing.lose_unflushed, rng)
            self._restart(rng, AFTER_A_POWER_LOSS)
        else:
            self._live_and_kill(rng, number, mix)
            if kind == "torn":
                tears = (tearing.tear_next_journal_blocks, tearing.tear_free_slots, tearing.tear_target_copy)
                for tear in rng.sample(tears, rng.randrange(1, 4)):
                    self._harm(tear, rng)
            elif kind == "flip":
                self._harm(flipping.flip_some, rng)
            self._restart(rng, EXPECTED[kind])
        self.tally.rounds += 1

    def finish(self) -> None:
        """Every key once more, everything scrubbed, each copy written anew, then an orderly stop.

        Nothing is damaged any more then. Raises TortureFailed.
        """
        assert self._daemon is not None
        self._daemon.stop()
        daemon = self._start_sound("--scrub-bytes-per-second", "1TiB")
        self._verify(daemon, AFTER_A_KILL, self._fillers)
        daemon.wait_scrubbed()
        for _ in range(self.geometry.copies):
            code, answer = daemon.ask("POST", "/v1/checkpoint")
            if code != 200:
                raise TortureFailed(f"the last checkpoints: {code} {answer}")
        daemon.stop()
        self._close()

    # -- steps ----------------------------------------------------------------------------------------------------

    def _start(self, server: tuple[str, ...], *flags: str) -> TorturedDaemon:
        self._close()
        # The kernel may end the I/O of a killed process a moment after the process: until then the device is held.
        with ClosedDevice(self.device):
            pass
        with ending_later():
            self._daemon = TorturedDaemon(server, self.device, Path(self._folder.name), *flags)
        self._daemon.wait_serving()
        return self._daemon

    def _close(self) -> None:
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            daemon.close()

    def _live_and_kill(self, rng: random.Random, number: int, mix: Mix) -> None:
        daemon = self._daemon
        assert daemon is not None
        load = self._load(daemon, rng, number, mix)
        daemon.kill()
        self._bury(load)

    def _load(self, daemon: TorturedDaemon, rng: random.Random, number: int, mix: Mix) -> Load:
        """Load until a random number of answers came; the load still runs."""
        self.ledger.begin_life()
        load = Load(daemon.connect, self.ledger, mix, f"{self.seed}/{number}")
        enough = self.ledger.wait_for_answers(rng.randrange(1, ANSWERS_MAX), lambda: load.ended, LIFE_SECONDS)
        if load.errors:
            load.join()
        daemon.check_alive()
        if not enough and not mix.failing:
            raise TortureFailed(f"less than {ANSWERS_MAX} answers within {LIFE_SECONDS:.0f} s: {daemon.log_tail()}")
        return load

    def _bury(self, load: Load) -> None:
        load.join()
        self.tally.kills += 1
        self.tally.kills_with_requests_in_flight += self.ledger.unanswered() > 0

    def _harm(self, harm: Harm, rng: random.Random) -> None:
        with ClosedDevice(self.device) as closed:
            harm(closed, survey(closed), rng)
            self.edits += closed.edits
            if harm is flipping.flip_some:
                self.tally.flips += len(closed.edits)
            else:
                self.tally.torn += len(closed.edits)

    def _restart(self, rng: random.Random, expectation: Expectation) -> None:
        try:
            daemon = self._start(self.server)
        except DaemonRefusedStart as error:
            if not expectation.damaged or error.exit_code not in REFUSALS:
                raise TortureFailed(str(error)) from error
            # Refused with a reason: then the device is as it was, and without the damage nothing is lost.
            self.tally.refusals += 1
            undo(self.device, self.edits)
            expectation = AFTER_A_KILL
            daemon = self._start_sound()
        fillers = self._fillers if expectation.damaged else rng.sample(self._fillers, self._sampled)
        self._verify(daemon, expectation, fillers)

    def _start_sound(self, *flags: str) -> TorturedDaemon:
        try:
            return self._start(self.server, *flags)
        except DaemonRefusedStart as error:
            raise TortureFailed(str(error)) from error

    @property
    def _sampled(self) -> int:
        return min(FILLERS_SAMPLED, len(self._fillers))

    def _verify(self, daemon: TorturedDaemon, expectation: Expectation, fillers: list[str]) -> None:
        untouched = len(self._fillers) - len(fillers)
        keys = [*self.mix.sizes, *fillers]
        self.tally.keys_checked += verify(daemon, self.ledger, keys, expectation, untouched)
        if expectation.damaged:
            # Nobody puts a filler that was lost again.
            self._fillers = [key for key in self._fillers if self.ledger.admissible(key) != {0}]

    def _inject(self, rng: random.Random, number: int) -> None:
        assert self._daemon is not None
        self._daemon.stop()
        seed = f"{self.seed}/{number}"
        try:
            daemon = self._start(FAULTY_DAEMON, "--fault-seed", seed)
        except DaemonRefusedStart as error:
            # A start may fail with the device; it is no state of its own.
            if error.exit_code not in REFUSALS:
                raise TortureFailed(str(error)) from error
        else:
            mix = Mix(self.mix.sizes, failing=True)
            load = self._load(daemon, rng, number, mix)
            if rng.random() < 0.5:
                daemon.kill()
                self._bury(load)
            else:
                load.join(stop=True)
                daemon.stop()
            self.tally.injected += daemon.logged(INJECTED)
        self._restart(rng, AFTER_DAMAGE)
