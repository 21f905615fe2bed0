"""TLS at the TCP listeners: versions, certificates that change, client certificates, and clients that are slow."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import rawblockd.tls
from rawblockd.command_line.daemon_client import Target, exchange
from rawblockd.errors import DaemonUnreachable
from rawblockd.http_server import HttpServer
from rawblockd.listening import listen
from rawblockd.settings_sources import load_settings
from rawblockd.tls import tls_context
from storage.errors import SettingsInvalid
from tests.access.servers import SIZE, make_certificate
from tests.http.raw_client import request
from tests.support.daemon_process import DaemonProcess

MIB = 1 << 20


@dataclass(frozen=True)
class Secured:
    """A daemon with TLS and short patience; ``certificate`` is the file that it serves, ``other`` another."""

    daemon: DaemonProcess
    certificate: Path
    key: Path
    other: tuple[Path, Path]

    @property
    def port(self) -> int:
        return self.daemon.port

    def context(self, certificate: Path | None = None) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(certificate or self.certificate))

    def connect(self, context: ssl.SSLContext | None = None, receive_buffer_bytes: int | None = None) -> ssl.SSLSocket:
        plain = socket.socket()
        if receive_buffer_bytes is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        plain.settimeout(60)
        plain.connect(("127.0.0.1", self.port))
        return (context or self.context()).wrap_socket(plain, server_hostname="localhost")

    def http(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("localhost", self.port, timeout=60, context=self.context())

    def open_connections(self) -> int:
        """Connections as the daemon's process has them, by the sockets of its port."""
        found = 0
        for name in ("tcp", "tcp6"):
            for line in Path(f"/proc/{self.daemon.process.pid}/net/{name}").read_text().splitlines()[1:]:
                local, state = line.split()[1], line.split()[3]
                found += local.endswith(f":{self.port:04X}") and state == "01"
        return found

    def wait_for_connections(self, at_most: int) -> None:
        deadline = time.monotonic() + 30
        while self.open_connections() > at_most:
            assert time.monotonic() < deadline, "the daemon keeps a connection"
            time.sleep(0.02)


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    first, second = make_certificate(folder, "first"), make_certificate(folder, "second")
    certificate, key = folder / "served.pem", folder / "served.key"
    shutil.copy(first[0], certificate)
    shutil.copy(first[1], key)
    arguments = (
        "--device", str(folder / "device"), "--create", "--size", "256MiB",
        "--tls-certificate", str(certificate), "--tls-key", str(key),
        "--body-timeout-seconds", "1", "--send-timeout-seconds", "1",
        "--uds", str(folder / "s"), "--tcp",
    )  # fmt: skip
    with DaemonProcess(folder / "log", *arguments) as daemon:
        daemon.wait_logged("ready")
        yield Secured(daemon, certificate, key, second)
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log_text()
    (folder / "device").unlink()


def test_large_values_arrive_whole(secured: Secured) -> None:
    connection = secured.http()
    for size in (0, 1, 4096, MIB, MIB + 1):
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        connection.request("PUT", f"/v1/kv/tls/{size}", body=body)
        assert connection.getresponse().read() == b""
        connection.request("GET", f"/v1/kv/tls/{size}")
        assert connection.getresponse().read() == body
    connection.close()


def test_the_unix_socket_speaks_no_tls(secured: Secured) -> None:
    url = str(secured.daemon.wait_logged("listening")["url"])
    assert "https://" in url
    assert exchange(Target(url.partition(",")[0]), "GET", "/readyz?verbose", 30)[0] == 200


def test_what_is_no_tls_is_cut_off(secured: Secured) -> None:
    with socket.create_connection(("127.0.0.1", secured.port), 30) as client:
        client.sendall(request("GET", "/livez"))
        received = client.recv(1000)
    assert b"HTTP" not in received


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_1_2_and_1_3(secured: Secured, version: ssl.TLSVersion) -> None:
    context = secured.context()
    context.minimum_version = context.maximum_version = version
    with secured.connect(context) as client:
        assert client.version() == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]


def test_nothing_older(tmp_path: Path) -> None:
    """OpenSSL's own client refuses to speak it here, so the server's setting is what can be seen."""
    certificate, key = make_certificate(tmp_path, "c")
    context = tls_context(load_settings({"tls_certificate": str(certificate), "tls_key": str(key)}))
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_request_in_crumbs_and_one_with_another_behind_it(secured: Secured) -> None:
    with secured.connect() as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request("GET", "/livez"):
            client.sendall(bytes([byte]))
        client.sendall(request("GET", "/livez"))
        received = b""
        while received.count(b"alive\n") < 2:
            part = client.recv(1000)
            assert part, received
            received += part


def test_a_refused_head_is_answered(secured: Secured) -> None:
    """TLS has no half-closed connections, which the refusal without TLS is made of."""
    with secured.connect() as client:
        client.sendall(b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while part := client.recv(65536):
            received += part
    assert received.startswith(b"HTTP/1.1 414 ")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["code"] == "target_too_long"


# Slow and half-gone clients


def test_a_handshake_that_never_ends_is_given_up(secured: Secured) -> None:
    with socket.create_connection(("127.0.0.1", secured.port), 30) as client:
        assert client.recv(1) == b""


def test_silent_clients_are_cut_off(secured: Secured) -> None:
    put = b"PUT /v1/kv/tls/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"
    silent = [(sent, secured.connect()) for sent in (b"", b"GET / HTT", put)]
    for sent, client in silent:
        client.sendall(sent)
    for sent, client in silent:
        received = b""
        while part := client.recv(65536):
            received += part
        client.close()
        assert received.startswith(b"HTTP/1.1 408 ") if sent == put else received == b""


def test_a_client_that_reads_nothing_is_cut_off(secured: Secured) -> None:
    connection = secured.http()
    connection.request("PUT", "/v1/kv/tls/large", body=b"x" * MIB)
    assert connection.getresponse().status in (201, 204)
    connection.close()
    secured.wait_for_connections(0)
    with secured.connect(receive_buffer_bytes=4096) as client:
        for _ in range(20):
            client.sendall(request("GET", "/v1/kv/tls/large"))
        secured.wait_for_connections(0)


def test_a_client_that_leaves_within_a_put_leaves_nothing(secured: Secured) -> None:
    """With a goodbye and without one."""
    for is_polite in (True, False):
        client = secured.connect()
        client.sendall(b"PUT /v1/kv/tls/gone HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nabc")
        if is_polite:
            client.unwrap()
        client.close()
    secured.wait_for_connections(0)
    connection = secured.http()
    connection.request("GET", "/v1/kv/tls/gone")
    assert connection.getresponse().status == 404
    connection.close()


def test_a_half_closed_connection_is_no_mistake(secured: Secured) -> None:
    """A client that ends its side right behind its request gets the answer or the end, and the daemon goes on."""
    with secured.connect() as client:
        client.sendall(request("GET", "/livez"))
        # The same connection below TLS: Python's own shutdown would end TLS on this side too.
        with socket.socket(fileno=os.dup(client.fileno())) as below:
            below.shutdown(socket.SHUT_WR)
        try:
            received = client.recv(65536)
        except (ssl.SSLError, ConnectionResetError):
            received = b""
        assert received == b"" or received.startswith(b"HTTP/1.1 200 ")
    secured.wait_for_connections(0)


async def test_handshakes_under_way_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rawblockd.tls, "HANDSHAKES_MAX", 2)
    certificate, key = make_certificate(tmp_path, "c")
    settings = load_settings({"port": 0, "tls_certificate": str(certificate), "tls_key": str(key)})
    listener = listen(settings)
    port = int(listener.url.rpartition(":")[2])
    server = HttpServer(answer_nothing, settings, tls=tls_context(settings))
    serving = asyncio.create_task(server.serve(sockets=listener.sockets))
    try:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        unheard, unheard_writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(unheard.read(), 30) == b""
        assert [reader.at_eof() for reader, _ in silent] == [False, False], "those before it are still at theirs"
        for writer in (silent[0][1], silent[1][1], unheard_writer):
            writer.close()
        context = ssl.create_default_context(cafile=str(certificate))
        async with asyncio.timeout(30):
            while not await is_heard(port, context):
                await asyncio.sleep(0.01)
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, 30)
        listener.close()


async def is_heard(port: int, context: ssl.SSLContext) -> bool:
    try:
        _, writer = await asyncio.open_connection("localhost", port, ssl=context)
    except OSError:
        return False
    writer.transport.abort()
    return True


async def answer_nothing(_scope: object, _receive: object, _send: object) -> None:
    raise AssertionError("no request was sent")


# Certificates


def sighup(secured: Secured, event: str) -> None:
    before = sum(record["event"].startswith(event) for record in secured.daemon.records())
    secured.daemon.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 30
    while sum(record["event"].startswith(event) for record in secured.daemon.records()) == before:
        assert time.monotonic() < deadline, secured.daemon.log_text()
        time.sleep(0.01)


def test_a_new_certificate_holds_after_sighup_and_a_bad_one_does_not(secured: Secured) -> None:
    first, first_key = secured.certificate.read_bytes(), secured.key.read_bytes()
    old = ssl.create_default_context(cadata=first.decode())
    held = secured.connect(old)
    try:
        secured.certificate.write_bytes(secured.other[0].read_bytes())
        sighup(secured, "certificate not reloaded")
        secured.connect(old).close()
        secured.key.write_bytes(secured.other[1].read_bytes())
        sighup(secured, "certificate loaded")
        with pytest.raises(ssl.SSLError):
            secured.connect(old)
        secured.connect(secured.context(secured.other[0])).close()
        held.sendall(request("GET", "/livez"))
        assert held.recv(1000).startswith(b"HTTP/1.1 200 "), "connections from before go on"
    finally:
        held.close()
        secured.certificate.write_bytes(first)
        secured.key.write_bytes(first_key)
        sighup(secured, "certificate loaded")


def test_only_clients_with_a_certificate(tmp_path: Path) -> None:
    server, key = make_certificate(tmp_path, "server")
    client, client_key = make_certificate(tmp_path, "client")
    both = tmp_path / "both.pem"
    both.write_bytes(client.read_bytes() + client_key.read_bytes())
    arguments = ("--device", str(tmp_path / "device"), *SIZE, "--tls-certificate", str(server), "--tls-key", str(key))
    with DaemonProcess(tmp_path / "log", *arguments, "--tls-client-ca", str(client)) as daemon:
        daemon.wait_logged("ready")
        url = f"https://localhost:{daemon.port}"
        assert exchange(Target(url, ca=str(server), certificate=str(both)), "GET", "/livez", 30)[0] == 200
        with pytest.raises(DaemonUnreachable):
            exchange(Target(url, ca=str(server)), "GET", "/livez", 30)


def test_files_of_no_use_are_named(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "good")
    _, other_key = make_certificate(tmp_path, "other")
    locked = tmp_path / "locked.key"
    encrypting = ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:x", "-out", str(locked)]
    subprocess.run(encrypting, check=True, capture_output=True, timeout=60)
    good = {"tls_certificate": str(certificate), "tls_key": str(key)}
    assert tls_context(load_settings(good)) is not None
    for wrong in (
        {"tls_certificate": str(tmp_path / "none")},
        {"tls_key": str(tmp_path / "none")},
        {"tls_key": str(other_key)},
        {"tls_key": str(locked)},
        {"tls_client_ca": str(key)},
    ):
        with pytest.raises(SettingsInvalid, match=next(iter(wrong))):
            tls_context(load_settings(good | wrong))
