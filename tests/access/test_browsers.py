"""What browsers do for pages that aren't ours: the decisions, without a server."""

from __future__ import annotations

import pytest

from api.access.browsers import refuse_cross_site, refuse_rebound_name
from api.access.gate import HOSTS_REMEMBERED, Gate, Place
from api.access.token_file import parse_tokens
from api.errors import CrossSiteRefused, HostNotAllowed
from storage.errors import RequestRefused

LOOPBACK = Place(is_loopback=True)
NETWORK = Place()
UNIX = Place(is_tcp=False)


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("POST", {"sec-fetch-site": "same-origin"}),
        ("POST", {"sec-fetch-site": "none"}),
        ("POST", {}),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}),
        ("GET", {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}),
        ("POST", {"origin": "http://localhost:8790", "host": "localhost:8790"}),
        ("POST", {"origin": "http://LOCALHOST:8790", "host": "localhost:8790"}),
        ("POST", {"origin": "https://cache.example", "host": "cache.example:443"}),
        ("POST", {"origin": "http://cache.example", "host": "cache.example"}),
        ("POST", {"origin": "http://[::1]:8790", "host": "[::1]:8790"}),
        ("GET", {"origin": "https://evil.example", "host": "localhost:8790"}),
        # Behind a proxy that changes the Host, the browser's own word counts.
        ("POST", {"sec-fetch-site": "same-origin", "origin": "https://cache.example", "host": "127.0.0.1:8790"}),
    ],
)
def test_what_our_own_pages_and_programs_send_passes(method: str, fields: dict[str, str]) -> None:
    refuse_cross_site(method, {name.encode(): value.encode() for name, value in fields.items()})


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "POST "])
@pytest.mark.parametrize(
    "fields",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
        {"sec-fetch-site": "nonsense"},
        {"origin": "https://evil.example", "host": "localhost:8790"},
        {"origin": "http://localhost:3000", "host": "localhost:8790"},
        {"origin": "null", "host": "localhost:8790"},
        {"origin": "", "host": "localhost:8790"},
        {"origin": "http://localhost:8790"},
        {"origin": "file://localhost", "host": "localhost"},
        {"origin": "http://", "host": ""},
    ],
)
def test_what_other_pages_make_a_browser_change_is_refused(method: str, fields: dict[str, str]) -> None:
    with pytest.raises(CrossSiteRefused):
        refuse_cross_site(method, {name.encode(): value.encode() for name, value in fields.items()})


@pytest.mark.parametrize(
    "fields",
    [
        {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"},
        {"sec-fetch-mode": "cors", "sec-fetch-dest": "empty"},
        {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        {"sec-fetch-mode": "navigate", "sec-fetch-dest": "object"},
    ],
)
def test_other_pages_may_link_here_but_not_embed(fields: dict[str, str]) -> None:
    with pytest.raises(CrossSiteRefused):
        refuse_cross_site(
            "GET", {b"sec-fetch-site": b"cross-site"} | {k.encode(): v.encode() for k, v in fields.items()}
        )


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8790",
        "localhost.:8790",
        "a.localhost",
        "127.0.0.1:8790",
        "[::1]:8790",
        "[::1]",
        "10.0.0.7",
    ],
)
def test_names_that_nobody_else_can_hold_pass(host: str) -> None:
    refuse_rebound_name(host.encode(), frozenset())


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8790", "localhost.evil.example", "127.0.0.1.evil.example", "", "x", "1.2.3"]
)
def test_names_that_were_rebound_are_refused(host: str) -> None:
    with pytest.raises(HostNotAllowed):
        refuse_rebound_name(host.encode(), frozenset({"cache.example"}))


def admitted(gate: Gate, host: str | None, place: Place) -> bool:
    try:
        gate.admit("GET", {} if host is None else {b"host": host.encode()}, place)
    except RequestRefused:
        return False
    return True


def test_where_the_host_field_is_looked_at() -> None:
    open_gate, named, guarded = Gate(), Gate(None, frozenset({"cache.example"})), Gate(parse_tokens(b""))
    assert not admitted(open_gate, "evil.example", LOOPBACK), "anybody can point a name at 127.0.0.1"
    assert admitted(open_gate, "cache", NETWORK), "listening to the network without tokens was asked for explicitly"
    assert admitted(guarded, "evil.example", LOOPBACK), "a rebound page has no token"
    assert not admitted(named, "evil.example", NETWORK), "once names are set, no other passes"
    assert admitted(named, "CACHE.example:443", NETWORK)
    for gate in (open_gate, named, guarded):
        assert admitted(gate, "evil.example", UNIX), "no browser reaches a Unix socket"
        assert admitted(gate, None, LOOPBACK), "a browser always names the host"


def test_the_memory_of_good_names_is_bounded() -> None:
    gate = Gate()
    for number in range(2 * HOSTS_REMEMBERED):
        assert admitted(gate, f"{number}.localhost", LOOPBACK)
    assert len(gate._good_hosts) <= HOSTS_REMEMBERED
