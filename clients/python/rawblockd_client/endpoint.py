"""Where a daemon listens."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

DEFAULT_PORT = 8790


@dataclass(frozen=True)
class Endpoint:
    """``unix_path`` given: a Unix socket; else TCP, with TLS if ``tls``."""

    host: str
    port: int
    tls: bool = False
    unix_path: str | None = None

    @property
    def origin(self) -> str:
        """What a URL begins with."""
        return f"{'https' if self.tls else 'http'}://{self.authority}"

    @property
    def authority(self) -> str:
        if self.unix_path is not None:
            return self.host
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_endpoint(address: str) -> Endpoint:
    """``http://host:port``, ``https://host:port``, ``unix:/path`` or the plain path of a socket. Raises ValueError."""
    if address.startswith("/"):
        return Endpoint("localhost", 0, unix_path=address)
    parts = urlsplit(address)
    if parts.scheme == "unix":
        path = unquote(parts.path)
        if parts.netloc or not path.startswith("/"):
            raise ValueError("a Unix socket is named by its whole path: unix:/run/rawblockd/rawblockd.sock")
        return Endpoint("localhost", 0, unix_path=path)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{address!r} is no http, https or unix address")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError("an address has a host and a port and nothing else")
    return Endpoint(parts.hostname, parts.port or DEFAULT_PORT, tls=parts.scheme == "https")
