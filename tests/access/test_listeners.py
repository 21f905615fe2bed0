"""Where the daemon listens: open access refused, Unix sockets with their modes, operators apart from clients."""

from __future__ import annotations

import grp
import http.client
import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from api.access.roles import Role
from rawblockd.command_line.daemon_client import Target, UnixConnection, exchange
from rawblockd.entrance import OPERATORS_CONNECTIONS_MAX
from rawblockd.errors import AddressUnavailable
from rawblockd.listening import listen, listen_for_operators
from rawblockd.settings_sources import load_settings
from storage.errors import SettingsInvalid
from tests.access.servers import SIZE, Guarded, Holder
from tests.support.daemon_process import DaemonProcess

OPERATOR = Holder("operator", Role.OPERATOR)


# Open access


def test_without_tokens_an_address_for_others_is_refused(tmp_path: Path) -> None:
    arguments = ("--device", str(tmp_path / "device"), *SIZE, "--host", "0.0.0.0")
    with DaemonProcess(tmp_path / "log", *arguments) as daemon:
        assert daemon.wait() == 2
        (error,) = [record for record in daemon.records() if record["level"] == "error"]
    assert error["code"] == "settings_invalid"
    for word in ("token_file", "rawblockd token", "127.0.0.1", "allow_open_access = true"):
        assert word in error["detail"]
    assert not (tmp_path / "device").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::ffff:0.0.0.0", "192.0.2.1"])
def test_no_listener_is_open_by_mistake(host: str) -> None:
    with pytest.raises(SettingsInvalid, match="allow_open_access"):
        listen(load_settings({"port": 0, "host": host}))
    with pytest.raises(SettingsInvalid, match="allow_open_access"):
        listen_for_operators(load_settings({"admin_port": 0, "admin_host": host}))


def test_open_access_is_there_for_those_who_ask_for_it(tmp_path: Path) -> None:
    arguments = ("--device", str(tmp_path / "device"), *SIZE, "--host", "0.0.0.0", "--allow-open-access")
    with DaemonProcess(tmp_path / "log", *arguments) as daemon:
        daemon.wait_ready()
        assert daemon.get("/v1/status")[0] == 200
        (warning,) = [record for record in daemon.records() if record["level"] == "warning"]
        assert "access is open" in warning["event"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost", "::ffff:127.0.0.1"])
def test_loopback_needs_no_tokens(host: str) -> None:
    listen(load_settings({"port": 0, "host": host})).close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::ffff:0.0.0.0"])
def test_with_tokens_any_address_will_do(host: str) -> None:
    listen(load_settings({"port": 0, "host": host, "token_file": "tokens.toml"})).close()


@pytest.mark.parametrize("listening", [listen, listen_for_operators])
def test_a_passed_socket_that_others_can_reach_is_refused_too(listening: Any) -> None:
    with socket.create_server(("0.0.0.0", 0)) as passed, pytest.raises(SettingsInvalid, match="allow_open_access"):
        listening(load_settings({}), [passed])
    with socket.create_server(("127.0.0.1", 0)) as passed:
        listening(load_settings({}), [passed]).close()


# Unix sockets


@pytest.mark.parametrize("mode", ["0660", "600", "0666"])
def test_a_unix_socket_has_its_mode_whatever_the_umask(mode: str, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        listener = listen(load_settings({"uds": str(tmp_path / "s"), "uds_mode": mode}))
        assert stat.S_IMODE(os.stat(tmp_path / "s").st_mode) == int(mode, 8)
        listener.close()
        assert os.umask(0o077) == 0o077, "the process's own umask is as it was"
    finally:
        os.umask(before)


def test_a_unix_socket_has_its_group(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getgroups()[-1] if os.getgroups() else os.getegid())
    for name in (group.gr_name, str(group.gr_gid)):
        listener = listen(load_settings({"uds": str(tmp_path / "s"), "uds_group": name}))
        assert os.stat(tmp_path / "s").st_gid == group.gr_gid
        listener.close()
    with pytest.raises(SettingsInvalid, match="no such group"):
        listen(load_settings({"uds": str(tmp_path / "s"), "uds_group": "no-such-group"}))


def test_a_group_that_can_not_be_given_leaves_no_socket_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(AddressUnavailable, match="not permitted"):
        listen(load_settings({"uds": str(tmp_path / "s"), "uds_group": "0"}))
    assert not (tmp_path / "s").exists()


def test_both_at_once_and_neither(tmp_path: Path) -> None:
    path = tmp_path / "s"
    arguments = ("--device", str(tmp_path / "device"), *SIZE, "--uds", str(path), "--tcp")
    with DaemonProcess(tmp_path / "log", *arguments) as daemon:
        daemon.wait_ready()
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
        put = UnixConnection(str(path), 30)
        put.request("PUT", "/v1/kv/a/k", body=b"through the socket")
        assert put.getresponse().status == 201
        put.close()
        assert daemon.get("/v1/kv/a/k") == (200, b"through the socket")
        assert daemon.stop() == 0
    assert not path.exists()
    with pytest.raises(SettingsInvalid, match="nowhere to listen"):
        listen(load_settings({"tcp": False}))


# Operators apart


def test_operators_have_their_own_listener(tmp_path: Path) -> None:
    socket_path = tmp_path / "admin"
    flags = ("--admin-port", "0", "--admin-uds", str(socket_path), "--max-connections", "2")
    with Guarded(tmp_path, *flags, holders=(OPERATOR,)) as daemon:
        admin = int(str(daemon.process.wait_logged("listening")["admin_url"]).rpartition(":")[2])
        control = ["/v1/status", "/v1/recovery", "/metrics", "/", "/v1/nothing"]
        values = ["/v1/kv/a/k", "/v1/kv/a"]
        for path in control:
            assert daemon.ask("GET", path, holder=OPERATOR).status == 404, path
        for path in ["/livez", "/readyz", "/docs", "/v1/events?wait=0"]:
            assert daemon.ask("GET", path, holder=OPERATOR).status == 200, path
            assert daemon.ask("GET", path, holder=OPERATOR, port=admin).status == 200, path
        for path in control[:-1]:
            assert daemon.ask("GET", path, holder=OPERATOR, port=admin).status == 200, path
            assert daemon.ask("GET", path, port=admin).status == 401, path
        assert daemon.ask("POST", "/v1/checkpoint", body=b"", holder=OPERATOR).status == 404
        assert daemon.ask("POST", "/v1/checkpoint", body=b"", holder=OPERATOR, port=admin).status == 200
        assert daemon.ask("PUT", "/v1/kv/a/k", body=b"x", holder=OPERATOR).status == 201
        for path in values:
            assert daemon.ask("GET", path, holder=OPERATOR, port=admin).status == 404, path
        assert daemon.ask("PUT", "/v1/kv/a/k", body=b"x", holder=OPERATOR, port=admin).status == 404
        status, answer = exchange(Target(f"unix://{socket_path}", OPERATOR.token), "GET", "/v1/status", 30)
        assert (status, answer["state"]) == (200, "ready")
        the_operators_come_in_while_clients_fill_their_listener(daemon, admin)


def the_operators_come_in_while_clients_fill_their_listener(daemon: Guarded, admin: int) -> None:
    held = [socket.create_connection(daemon.address) for _ in range(2)]
    try:
        answer = daemon.ask("GET", "/livez")
        assert (answer.status, answer.code) == (503, "too_many_connections")
        assert daemon.ask("GET", "/v1/status", holder=OPERATOR, port=admin).status == 200
        clients = [socket.create_connection(("127.0.0.1", admin)) for _ in range(OPERATORS_CONNECTIONS_MAX)]
        held += clients
        answer = daemon.ask("GET", "/livez", port=admin)
        assert (answer.status, answer.code) == (503, "too_many_connections")
    finally:
        for client in held:
            client.close()


# The Host field and other sites' pages


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("unguarded")
    flags = ("--uds", str(folder / "s"), "--tcp", "--allowed-hosts", "cache.example")
    with DaemonProcess(folder / "log", "--device", str(folder / "device"), *SIZE, *flags) as daemon:
        daemon.wait_ready()
        yield daemon


def socket_of(daemon: DaemonProcess) -> str:
    return str(daemon.wait_logged("listening")["url"]).partition(",")[0].removeprefix("unix://")


def answer(connection: http.client.HTTPConnection, method: str, path: str, fields: dict[str, str]) -> tuple[int, Any]:
    try:
        connection.request(method, path, headers=fields)
        got = connection.getresponse()
        raw = got.read()
        return got.status, json.loads(raw)["code"] if got.status >= 400 else None
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("host", "refused"),
    [
        ("evil.example", True),
        ("evil.example:1", True),
        ("cache.example", False),
        ("localhost:1", False),
        ("[::1]", False),
    ],
)
@pytest.mark.parametrize("path", ["/v1/kv/a/none", "/v1/status", "/livez", "/metrics", "/"])
def test_a_rebound_name_gets_nothing(unguarded: DaemonProcess, host: str, refused: bool, path: str) -> None:
    status, code = answer(unguarded.connect(), "GET", path, {"Host": host})
    assert ((status, code) == (421, "host_not_allowed")) is refused
    local = UnixConnection(socket_of(unguarded), 30)
    assert answer(local, "GET", path, {"Host": host})[0] != 421, "no browser reaches a Unix socket"


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "/v1/kv/a/k"), ("DELETE", "/v1/kv/a/k"), ("POST", "/v1/checkpoint"), ("POST", "/v1/recovery/acknowledge")],
)
@pytest.mark.parametrize(
    "fields",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_another_sites_page_changes_nothing(
    unguarded: DaemonProcess, method: str, path: str, fields: dict[str, str]
) -> None:
    assert answer(unguarded.connect(), method, path, fields) == (403, "cross_site")
