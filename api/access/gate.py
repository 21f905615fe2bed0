"""The gate that every request passes before anything else looks at it: browser protection, token, rate."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from api.access.authorization import presented_token
from api.access.browsers import refuse_cross_site, refuse_rebound_name
from api.access.credentials import EVERYBODY, MALFORMED, NOBODY, Credentials
from api.access.tokens import TokenTable
from api.errors import RateLimited

HOSTS_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request came in. A Unix socket is out of a browser's reach."""

    is_loopback: bool = False
    """The request came to a loopback address: whoever means that says localhost, an address, or an allowed name."""
    is_tcp: bool = True


class Gate:
    """One for the daemon; ``tokens`` may be exchanged while it runs. None: there is no access control."""

    def __init__(self, tokens: TokenTable | None = None, allowed_hosts: frozenset[str] = frozenset()) -> None:
        self.tokens = tokens
        self._allowed_hosts = allowed_hosts
        self._good_hosts: set[bytes] = set()

    def admit(self, method: str, fields: Mapping[bytes, bytes], place: Place) -> Credentials:
        """The credentials of a request with these header fields (names in small letters).

        Raises HostNotAllowed, CrossSiteRefused and RateLimited. A missing or unknown token is no error yet: some routes
        are open, and ``require`` refuses at all others.
        """
        host = fields.get(b"host")
        if host not in self._good_hosts and host is not None and place.is_tcp:
            self._check_host(host, place)
        if b"sec-fetch-site" in fields or b"origin" in fields:
            refuse_cross_site(method, fields)
        if self.tokens is None:
            return EVERYBODY
        field = fields.get(b"authorization")
        if field is None:
            return NOBODY
        token = presented_token(field)
        if token is None:
            return MALFORMED
        credentials = self.tokens.find(token)
        if credentials.bucket is not None:
            wait_seconds = credentials.bucket.take(time.monotonic())
            if wait_seconds:
                raise RateLimited(requests_per_second=credentials.bucket.rate, retry_after_seconds=wait_seconds)
        return credentials

    def _check_host(self, host: bytes, place: Place) -> None:
        """Where names are limited, let pass those that are ours; remember them, since clients repeat themselves.

        With tokens a rebound page gains nothing: it has no token, and the browser keeps a password for the name it was
        typed in for.
        """
        if self._allowed_hosts or (self.tokens is None and place.is_loopback):
            refuse_rebound_name(host, self._allowed_hosts)
            if len(self._good_hosts) < HOSTS_REMEMBERED:
                self._good_hosts.add(host)
