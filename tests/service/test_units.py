"""systemd accepts the units, finds them hard enough, and they say what the daemon needs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rawblockd.documents import hopeless_exit_codes
from rawblockd.error_tree import error_classes
from rawblockd.settings import Settings
from rawblockd.socket_activation import HTTP
from rawblockd.supervision import EXTENSION_SECONDS, HANG_INTERVALS
from tests.service.unit_files import (
    FOLDER,
    SERVICES,
    SOCKETS,
    analyze,
    installed,
    settings,
    value,
    values,
)

PAGE = FOLDER.parent / "docs" / "deployment.md"
EXPOSURE_MAX = 20
"""In tenths, as ``--threshold`` takes it."""


@pytest.mark.parametrize("unit", [*SERVICES, *SOCKETS])
def test_systemd_accepts_the_unit(unit: str, tmp_path: Path) -> None:
    assert analyze("verify", "--man=no", installed(tmp_path) / unit) == (0, "")


def test_systemd_would_see_a_mistake(tmp_path: Path) -> None:
    _, said = analyze("verify", "--man=no", installed(tmp_path, Restart="Restrat") / SERVICES[0])
    assert "Restrat" in said


@pytest.mark.parametrize("unit", SERVICES)
def test_exposure(unit: str, tmp_path: Path) -> None:
    folder = installed(tmp_path)
    arguments = ("security", "--offline=true", f"--threshold={EXPOSURE_MAX}")
    code, said = analyze(*arguments, folder / unit)
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d)", said)
    assert found, said
    assert float(found[1]) <= EXPOSURE_MAX / 10
    assert code == 0
    assert f"`systemd-analyze security rawblockd` says {found[1]} of 10" in PAGE.read_text()


def test_the_threshold_would_be_noticed(tmp_path: Path) -> None:
    folder = installed(
        tmp_path, **{"NoNewPrivileges=yes": "", "CapabilityBoundingSet=": "#", "ProtectSystem=strict": ""}
    )
    code, _ = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", folder / SERVICES[0])
    assert code != 0


def test_both_services_differ_in_names_alone() -> None:
    single, template = settings(SERVICES[0]), settings(SERVICES[1])
    assert [name for name, _ in single] == [name for name, _ in template]
    differing = {name: (one, other) for (name, one), (_, other) in zip(single, template, strict=True) if one != other}
    assert set(differing) == {"Description", "ExecStart", "DeviceAllow", "RuntimeDirectory", "StateDirectory"}
    assert all("%i" in other and "%i" not in one for one, other in differing.values())


@pytest.mark.parametrize("unit", SERVICES)
def test_no_restart_exactly_where_it_cannot_help(unit: str) -> None:
    prevented = [int(code) for code in value(unit, "RestartPreventExitStatus").split()]
    assert prevented == hopeless_exit_codes()


def test_every_exit_code_is_either_hopeless_or_not() -> None:
    helps: dict[int, bool] = {}
    for _, kind in error_classes():
        assert helps.setdefault(kind.exit_code, kind.restart_helps) == kind.restart_helps, kind
    # A device held by another process, or one that fails, may be free or back after a while.
    assert {code for code, yes in helps.items() if yes and 10 <= code < 40} == {11, 20, 21}


@pytest.mark.parametrize("unit", SERVICES)
def test_exactly_one_device(unit: str) -> None:
    assert value(unit, "DevicePolicy") == "closed"
    path, access = value(unit, "DeviceAllow").split()
    assert path.startswith("/dev/rawblockd/")
    assert access == "rw"
    names = {name for name, _ in settings(unit)}
    # Each of these brings devices of its own.
    assert not names & {"ProtectClock", "SupplementaryGroups"}


@pytest.mark.parametrize("unit", SERVICES)
def test_the_process_side(unit: str) -> None:
    assert value(unit, "Type") == "notify"
    assert value(unit, "NotifyAccess") == "main"
    assert value(unit, "ExecReload") == "/bin/kill -HUP $MAINPID"
    assert value(unit, "Restart") == "on-failure"
    assert value(unit, "WatchdogSec") == "30s"


@pytest.mark.parametrize("unit", SOCKETS)
def test_the_sockets_have_a_name_that_the_daemon_knows(unit: str) -> None:
    assert values(unit, "FileDescriptorName") == [HTTP]


def test_the_user_is_one_that_systemd_can_make(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    command = ["systemd-sysusers", f"--root={tmp_path}", str(FOLDER / "rawblockd.sysusers")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert re.search(r"^rawblockd:x:\d+:\d+:", (tmp_path / "etc" / "passwd").read_text(), re.MULTILINE)
    assert re.search(r"^rawblockd:x:\d+:$", (tmp_path / "etc" / "group").read_text(), re.MULTILINE)
    assert {value(unit, name) for unit in SERVICES for name in ("User", "Group")} == {"rawblockd"}


def test_the_udev_rule_names_the_device_as_the_unit_does() -> None:
    (rule,) = [line for line in (FOLDER / "90-rawblockd.rules").read_text().splitlines() if line.startswith("ENV{DEV")]
    tokens = dict(re.findall(r'([A-Z_]+(?:\{\w+\})?(?:\+=|==|=))"([^"]*)"(?:, |$)', rule))
    assert tokens["GROUP="] == value(SERVICES[0], "Group")
    assert int(tokens["MODE="], 8) == 0o660
    assert f"/dev/{tokens['SYMLINK+=']} rw" == value(SERVICES[0], "DeviceAllow")
    assert tokens["ENV{SYSTEMD_WANTS}+="] == SERVICES[0]


def test_the_page_names_what_there_is() -> None:
    """Files, settings and names of docs/deployment.md."""
    text = PAGE.read_text()
    root = FOLDER.parent
    for name in re.findall(r"\b(?:systemd|metrics|compose)/[\w@.-]+\w", text):
        assert (root / name).is_file() or name in ("systemd/system",), name
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (PAGE.parent / link).is_file(), link
    for variable in re.findall(r"RAWBLOCKD_([A-Z_]+)", text):
        assert variable.lower() in Settings.model_fields, variable
    for unit in SERVICES:
        assert f"TimeoutStartSec={value(unit, 'TimeoutStartSec')}" in text
        assert f"TimeoutStopSec={value(unit, 'TimeoutStopSec')}" in text
    assert value(SERVICES[0], "WatchdogSec") == "30s"
    assert f"After two intervals ({HANG_INTERVALS * 30} s)" in text
    assert f"extended by {EXTENSION_SECONDS:.0f} s" in text
