"""What build tools are told when the daemon, or one entry, can't serve: never more than a miss where they'd give up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import httpx2
import pytest

from api.access.credentials import EVERYBODY, NOBODY, Credentials
from api.access.gate import Place
from api.access.roles import Role
from api.access.roles import Scope as Namespaces
from api.counters import HttpCounters
from api.doors.doors import Doors
from api.doors.selection import parse_doors
from api.engine_face import EngineFace
from api.exchange import Body, Exchange
from api.settings import ApiSettings
from storage.errors import Busy, EntryUnreadable, Full, RawblockdError, ReadFailed
from storage.namespace_settings import NamespaceSettings
from storage.status import EngineState
from tests.http.local_server import server_over_unstarted_engine

HASH = "0123456789abcdef" * 4
PATHS = (f"/bazel/cas/{HASH}", f"/bazel/ac/{HASH}", f"/ccache/{HASH}", f"/gradle/{HASH}", f"/sccache/{HASH}")
SETTINGS = ApiSettings(doors=parse_doors("bazel,ccache,gradle,sccache"))


class FailingEngine:
    """A ready engine of which every call fails in the same way."""

    state = phase = EngineState.READY

    def __init__(self, error: RawblockdError) -> None:
        self._error = error
        self.calls = 0

    async def _fail(self, *_names: object, **_options: object) -> Any:
        self.calls += 1
        raise self._error

    head = open_read = begin_put = delete = _fail

    def namespace_settings(self, namespace: str) -> NamespaceSettings:
        return NamespaceSettings()

    def expires_at(self, namespace: str, ttl_seconds: int | None) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the door asks the engine for {name}")


class Asked:
    """A request without a network; ``status`` is what it was answered with."""

    query = b""
    room = None
    place = Place()
    body_unread = False
    answered = False
    status = 0

    def __init__(self, method: str, path: str) -> None:
        self.method = method
        self.raw_path = path.encode()
        self.fields = {b"content-length": b"0", b"depth": b"0"}

    def answer(self, status: int, lines: bytes, body: Body = b"", *, length: int | None = None) -> None:
        assert not self.answered
        self.answered = True
        self.status = status

    async def receive(self) -> bytes:
        return b""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the door does more than it need: {name}")


async def _ask(engine: FailingEngine, method: str, path: str, credentials: Credentials = EVERYBODY) -> int:
    """The status of a request to doors over this engine."""
    asked = Asked(method, path)
    doors = Doors(cast(EngineFace, engine), SETTINGS, HttpCounters())
    assert doors.lead_to(asked.raw_path)
    await doors.handle(cast(Exchange, asked), credentials, 0.0)
    return asked.status


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("error", [EntryUnreadable(), ReadFailed(errno=5)])
async def test_r2_one_unreadable_entry_is_a_miss(path: str, error: RawblockdError) -> None:
    assert await _ask(FailingEngine(error), "GET", path) == 404
    assert await _ask(FailingEngine(error), "HEAD", path) == 404


@pytest.mark.parametrize("path", PATHS)
async def test_a_daemon_that_is_busy_says_so_to_those_who_can_take_it(path: str) -> None:
    # sccache does not start without its storage: what it can't have is a miss to it.
    expected = 404 if path.startswith("/sccache/") else 503
    assert await _ask(FailingEngine(Busy()), "GET", path) == expected


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("error", "status"), [(Full(), 507), (Busy(), 503), (EntryUnreadable(), 503)])
async def test_a_put_that_fails_is_never_told_to_be_one_that_did_not(
    path: str, error: RawblockdError, status: int
) -> None:
    assert await _ask(FailingEngine(error), "PUT", path) == status


READER = Credentials("reader", Role.READER)
WRITER = Credentials("writer", Role.WRITER)
ELSEWHERE = Credentials("elsewhere", Role.OPERATOR, Namespaces(["other"]))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
async def test_the_role_for_the_namespace_is_asked_for_before_any_work(path: str, method: str) -> None:
    engine = FailingEngine(Full())
    assert await _ask(engine, method, path, NOBODY) == 401
    assert await _ask(engine, method, path, ELSEWHERE) == 403
    if method == "PUT":
        assert await _ask(engine, method, path, READER) == 403
    assert engine.calls == 0
    assert await _ask(engine, method, path, WRITER if method == "PUT" else READER) == 507
    assert engine.calls == 1


async def test_webdav_methods_take_their_roles() -> None:
    engine = FailingEngine(Full())
    assert await _ask(engine, "PROPFIND", "/sccache/a/", NOBODY) == 401
    assert await _ask(engine, "PROPFIND", "/sccache/a/", READER) == 207
    assert await _ask(engine, "MKCOL", "/sccache/a/", READER) == 403
    assert await _ask(engine, "MKCOL", "/sccache/a/", WRITER) == 201
    assert await _ask(engine, "DELETE", f"/ccache/{HASH}", READER) == 403


@pytest.fixture(scope="module")
def recovering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("device")
    with server_over_unstarted_engine(folder, SETTINGS, lambda accept: (b"", "text/plain")) as client:
        yield client


@pytest.mark.parametrize("path", PATHS)
def test_while_it_recovers(recovering: httpx2.Client, path: str) -> None:
    assert recovering.get(path).status_code == (404 if path.startswith("/sccache/") else 503)
    answer = recovering.put(path, content=b"entry")
    assert (answer.status_code, answer.json()["code"]) == (503, "recovering")
    assert int(answer.headers["retry-after"]) >= 0
