"""Every operation of the OpenAPI document with every kind of token: who gets through, and what the others hear."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from api.access.credentials import Credentials
from api.access.gate import Gate
from api.access.permissions import PERMISSIONS, Permission, Reach, permission_of
from api.access.roles import Role, Scope
from api.admission import CREDENTIALS, Admission, FrameworkRoutes
from tests.access.conftest import HOLDERS, OPERATOR, READER, STRANGER
from tests.access.servers import Guarded, Holder, openapi
from tests.http.raw_client import RawAnswer

CONTRACT = {
    "/v1/kv/{namespace}/{key}": {"GET": "reader", "HEAD": "reader", "PUT": "writer", "DELETE": "writer"},
    "/v1/kv/{namespace}": {"GET": "reader"},
    "/v1/kv/{namespace}:mget": {"POST": "reader"},
    "/v1/kv/{namespace}:exists": {"POST": "reader"},
    "/v1/kv/{namespace}:mput": {"POST": "writer"},
    "/v1/kv/{namespace}:mdelete": {"POST": "writer"},
    "/v1/kv/{namespace}:lease": {"POST": "writer"},
    "/v1/events": {"GET": "reader of any"},
    "/v1/namespaces/{namespace}": {"GET": "reader", "PUT": "operator", "DELETE": "operator"},
    "/v1/namespaces": {"GET": "operator of all"},
    "/v1/leases": {"GET": "operator of all"},
    "/v1/leases/{lease}": {"DELETE": "reader of any"},
    "/v1/namespaces/{namespace}/snapshots": {"POST": "writer"},
    "/v1/snapshots": {"GET": "operator of all"},
    "/v1/snapshots/{snapshot}": {"GET": "reader of any", "DELETE": "writer of any"},
    "/v1/snapshots/{snapshot}/export": {"GET": "reader of any", "HEAD": "reader of any"},
    "/v1/namespaces/{namespace}/imports": {"POST": "writer"},
    "/v1/imports": {"GET": "operator of all"},
    "/v1/imports/{import}": {"GET": "writer of any", "DELETE": "writer of any"},
    "/v1/imports/{import}/parts/{part}": {"PUT": "writer of any"},
    "/v1/imports/{import}/differences": {"GET": "writer of any"},
    "/v1/imports/{import}/commit": {"POST": "writer of any"},
    "/v1/status": {"GET": "operator of all"},
    "/v1/recovery": {"GET": "operator of all"},
    "/v1/recovery/acknowledge": {"POST": "operator of all"},
    "/v1/recovery/retry": {"POST": "operator of all"},
    "/v1/checkpoint": {"POST": "operator of all"},
    "/metrics": {"GET": "reader of all"},
    "/livez": {"GET": "open"},
    "/readyz": {"GET": "open"},
    "/": {"GET": "reader of all"},
    "/skipped": {"GET": "operator of all"},
    "/v1/history": {"GET": "reader of all"},
    "/operator/{operation}": {"GET": "operator of all", "POST": "operator of all"},
    "/static/{name}": {"GET": "open"},
    "/docs": {"GET": "reader of any"},
    "/openapi.json": {"GET": "reader of any"},
}
"""Said here a second time, in words, so that a change of the table alone is noticed. Routes that aren't here may be in
the table (a door for other clients); none may be without a decision."""

NAMESPACE = "team-a"
DOORS = {"bazel": "team-a", "ccache": "team-c", "gradle": "gradle", "sccache": "sccache"}
DOOR_READS = ("GET", "HEAD", "PROPFIND")
_REACHES = {Reach.NAMESPACE: "", Reach.DEVICE: " of all", Reach.SOME: " of any"}


def words(permission: Permission) -> str:
    return "open" if permission.reach is Reach.OPEN else permission.role.word + _REACHES[permission.reach]


def operations(document: dict[str, dict[str, dict[str, object]]]) -> list[tuple[str, str]]:
    return [
        (template, method.upper())
        for template, operation in document["paths"].items()
        for method in operation
        if method != "parameters"
    ]


def decision(template: str, method: str) -> tuple[Permission, str]:
    """What an operation takes, and in which namespace. A door's operations are those of values, in its namespace."""
    door = template[1:].partition("/")[0]
    if door not in DOORS:
        return permission_of(template, method), NAMESPACE
    role = Role.READER if method in DOOR_READS else Role.WRITER
    return Permission(role, Reach.NAMESPACE, offers_basic=True), DOORS[door]


def path_of(template: str) -> str:
    filled = template.replace("{namespace}", NAMESPACE).replace("{name}", "none.css")
    while "{" in filled:
        before, _, rest = filled.partition("{")
        filled = before + quote("k") + rest.partition("}")[2]
    return filled


def suffices(holder: Holder | None, permission: Permission, namespace: str) -> bool:
    if permission.reach is Reach.OPEN:
        return True
    if holder is None or holder is STRANGER or holder.role < permission.role:
        return False
    match permission.reach:
        case Reach.DEVICE:
            return not holder.namespaces
        case Reach.NAMESPACE:
            return not holder.namespaces or any(is_match(namespace, pattern) for pattern in holder.namespaces)
    return True


def is_match(namespace: str, pattern: str) -> bool:
    return namespace.startswith(pattern[:-1]) if pattern.endswith("*") else namespace == pattern


def test_every_operation_has_a_decision(guarded: Guarded) -> None:
    known = set(PERMISSIONS)
    missing = {operation for operation in operations(openapi(guarded, OPERATOR)) if operation not in known}
    assert {(template, method) for template, method in missing if template[1:].partition("/")[0] not in DOORS} == set()


@pytest.mark.parametrize(("template", "methods"), CONTRACT.items())
def test_the_table_says_what_was_promised(template: str, methods: dict[str, str]) -> None:
    assert {method: words(permission_of(template, method)) for method in methods} == methods


@pytest.mark.parametrize("holder", [None, STRANGER, *HOLDERS], ids=lambda holder: holder.name if holder else "none")
def test_every_operation_with_every_kind_of_token(guarded: Guarded, holder: Holder | None) -> None:
    for template, method in operations(openapi(guarded, OPERATOR)):
        permission, namespace = decision(template, method)
        body = b"" if method in ("PUT", "POST") else None
        for form in [()] if holder is None else [(holder.bearer,), (holder.basic,)]:
            answer = guarded.ask(method, path_of(template), *form, body=body)
            check(answer, holder, permission, namespace, f"{method} {template}")
            if method == "GET":
                head = guarded.ask("HEAD", path_of(template), *form)
                # A HEAD may have no body, so nothing is asked of it but the verdict.
                assert (head.status in (401, 403)) == (answer.status in (401, 403)), template


def check(answer: RawAnswer, holder: Holder | None, permission: Permission, namespace: str, what: str) -> None:
    if suffices(holder, permission, namespace):
        assert answer.status not in (401, 403), (what, answer)
        return
    known = holder is not None and holder is not STRANGER
    assert answer.status == (403 if known else 401), (what, answer)
    offers = [value.partition(" ")[0] for name, value in answer.headers if name == "www-authenticate"]
    if known:
        assert offers == []
    else:
        assert offers == (["Bearer", "Basic"] if permission.offers_basic else ["Bearer"]), what
    if answer.body:
        problem = answer.problem
        assert answer.code == ("forbidden" if known else "unauthenticated")
        if known:
            assert problem["role"] == permission.role.word
            assert problem.get("namespace", namespace) == namespace


@pytest.mark.parametrize(
    "field", ["", "Bearer", "Bearer ", "Basic !!", "Basic", "Digest x", "Negotiate x", "Bearer \xff"]
)
def test_odd_authorization_fields_are_no_token(guarded: Guarded, field: str) -> None:
    answer = guarded.ask("GET", "/v1/kv/team-a/k", ("Authorization", field))
    assert answer.status == 401
    assert answer.code == "unauthenticated"


def test_two_authorization_fields_are_no_token(guarded: Guarded) -> None:
    answer = guarded.ask("GET", "/v1/kv/team-a/k", READER.bearer, READER.bearer)
    assert answer.status == 401


@pytest.mark.parametrize(
    "path",
    [
        "/v1/%73tatus",
        "/v1/status/",
        "//v1/status",
        "/v1//status",
        "/v1/./status",
        "/x/../v1/status",
        "/V1/STATUS",
        "/v1/status;x",
        "/v1%2Fstatus",
        "/v1/namespaces/",
        "/v1/namespaces/team%2Da",
        "/v1/namespaces/team-b",
        "/v1/namespaces/team-b/",
        "/v1/namespaces/team-a%2F..%2Fteam-b",
        "/v1/namespaces/team-a/../team-b",
        "/v1/recovery%00",
        "/nothing",
        "/docs/oauth2-redirect",
        "/redoc",
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST", "PATCH", "OPTIONS"])
def test_no_way_of_writing_a_path_gets_around_the_table(guarded: Guarded, path: str, method: str) -> None:
    """A reader of one namespace gets nothing but refusals, however the framework would read the path."""
    holder = next(holder for holder in HOLDERS if holder.name == "team-reader")
    answer = guarded.ask(method, path, body=b"", holder=holder)
    if (path, method) == ("/v1/namespaces/team%2Da", "GET"):
        assert answer.status not in (401, 403), "the same name, written differently (RFC 3986, 2.3)"
    else:
        assert answer.status in (403, 404, 405), (answer.status, answer.body)
    assert guarded.ask(method, path, body=b"").status == 401


@pytest.mark.parametrize("method", ["GET", "POST", "BREW"])
@pytest.mark.parametrize("path", ["/hidden", "/v1/status/hidden", "/v1/namespaces/team-a/hidden"])
def test_a_route_that_the_table_does_not_know_is_for_operators(path: str, method: str) -> None:
    """Also one that no document tells of: it is handed to the framework for nobody else."""
    routes = FrameworkRoutes(Admission(Gate()), "/v1/kv/")
    for holder in HOLDERS:
        credentials = Credentials(holder.name, holder.role, Scope(holder.namespaces or None))
        refusal = routes.refusal({"path": path, "method": method, CREDENTIALS: credentials})
        assert (refusal is None) is (holder is OPERATOR), holder.name
    nobody = routes.refusal({"path": path, "method": method})
    assert nobody is not None and nobody.status == 401, "a request that never passed the gate is nobody's"


def test_a_role_of_the_table_is_never_below_its_danger() -> None:
    """What changes something is never for readers, and a namespace in the path is always asked about.

    A lease is let go by whoever has its id, which is a secret of its own.
    """
    changing = {"PUT", "DELETE", "PATCH"}
    for (template, method), permission in PERMISSIONS.items():
        if method in changing and template != "/v1/leases/{lease}":
            assert permission.role >= Role.WRITER, template
        if "{namespace}" in template:
            assert permission.reach is Reach.NAMESPACE, template
