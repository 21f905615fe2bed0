"""The token file while the daemon runs: SIGHUP takes over what is good, and nothing of what is bad."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from api.access.roles import Role
from tests.access.servers import SIZE, Guarded, Holder, write_tokens
from tests.support.daemon_process import DaemonProcess

FIRST = Holder("first", Role.OPERATOR)
SECOND = Holder("second", Role.READER)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Guarded]:
    with Guarded(tmp_path, holders=(FIRST,)) as running:
        yield running


def reloaded(daemon: Guarded, event: str) -> None:
    """Send SIGHUP and wait until it has been dealt with."""
    before = sum(record["event"].startswith(event) for record in daemon.process.records())
    daemon.process.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 30
    while sum(record["event"].startswith(event) for record in daemon.process.records()) == before:
        assert time.monotonic() < deadline, daemon.process.log_text()
        time.sleep(0.01)


def status(daemon: Guarded, holder: Holder) -> int:
    return daemon.ask("GET", "/metrics", holder=holder).status


def test_tokens_come_and_go(daemon: Guarded) -> None:
    assert (status(daemon, FIRST), status(daemon, SECOND)) == (200, 401)
    write_tokens(daemon.token_file, FIRST, SECOND)
    assert status(daemon, SECOND) == 401, "nothing changes before SIGHUP"
    reloaded(daemon, "tokens loaded")
    assert (status(daemon, FIRST), status(daemon, SECOND)) == (200, 200)
    write_tokens(daemon.token_file, SECOND)
    reloaded(daemon, "tokens loaded")
    assert (status(daemon, FIRST), status(daemon, SECOND)) == (401, 200)


SPOILERS: dict[str, Callable[[Path], object]] = {
    "no TOML": lambda path: path.write_text(f"{SECOND.token}"),
    "writable by others": lambda path: path.chmod(0o666),
    "gone": lambda path: path.unlink(),
    "a bad line": lambda path: path.write_text(FIRST.line + SECOND.line.replace("reader", "admin")),
}


def test_a_bad_file_keeps_the_tokens_from_before(daemon: Guarded) -> None:
    for what, spoil in SPOILERS.items():
        spoil(daemon.token_file)
        reloaded(daemon, "tokens not reloaded")
        assert (status(daemon, FIRST), status(daemon, SECOND)) == (200, 401), what
        write_tokens(daemon.token_file, FIRST)
    assert SECOND.token not in daemon.process.log_text()
    write_tokens(daemon.token_file, SECOND)
    reloaded(daemon, "tokens loaded")
    assert (status(daemon, FIRST), status(daemon, SECOND)) == (401, 200), "and a good one still counts"


def test_a_bad_file_at_the_start_is_refused(tmp_path: Path) -> None:
    """Before the device is made, with the exit code of bad settings."""
    tokens = write_tokens(tmp_path / "tokens.toml", FIRST)
    tokens.chmod(0o622)
    arguments = ("--device", str(tmp_path / "device"), *SIZE, "--token-file", str(tokens))
    with DaemonProcess(tmp_path / "log", *arguments) as daemon:
        assert daemon.wait() == 2
        (error,) = [record for record in daemon.records() if record["level"] == "error"]
        assert error["code"] == "token_file_invalid"
        assert str(tokens) in error["detail"]
    assert not (tmp_path / "device").exists()
