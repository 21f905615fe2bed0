"""The listening socket: refusals, stale and foreign socket files."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from rawblockd.errors import AddressUnavailable
from rawblockd.listening import listen
from rawblockd.settings_sources import load_settings


def test_a_free_port_and_the_same_again_is_in_use() -> None:
    listener = listen(load_settings({"port": 0}))
    port = int(listener.url.rpartition(":")[2])
    with pytest.raises(AddressUnavailable, match=str(port)) as caught:
        listen(load_settings({"port": port}))
    assert caught.value.exit_code == 4
    listener.close()
    listen(load_settings({"port": port})).close()


def test_ipv6_is_written_in_brackets() -> None:
    listener = listen(load_settings({"port": 0, "host": "::1"}))
    assert listener.url.startswith("http://[::1]:")
    listener.close()


@pytest.mark.parametrize("host", ["192.0.2.1", "nonsense.invalid", "a b"])
def test_an_address_that_is_not_ours(host: str) -> None:
    with pytest.raises(AddressUnavailable, match=host):
        listen(load_settings({"port": 0, "host": host, "allow_open_access": True}))


def test_unix_socket_and_its_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listener = listen(load_settings({"uds": str(path)}))
    assert listener.url == f"unix://{path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))
    with pytest.raises(AddressUnavailable, match="another process listens"):
        listen(load_settings({"uds": str(path)}))
    listener.close()
    assert not path.exists()


def test_a_stale_socket_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
        gone.bind(str(path))
    listener = listen(load_settings({"uds": str(path)}))
    listener.close()


def test_anything_else_at_the_path_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(AddressUnavailable, match="no socket"):
        listen(load_settings({"uds": str(path)}))
    assert path.read_text() == "precious"


def test_a_socket_file_that_another_daemon_put_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listener = listen(load_settings({"uds": str(path)}))
    os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        listener.close()
        assert path.exists()


def test_a_path_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(AddressUnavailable):
        listen(load_settings({"uds": str(tmp_path / ("a" * 200))}))
