"""What a browser sends on behalf of a page that isn't ours: requests across sites, and names that were rebound.

Programs other than browsers send none of these fields, and aren't concerned.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from api.errors import CrossSiteRefused, HostNotAllowed

SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
_OWN_SITES = (b"same-origin", b"none")
_DEFAULT_PORTS = {"http": "80", "https": "443"}


def refuse_cross_site(method: str, fields: Mapping[bytes, bytes]) -> None:
    """Raise CrossSiteRefused for what a page of another origin makes a browser send.

    Fetch metadata decides where there are some: another origin may only lead the browser here (a link), not embed or
    change anything. Older browsers send an Origin with everything but GET and HEAD; it must be the Host.
    """
    site = fields.get(b"sec-fetch-site")
    if site is not None:
        if site.lower() in _OWN_SITES:
            return
        if method in SAFE_METHODS and fields.get(b"sec-fetch-mode") == b"navigate" and not _embeds(fields):
            return
        raise CrossSiteRefused("Sec-Fetch-Site is not same-origin")
    origin = fields.get(b"origin")
    if origin is not None and method not in SAFE_METHODS and not _is_origin_of(origin, fields.get(b"host", b"")):
        raise CrossSiteRefused("Origin is not this host")


def _embeds(fields: Mapping[bytes, bytes]) -> bool:
    return fields.get(b"sec-fetch-dest") not in (None, b"document")


def _is_origin_of(origin: bytes, host: bytes) -> bool:
    scheme, separator, authority = origin.decode("latin-1").lower().partition("://")
    if not separator or scheme not in _DEFAULT_PORTS:
        return False
    default = _DEFAULT_PORTS[scheme]
    own_name, own_port = split_host(host)
    name, port = split_host(authority.encode("latin-1"))
    return bool(name) and (name, port or default) == (own_name, own_port or default)


def split_host(field: bytes) -> tuple[str, str]:
    """Name and port of a Host field, in small letters; an IPv6 literal without its brackets, no port as ``""``."""
    text = field.decode("latin-1").lower()
    if text.startswith("["):
        name, _, rest = text[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = text.partition(":")
    return name, port


def refuse_rebound_name(host: bytes, allowed_hosts: frozenset[str]) -> None:
    """Raise HostNotAllowed for a name that somebody else may have pointed at us.

    A page of ``evil.example`` whose name leads to 127.0.0.1 is of one origin with the daemon, for the browser; but its
    requests name ``evil.example``. Names that nobody else can hold pass: those in ``allowed_hosts`` (in small letters),
    ``localhost``, and addresses, which no name server is asked for.
    """
    name = split_host(host)[0].rstrip(".")
    if name in allowed_hosts or name == "localhost" or name.endswith(".localhost") or _is_address(name):
        return
    raise HostNotAllowed("name it in allowed_hosts if this daemon is known by it")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
