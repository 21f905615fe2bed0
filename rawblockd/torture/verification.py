"""A restarted daemon held to the ledger: every key, every count, and a word for whatever is missing."""

from __future__ import annotations

import http.client
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rawblockd.torture.daemon import TorturedDaemon
from rawblockd.torture.ledger import ABSENT, HOLDS_A_KILL, HOLDS_A_POWER_LOSS, Ledger
from rawblockd.torture.load import NAMESPACE, TortureFailed, exchange, path_of
from rawblockd.torture.values import NotThatValue, version_of


@dataclass(frozen=True, slots=True)
class Expectation:
    """What may be missing after what was done to the device."""

    holds: frozenset[str] = HOLDS_A_KILL
    """Levels at which an acknowledged mutation must be there."""
    may_lose_unflushed: bool = False
    damaged: bool = False
    """The device was damaged: entries may be missing or older if the daemon says how many, or that it can't say."""


AFTER_A_KILL = Expectation()
AFTER_TORN_WRITES = Expectation(may_lose_unflushed=True)
"""A put that was under way may count as lost: nobody can tell that it was not acknowledged."""
AFTER_A_POWER_LOSS = Expectation(holds=HOLDS_A_POWER_LOSS, may_lose_unflushed=True)
AFTER_DAMAGE = Expectation(may_lose_unflushed=True, damaged=True)


@dataclass(slots=True)
class Found:
    """Keys that are not what the ledger says: gone, or older than they may be."""

    missing: list[str]
    older: list[str]
    live: int
    checked: int


def verify(
    daemon: TorturedDaemon, ledger: Ledger, keys: Iterable[str], expectation: Expectation, untouched: int
) -> int:
    """Hold the daemon to the ledger, acknowledge what it lost, and make what it holds the keys' only past.

    ``untouched`` entries exist besides ``keys``. Returns how many keys were checked. Raises TortureFailed.
    """
    _, before = daemon.ask("GET", "/v1/status")
    found = _read_all(daemon, ledger, keys, expectation)
    _, status = daemon.ask("GET", "/v1/status")
    check_accounting(status)
    entries = status["namespaces"].get(NAMESPACE, {"entries": 0})["entries"]
    if entries != found.live + untouched:
        raise TortureFailed(f"{entries} entries, but {found.live + untouched} keys that were ever put have one (A2)")
    if expectation.damaged:
        _check_words(found, status)
    else:
        _check_untouched(found, status, expectation)
    if before["recovery"]["lost_unflushed"] != status["recovery"]["lost_unflushed"]:
        raise TortureFailed("the report changed by itself (R2)")
    if status["partial_recovery"] or status["capacity"]["slots"]["quarantined"]:
        _acknowledge(daemon)
    return found.checked


def _read_all(daemon: TorturedDaemon, ledger: Ledger, keys: Iterable[str], expectation: Expectation) -> Found:
    found = Found([], [], 0, 0)
    connection = daemon.connect()
    try:
        for key in keys:
            version = _read(daemon, connection, key)
            admissible = ledger.admissible(key, expectation.holds)
            if version not in admissible:
                if not expectation.damaged:
                    raise TortureFailed(
                        f"{key} holds version {version}; only {sorted(admissible)} may be ({ledger.history(key)})"
                    )
                (found.older if version != ABSENT else found.missing).append(key)
            ledger.found(key, version)
            found.live += version != ABSENT
            found.checked += 1
    finally:
        connection.close()
    return found


def _read(daemon: TorturedDaemon, connection: http.client.HTTPConnection, key: str) -> int:
    """The version that a key holds. A value that turns out damaged half-way is cut off, and then gone."""
    cut = ""
    for _ in range(2):
        try:
            code, value = exchange(connection, "GET", path_of(key))
        except (OSError, http.client.HTTPException) as error:
            daemon.check_alive()
            cut = repr(error)
            connection.close()
            continue
        if code == 503 and b'"io_error"' in value:
            continue  # its slot is set aside now; the next answer says that it is gone
        if code not in (200, 404):
            raise TortureFailed(f"a get of {key} was answered with {code}: {value[:300]!r}")
        try:
            return version_of(key, value) if code == 200 else ABSENT
        except NotThatValue as error:
            raise TortureFailed(f"wrong bytes (B1): {error}") from error
    raise TortureFailed(f"{key} can't be read, and is not gone either: {cut or 'io_error'}")


def _check_untouched(found: Found, status: dict[str, Any], expectation: Expectation) -> None:
    """Nothing was damaged: nothing is skipped, set aside or unknown."""
    if status["partial_recovery"] or status["skipped_entries"] or status["capacity"]["slots"]["quarantined"]:
        raise TortureFailed(f"a crash passes for damage: {status['skipped_by_reason']}, {status['recovery']}")
    lost = status["recovery"]["lost_unflushed"]
    if lost and not expectation.may_lose_unflushed:
        raise TortureFailed(f"{lost} entries count as lost_unflushed after a kill: it loses nothing that was written")


def _check_words(found: Found, status: dict[str, Any]) -> None:
    """Never a silent loss: what is missing or older is no more than the daemon says, unless it says it can't say."""
    if status["recovery"]["unknown_loss"]:
        return
    slots, unflushed = status["capacity"]["slots"], status["recovery"]["lost_unflushed"]
    accounted = slots["quarantined"] + unflushed
    if len(found.missing) + len(found.older) > accounted or len(found.older) > unflushed:
        raise TortureFailed(
            f"a silent loss (R2): missing {found.missing}, older {found.older}, but only {slots['quarantined']} slots "
            f"are quarantined, {status['skipped_by_reason']} skipped and {unflushed} lost_unflushed"
        )


def check_accounting(status: dict[str, Any]) -> None:
    """A1 and A2: every slot is counted once, and the namespaces' usage adds up to the device's.

    Raises TortureFailed.
    """
    capacity = status["capacity"]
    for slots in [capacity["slots"], *(one["slots"] for one in status["classes"])]:
        if sum(count for name, count in slots.items() if name != "total") != slots["total"]:
            raise TortureFailed(f"slots do not add up (A1): {slots}")
    for name, count in capacity["slots"].items():
        if count != sum(one["slots"][name] for one in status["classes"]):
            raise TortureFailed(f"the classes do not add up to {count} slots {name} (A1)")
    spaces = status["namespaces"].values()
    used = sum(one["slots"]["live"] * one["slot_bytes"] for one in status["classes"])
    sums = {name: sum(space[name] for space in spaces) for name in ("entries", "used_bytes", "payload_bytes")}
    claimed = (capacity["slots"]["live"], capacity["used_bytes"], capacity["payload_bytes"])
    if tuple(sums.values()) != claimed or used != capacity["used_bytes"]:
        raise TortureFailed(f"usage does not add up (A2): {sums}, {claimed}, slots of {used} bytes")


def _acknowledge(daemon: TorturedDaemon) -> None:
    """R5: accept the loss; then everything is as it was before, and checkpoints go on."""
    code, answer = daemon.ask("POST", "/v1/recovery/acknowledge")
    if code != 200:
        raise TortureFailed(f"acknowledge was answered with {code}: {answer}")
    _, status = daemon.ask("GET", "/v1/status")
    if status["partial_recovery"] or status["skipped_entries"] or status["capacity"]["slots"]["quarantined"]:
        raise TortureFailed(f"after acknowledge the state is still {status['state']}, {status['reasons']}")
    if not status["auto_checkpoint"]["enabled"]:
        raise TortureFailed("after acknowledge checkpoints are still frozen")
    code, answer = daemon.ask("POST", "/v1/checkpoint")
    if code != 200:
        raise TortureFailed(f"a checkpoint after acknowledge was answered with {code}: {answer}")
