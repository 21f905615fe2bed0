"""Holds a restarted daemon to what its clients were promised before."""

from __future__ import annotations

from rawblockd.torture.ledger import ABSENT, Ledger
from rawblockd.torture.load import NAMESPACE, Mix, check_found, exchange, path_of
from rawblockd.torture.verification import check_accounting
from tests.support.daemon_process import DaemonProcess


def check_restarted(daemon: DaemonProcess, ledger: Ledger, mix: Mix) -> None:
    """D2, B1, A1, A2 and R2 after a restart: every key, the accounting, and no partial recovery.

    Where the daemon may evict, a key may be gone; it still never holds what is past. What is found becomes the
    keys' only past, so that nothing older may come back later.
    """
    live = 0
    connection = daemon.connect()
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
