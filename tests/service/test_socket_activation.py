"""Sockets that systemd passes: by the real ``systemd-socket-activate``, and what is refused."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rawblockd.command_line.daemon_client import UnixConnection
from rawblockd.socket_activation import ADMIN, FIRST_DESCRIPTOR, HTTP, inherited_sockets
from storage.errors import SettingsInvalid
from tests.support.daemon_process import START_SECONDS, DaemonProcess, clean_environment

SERVE = (sys.executable, "-m", "rawblockd", "serve", "--log-format", "json", "--create", "--size", "64MiB")


class ActivatedProcess(DaemonProcess):
    """A daemon that ``systemd-socket-activate`` starts at the first connection."""

    def __init__(self, log_path: Path, device: Path, *arguments: str) -> None:
        self._log_path = log_path
        variables = [f"--setenv={name}={value}" for name, value in clean_environment().items()]
        command = ["systemd-socket-activate", *variables, *arguments, *SERVE, "--device", str(device)]
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def records(self) -> list[dict[str, Any]]:
        # systemd-socket-activate writes to the same log, in a manner of its own.
        lines = [line for line in self.log_text().split("\n")[:-1] if line.startswith("{")]
        return [json.loads(line) for line in lines]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def wait_listening(path: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def answer(connection: http.client.HTTPConnection, path: str) -> tuple[int, bytes]:
    """One request; a daemon that begins answers 503 first, so it's asked until it's ready."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        if response.status != 503 or time.monotonic() > deadline:
            return response.status, body
        time.sleep(0.02)


def test_a_unix_socket_and_a_port_by_one_name(tmp_path: Path) -> None:
    path, port = tmp_path / "socket", free_port()
    listens = (f"--listen={path}", f"--listen=127.0.0.1:{port}", "--fdname=http:http")
    with ActivatedProcess(tmp_path / "log", tmp_path / "device", *listens) as daemon:
        wait_listening(path)
        # Nothing runs yet. What connects now waits for the daemon instead of being refused.
        connection = UnixConnection(str(path), START_SECONDS)
        assert answer(connection, "/readyz")[0] == 200
        assert daemon.wait_logged("listening")["url"] == f"unix://{path}, http://127.0.0.1:{port}"
        other = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
        assert answer(other, "/readyz")[0] == 200
        connection.close()
        other.close()
        assert daemon.stop() == 0
    assert path.exists(), "the socket's file is systemd's to remove"


def test_the_operators_socket(tmp_path: Path) -> None:
    clients, operators = tmp_path / "clients", tmp_path / "operators"
    listens = (f"--listen={clients}", f"--listen={operators}", "--fdname=http:admin")
    with ActivatedProcess(tmp_path / "log", tmp_path / "device", *listens) as daemon:
        wait_listening(operators)
        operator, client = UnixConnection(str(operators), START_SECONDS), UnixConnection(str(clients), START_SECONDS)
        assert answer(operator, "/readyz")[0] == 200
        assert answer(operator, "/v1/status")[0] == 200
        assert answer(client, "/v1/status")[0] in (403, 404), "control routes are the operators' alone then"
        assert daemon.wait_logged("listening")["admin_url"] == f"unix://{operators}"
        operator.close()
        client.close()
        assert daemon.stop() == 0


@pytest.mark.parametrize("arguments", [("--fdname=http:metrics",), ("--datagram",)], ids=["name", "kind"])
def test_a_wrong_socket_ends_the_start(arguments: tuple[str, ...], tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    listens = [f"--listen={path}" for path in paths]
    with ActivatedProcess(tmp_path / "log", tmp_path / "device", *listens, *arguments) as daemon:
        wait_listening(paths[1])
        kind = socket.SOCK_DGRAM if "--datagram" in arguments else socket.SOCK_STREAM
        with socket.socket(socket.AF_UNIX, kind) as client:
            client.connect(str(paths[0]))
            if kind is socket.SOCK_DGRAM:
                client.send(b"x")
            assert daemon.wait() == SettingsInvalid.exit_code
        assert "settings_invalid" in daemon.log_text()
    assert not (tmp_path / "device").exists(), "nothing was touched"


# -- the variables, in a process of its own: the descriptors have fixed numbers -------------------------------------

CHILD = """\
import os, socket, sys
from rawblockd.socket_activation import inherited_sockets
from storage.errors import SettingsInvalid
passed = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
passed.bind(("127.0.0.1", 0))
if sys.argv[1] != "bound":
    passed.listen()
for number in (3, 4):
    os.dup2(passed.fileno(), number) if passed.fileno() != number else None
os.environ["LISTEN_PID"] = str(os.getpid() + int(sys.argv[2]))
try:
    found = inherited_sockets()
except SettingsInvalid as error:
    print("refused:", error.detail)
else:
    print({name: len(sockets) for name, sockets in found.items()})
    assert not [name for name in os.environ if name.startswith("LISTEN_")]
    assert inherited_sockets() == {}
    assert not any(os.get_inheritable(one.fileno()) or one.getblocking() for many in found.values() for one in many)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("state", "pid_offset", "count", "names", "said"),
    [
        ("listening", 0, "1", "http", "{'http': 1}"),
        ("listening", 0, "1", "admin", "{'admin': 1}"),
        ("listening", 0, "1", "rawblockd.socket", "{'http': 1}"),
        ("listening", 0, "1", None, "{'http': 1}"),
        ("listening", 0, "2", "http:admin", "{'http': 1, 'admin': 1}"),
        ("listening", 0, "2", "admin:admin", "{'admin': 2}"),
        ("listening", 1, "2", "http:admin", "{}"),
        ("listening", 0, "2", None, "refused: a socket passed by systemd is named ''"),
        ("listening", 0, "2", "http:other", "refused: a socket passed by systemd is named 'other'"),
        ("listening", 0, "2", "http", "refused: LISTEN_FDNAMES has 1 names for 2 sockets"),
        ("listening", 0, "x", "http", "refused: LISTEN_FDS is 'x'"),
        ("listening", 0, "65", None, "refused: LISTEN_FDS is '65'"),
        ("bound", 0, "1", "http", "refused: descriptor 3 (http) is no listening TCP or Unix socket"),
    ],
)
def test_the_variables(state: str, pid_offset: int, count: str, names: str | None, said: str) -> None:
    variables = {"LISTEN_FDS": count} | ({"LISTEN_FDNAMES": names} if names is not None else {})
    result = subprocess.run(
        [sys.executable, "-c", CHILD, state, str(pid_offset)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=clean_environment(**variables),
    )
    assert result.stdout.startswith(said), result.stdout


def test_without_activation_there_is_nothing() -> None:
    assert inherited_sockets({}) == {}
    assert inherited_sockets({"LISTEN_FDS": "1", "LISTEN_PID": "1"}) == {}
    assert (HTTP, ADMIN, FIRST_DESCRIPTOR) == ("http", "admin", 3)
