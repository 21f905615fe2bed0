"""Tokens and TLS, of both clients."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from api.access.roles import Role
from rawblockd_client import NO_RETRIES, Client, ClientClosed, ConnectionFailed
from rawblockd_client.endpoint import Endpoint, parse_endpoint
from rawblockd_client.problems import Forbidden, Unauthenticated
from tests.access.servers import Holder, make_certificate, write_tokens
from tests.client.places import opened
from tests.support.daemon_process import DaemonProcess

KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


@dataclass
class Secured:
    url: str
    context: ssl.SSLContext
    token: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secure")
    certificate, key = make_certificate(folder, "served")
    holder = Holder("client", Role.WRITER, ("mine",))
    tokens = write_tokens(folder / "tokens.toml", holder)
    flags = (
        "--device", str(folder / "device"), "--create", "--size", "64MiB", "--token-file", str(tokens),
        "--tls-certificate", str(certificate), "--tls-key", str(key),
    )  # fmt: skip
    with DaemonProcess(folder / "log", *flags) as daemon:
        daemon.wait_logged("ready")
        context = ssl.create_default_context(cafile=str(certificate))
        yield Secured(f"https://localhost:{daemon.port}", context, holder.token)
        assert daemon.stop() == 0
    (folder / "device").unlink()


@KINDS
async def test_a_token_opens_its_namespace_over_tls(kind: str, secured: Secured) -> None:
    async with opened(kind, secured.url, token=secured.token, tls=secured.context) as client:
        await client.put("mine", "key", b"x" * 1_000_000)
        assert await client.get("mine", "key") == b"x" * 1_000_000
        with pytest.raises(Forbidden) as refused:
            await client.put("others", "key", b"x")
        assert refused.value.fields["role"] == "writer"
    async with opened(kind, secured.url, tls=secured.context) as client:
        with pytest.raises(Unauthenticated):
            await client.get("mine", "key")


@KINDS
async def test_a_certificate_of_nobody_known_is_refused(kind: str, secured: Secured) -> None:
    async with opened(kind, secured.url, token=secured.token, retries=NO_RETRIES) as client:
        with pytest.raises(ConnectionFailed, match=r"(?i)certificate"):
            await client.get("mine", "key")


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("http://host:1", Endpoint("host", 1)),
        ("https://host", Endpoint("host", 8790, tls=True)),
        ("http://[::1]:2/", Endpoint("::1", 2)),
        ("/run/s", Endpoint("localhost", 0, unix_path="/run/s")),
        ("unix:/run/s", Endpoint("localhost", 0, unix_path="/run/s")),
        ("unix:///run/a%20b", Endpoint("localhost", 0, unix_path="/run/a b")),
    ],
)
def test_addresses(address: str, found: Endpoint) -> None:
    assert parse_endpoint(address) == found


@pytest.mark.parametrize("address", ["", "host:1", "ftp://host", "unix:relative", "http://host/path", "http://a@host"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"address|socket"):
        Client(address)


def test_a_closed_client_says_so(secured: Secured) -> None:
    client: Any = Client(secured.url, tls=secured.context, token=secured.token)
    client.put("mine", "key", b"")
    client.close()
    with pytest.raises(ClientClosed):
        Client.get(client, "mine", "key")
