"""Holds a restarted daemon to what its clients were promised before."""

from __future__ import annotations

import http.client
from typing import Any

from tests.crash.killer.ledger import ABSENT, Ledger
from tests.crash.killer.load import NAMESPACE, TIMEOUT_SECONDS, Mix, check_found, exchange, path_of
from tests.support.daemon_process import DaemonProcess


def check_restarted(daemon: DaemonProcess, ledger: Ledger, mix: Mix) -> None:
    """D2, B1, A1, A2 and R2 after a restart: every key, the accounting, and no partial recovery.

    Where the daemon may evict, a key may be gone; it still never holds what is past. What is found becomes the
    keys' only past, so that nothing older may come back later.
    """
    live = 0
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=TIMEOUT_SECONDS)
    try:
        for key in mix.sizes:
            code, value = exchange(connection, "GET", path_of(key))
            admissible = ledger.admissible(key) | ({ABSENT} if mix.evicting else set())
            version = check_found(key, code, value, admissible, ledger.history(key))
            ledger.found(key, version)
            live += version != ABSENT
    finally:
        connection.close()
    status = daemon.wait_at_rest()
    check_accounting(status)
    held = status["namespaces"].get(NAMESPACE, {"entries": 0})["entries"]
    assert held == live, f"{held} entries, of which {live} have a key that was ever put"
    assert status["partial_recovery"] is False, status["skipped_by_reason"]
    assert status["recovery"]["lost_unflushed"] == 0, "a killed process loses nothing that it wrote"


def check_accounting(status: dict[str, Any]) -> None:
    """A1 and A2: every slot is counted once, and the namespaces' usage adds up to the device's."""
    capacity = status["capacity"]
    for slots in [capacity["slots"], *(one["slots"] for one in status["classes"])]:
        assert sum(count for name, count in slots.items() if name != "total") == slots["total"], slots
    for name, count in capacity["slots"].items():
        assert count == sum(one["slots"][name] for one in status["classes"]), name
    spaces = status["namespaces"].values()
    assert capacity["slots"]["live"] == sum(space["entries"] for space in spaces)
    for name in ("used_bytes", "payload_bytes"):
        assert capacity[name] == sum(space[name] for space in spaces), name
    used = sum(one["slots"]["live"] * one["slot_bytes"] for one in status["classes"])
    assert capacity["used_bytes"] == used
