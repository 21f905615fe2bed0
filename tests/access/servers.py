"""Daemons with tokens, and requests to them."""

from __future__ import annotations

import base64
import http.client
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from api.access.roles import Role
from api.access.token_file import token_line
from api.access.tokens import digest_of, make_token
from tests.http.raw_client import RawAnswer, RawClient
from tests.support.daemon_process import DaemonProcess

SIZE = ("--create", "--size", "64MiB")


@dataclass(frozen=True)
class Holder:
    """A token and what it was made for."""

    name: str
    role: Role
    namespaces: tuple[str, ...] = ()
    rate: float | None = None
    token: str = field(default_factory=make_token)

    @property
    def line(self) -> str:
        return token_line(self.name, digest_of(self.token.encode()), self.role, list(self.namespaces), self.rate) + "\n"

    @property
    def bearer(self) -> tuple[str, str]:
        return "Authorization", f"Bearer {self.token}"

    @property
    def basic(self) -> tuple[str, str]:
        return "Authorization", "Basic " + base64.b64encode(f"whoever:{self.token}".encode()).decode()


def write_tokens(path: Path, *holders: Holder) -> Path:
    path.write_text("".join(holder.line for holder in holders))
    path.chmod(0o600)
    return path


class Guarded:
    """A running daemon with its token file."""

    def __init__(self, folder: Path, *arguments: str, holders: tuple[Holder, ...], **environment: str) -> None:
        self.folder = folder
        self.token_file = write_tokens(folder / "tokens.toml", *holders)
        self.process = DaemonProcess(
            folder / "log",
            "--device", str(folder / "device"), *SIZE,
            "--token-file", str(self.token_file), *arguments,
            **environment,
        )  # fmt: skip

    def __enter__(self) -> Guarded:
        self.process.__enter__()
        self.process.wait_logged("ready")
        return self

    def __exit__(self, *error: object) -> None:
        self.process.__exit__(*error)
        (self.folder / "device").unlink(missing_ok=True)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.process.port

    def ask(
        self,
        method: str,
        path: str,
        *headers: tuple[str, str],
        body: bytes | None = None,
        holder: Holder | None = None,
        port: int | None = None,
    ) -> RawAnswer:
        """One request on a connection of its own; of an answer without a length only the head."""
        shown = [] if holder is None else [holder.bearer]
        with RawClient(self.address if port is None else ("127.0.0.1", port)) as client:
            client.send(_request(method, path, [*shown, *headers], body))
            answer = client.answer_head()
            length = answer.header("content-length")
            if method != "HEAD" and length is not None:
                answer.body = client.read(int(length))
            return answer


def _request(method: str, path: str, headers: list[tuple[str, str]], body: bytes | None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "Connection: close"]
    if not any(name.lower() == "host" for name, _ in headers):
        lines.insert(1, "Host: localhost")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


def openapi(guarded: Guarded, holder: Holder) -> dict[str, Any]:
    document = json.loads(guarded.ask("GET", "/openapi.json", holder=holder).body)
    assert isinstance(document, dict)
    return document


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for this machine's loopback names, and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout", str(key), "-out", str(certificate),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )  # fmt: skip
    return certificate, key


def plain_connection(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=60)
