"""The crash kit: it passes on this build, refuses what is in use, notices broken promises, and cleans up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rawblockd.torture import rounds
from rawblockd.torture.daemon import TorturedDaemon
from rawblockd.torture.runner import TortureOptions, Verdict, run_torture
from storage.errors import CachePresent, DeviceInUse, ForeignContent
from storage.formatting import format_device
from storage.torture.closed_device import ClosedDevice, undo
from tests.support.commands import run_command
from tests.support.daemon_process import clean_environment
from tests.support.device_holders import held_elsewhere

MIB = 1 << 20
SIZE_BYTES = 48 * MIB
FIELDS = {
    "verdict": str,
    "rounds": int,
    "kills": int,
    "kills_with_requests_in_flight": int,
    "torn": int,
    "flips": int,
    "injected": int,
    "operations": int,
    "keys_checked": int,
    "failures": list,
    "seconds": float,
}
LYING_SERVER = (sys.executable, "-m", "tests.support.lying_server", "--lie")


def no_process_uses(path: Path) -> bool:
    """Whether the device can be had at once: whoever held it is gone."""
    with ClosedDevice(str(path)):
        return True


def test_a_run_passes_and_says_what_it_did(tmp_path: Path) -> None:
    """One round of each kind, on this build."""
    device = tmp_path / "device"
    result = run_command(
        "torture", str(device), "--minutes", "0", "--kills", "6", "--size", "48MiB", "--seed", "short", "--json"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    verdict = json.loads(result.stdout)
    for name, kind in FIELDS.items():
        assert type(verdict[name]) is kind, name
    assert verdict["verdict"] == "passed"
    assert verdict["failures"] == []
    assert verdict["kills"] >= 6
    assert 0 < verdict["kills_with_requests_in_flight"] <= verdict["kills"]
    assert min(verdict["torn"], verdict["flips"], verdict["keys_checked"], verdict["operations"]) > 0
    assert not device.exists(), "a file of its own making is deleted"
    assert "Traceback" not in result.stderr


def test_a_cache_is_refused_and_left_alone(tmp_path: Path) -> None:
    """D5: never a used device."""
    device = tmp_path / "device"
    format_device(str(device), size_bytes=SIZE_BYTES)
    before = device.read_bytes()
    result = run_command("torture", str(device), "--json")
    answer = json.loads(result.stdout)
    assert (result.returncode, answer["code"]) == (CachePresent.exit_code, CachePresent.code)
    assert "fresh file" in answer["detail"] and "force" not in answer["detail"]
    assert device.read_bytes() == before


def test_other_content_is_refused_and_left_alone(tmp_path: Path) -> None:
    """D5: never anything foreign."""
    device = tmp_path / "device"
    device.write_bytes(b"somebody's" * 5_000_000)
    before = device.read_bytes()
    result = run_command("torture", str(device))
    assert result.returncode == ForeignContent.exit_code
    assert "fresh file" in result.stderr and "force" not in result.stderr and "Traceback" not in result.stderr
    assert device.read_bytes() == before


def test_a_held_device_is_refused(tmp_path: Path) -> None:
    """D6."""
    device = tmp_path / "device"
    device.write_bytes(bytes(SIZE_BYTES))
    with held_elsewhere(device), pytest.raises(DeviceInUse):
        run_torture(TortureOptions(str(device), 0))
    assert not any(device.read_bytes())


def test_a_blank_file_of_the_user_is_blank_again_afterwards(tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.write_bytes(bytes(SIZE_BYTES))
    verdict = run_torture(TortureOptions(str(device), 0, kills=1))
    assert verdict.passed, verdict.failures
    assert device.stat().st_size == SIZE_BYTES
    assert not any(device.read_bytes())


@pytest.mark.parametrize(
    ("lie", "what"),
    [
        ("forgets", r"version|wrong bytes|loss"),
        ("early", r"holds version \d+; only"),
        ("swaps", "wrong bytes|not whole"),
    ],
)
def test_a_broken_build_fails(lie: str, what: str, tmp_path: Path) -> None:
    """The kit notices: writes that never arrive, acknowledgements ahead of the journal, values that change."""
    device = tmp_path / "device"
    verdict = run_torture(
        TortureOptions(str(device), 0, SIZE_BYTES, kills=40, seed="lying", server=(*LYING_SERVER, lie))
    )
    assert verdict.verdict == "failed"
    [failure] = verdict.failures
    assert failure["kind"] in rounds.KINDS, failure
    assert re.search(what, failure["what"]) and failure["seed"].startswith("lying/"), failure
    assert verdict.kept and device.exists(), "what was found stays for inspection"
    assert verdict.facts()["device"] == str(device)
    assert no_process_uses(device)


def test_a_silent_loss_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """R2: an entry that is damaged, and then simply not there, is no miss like any other."""
    monkeypatch.setattr(rounds, "KINDS", ("flip",))
    device = tmp_path / "device"
    server = (*LYING_SERVER, "silent")
    verdict = run_torture(TortureOptions(str(device), 0, SIZE_BYTES, kills=40, seed="silent", server=server))
    assert verdict.verdict == "failed"
    assert "silent loss" in verdict.failures[0]["what"]
    assert any("payload" in edit or "record" in edit for edit in verdict.failures[0]["edits"])


def test_the_exit_code_of_a_failed_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import typer

    from rawblockd.command_line import torture
    from rawblockd.torture import runner
    from rawblockd.torture.rounds import Tally

    def failed(options: TortureOptions, *_: Any) -> Verdict:
        found = [{"seed": "1/0", "round": 0, "kind": "kill", "what": "lost", "edits": []}]
        return Verdict("failed", options.seed, options.path, True, Tally(), 0, 0.0, found)

    monkeypatch.setattr(runner, "run_torture", failed)
    with pytest.raises(typer.Exit) as exit_:
        torture.torture(str(tmp_path / "device"), json=True)
    assert exit_.value.exit_code == 3


def test_sigterm_leaves_no_daemon_behind(tmp_path: Path) -> None:
    """Whoever ends the kit ends what it started."""
    device = tmp_path / "device"
    kit = subprocess.Popen(
        [sys.executable, "-m", "rawblockd", "torture", str(device), "--minutes", "2", "--size", "48MiB"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=clean_environment(),
    )
    children = Path(f"/proc/{kit.pid}/task/{kit.pid}/children")
    try:
        while not (found := children.read_text().split()):
            assert kit.poll() is None
            os.sched_yield()
        kit.send_signal(signal.SIGTERM)
        assert kit.wait(60) == 128 + signal.SIGTERM
    finally:
        if kit.poll() is None:
            kit.kill()
        kit.wait(60)
    assert not any(Path(f"/proc/{child}").exists() for child in found)


def test_edits_are_remembered_and_taken_back(tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.write_bytes(bytes(range(256)) * 4096)
    before = device.read_bytes()
    with ClosedDevice(str(device)) as closed:
        closed.edit("a", 1000, b"torn" * 2000)
        closed.edit("b", 4000, b"over it")
        closed.flip("c", 1048575, 0x80)
        closed.edit("nothing new", 20_000, before[20_000:20_100])
        edits = closed.edits
    assert [edit.what for edit in edits] == ["a", "b", "c"]
    assert device.read_bytes() != before
    undo(str(device), edits)
    assert device.read_bytes() == before


def test_a_daemon_that_ends_by_itself_is_noticed(tmp_path: Path) -> None:
    with TorturedDaemon((sys.executable, "-c", "import sys; sys.exit(7)"), str(tmp_path / "none"), tmp_path) as daemon:
        from rawblockd.torture.daemon import DaemonRefusedStart

        with pytest.raises(DaemonRefusedStart) as refused:
            daemon.wait_serving()
    assert refused.value.exit_code == 7
