"""Access control as requests meet it: the gate for every request, the table for every route.

The decisions are ``api.access``'s; here are only the ways from a request to them and from an error to an answer.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from api.access.credentials import EVERYBODY, NOBODY, Credentials
from api.access.gate import Gate, Place
from api.access.permissions import OPEN_METRICS, PERMISSIONS, Permission, Room, permission_of
from api.access.roles import Role
from api.answers import send_problem, send_problem_unread
from api.errors import Forbidden, Unauthenticated
from api.headers import has_body, read_fields
from api.problems import Problem, problem_of, problem_of_status

CREDENTIALS = "rawblockd.credentials"
FIELDS = "rawblockd.fields"
ROOM = "rawblockd.room"
TEMPLATE = "rawblockd.template"
"""Keys of a scope: what the gate made of the request, its header fields by name, which routes the listener serves, and
the route that was recognised."""

PLACES_REMEMBERED = 64


def credentials_of(scope: Scope) -> Credentials:
    """The credentials of a request that has passed the gate; nobody's if it hasn't."""
    credentials = scope.get(CREDENTIALS, NOBODY)
    assert isinstance(credentials, Credentials)
    return credentials


def fields_of(scope: Scope) -> dict[bytes, bytes]:
    """The header fields by lower-case name, read once."""
    fields: dict[bytes, bytes] | None = scope.get(FIELDS)
    if fields is None:
        fields = scope[FIELDS] = read_fields(scope["headers"])
    return fields


def is_served(scope: Scope, room: Room) -> bool:
    """Whether the listener of this request serves routes of ``room``."""
    return serves(scope.get(ROOM), room)


def serves(served: Room | None, room: Room) -> bool:
    """Whether a listener of the room ``served``, None for all, serves routes of ``room``."""
    return served is None or room is Room.BOTH or room is served


class Admission:
    def __init__(self, gate: Gate, *, metrics_open: bool = False) -> None:
        self._gate = gate
        self._places: dict[object, Place] = {}
        self._metrics_open = metrics_open

    def admit(self, method: str, fields: Mapping[bytes, bytes], place: Place) -> Credentials:
        """As ``Gate.admit``."""
        return self._gate.admit(method, fields, place)

    def admit_scope(self, scope: Scope) -> None:
        """Note the credentials of a request in its scope. Raises what ``Gate.admit`` raises."""
        server = scope.get("server")
        place = self._places.get(server)
        if place is None:
            place = self._new_place(server)
        scope[CREDENTIALS] = self._gate.admit(scope["method"], fields_of(scope), place)

    def permission(self, template: str, method: str) -> Permission:
        if self._metrics_open and template == "/metrics":
            return OPEN_METRICS
        return permission_of(template, method)

    def demand(self, credentials: Credentials, template: str, method: str, namespace: str | None = None) -> None:
        """Raise Unauthenticated or Forbidden unless they allow this. As ``Permission.demand``."""
        if credentials is not EVERYBODY:
            self.permission(template, method).demand(credentials, namespace)

    def _new_place(self, server: object) -> Place:
        place = place_of(server)
        if len(self._places) < PLACES_REMEMBERED:
            self._places[server] = place
        return place


class FrameworkRoutes:
    """The table's routes of the framework, recognised as the framework does: same patterns, same decoded path.

    What isn't recognised is never handed on for somebody who is no operator: a path that the framework understands and
    this class doesn't would be a way around the table.
    """

    def __init__(self, admission: Admission, without_prefix: str) -> None:
        self._admission = admission
        """Templates that begin with ``without_prefix`` aren't the framework's."""
        templates = dict.fromkeys(template for template, _ in PERMISSIONS if not template.startswith(without_prefix))
        self._patterns = [(compile_path(template)[0], template) for template in templates]

    def refusal(self, scope: Scope) -> Problem | None:
        """None if the framework may answer; else the problem to answer with. The scope's method is GET for a HEAD."""
        try:
            return self._decide(scope)
        except (Unauthenticated, Forbidden) as error:
            return problem_of(error, 0)

    def _decide(self, scope: Scope) -> Problem | None:
        template, parameters = self._recognise(scope["path"])
        method = scope["method"]
        if template is None or (template, method) not in PERMISSIONS:
            return self._unknown(scope, template)
        if not is_served(scope, self._admission.permission(template, method).room):
            return problem_of_status(404)
        scope[TEMPLATE] = template
        self._admission.demand(credentials_of(scope), template, method, parameters.get("namespace"))
        return None

    def _recognise(self, path: str) -> tuple[str | None, Mapping[str, str]]:
        for pattern, template in self._patterns:
            match = pattern.match(path)
            if match is not None:
                return template, match.groupdict()
        return None, {}

    def _unknown(self, scope: Scope, template: str | None) -> Problem | None:
        """What the table doesn't have: the framework's to refuse for an operator, and refused here for anybody else."""
        credentials = credentials_of(scope)
        if credentials.role is None:
            raise Unauthenticated(credentials.refusal)
        if is_served(scope, Room.CONTROL) and credentials.may_device(Role.OPERATOR):
            return None
        methods = [] if template is None else self._methods(scope, template)
        if not methods:
            return problem_of_status(404)
        problem = problem_of_status(405)
        problem.headers.append((b"allow", ", ".join(sorted(methods)).encode()))
        return problem

    def _methods(self, scope: Scope, template: str) -> set[str]:
        """What the listener serves of a template."""
        known = ((method, permission.room) for (other, method), permission in PERMISSIONS.items() if other == template)
        served = {method for method, room in known if is_served(scope, room)}
        return served | {"HEAD"} if "GET" in served else served


def place_of(server: object) -> Place:
    """``server`` is the local address of a connection: (host, port), (path, None), or None for a nameless socket."""
    if not isinstance(server, tuple) or server[1] is None:
        return Place(is_tcp=False)
    try:
        address = ipaddress.ip_address(server[0])
    except ValueError:
        return Place()
    mapped = getattr(address, "ipv4_mapped", None)
    return Place(is_loopback=(mapped or address).is_loopback)


async def send_refusal(receive: Receive, send: Send, fields: dict[bytes, bytes], problem: Problem) -> None:
    """Answer a request that isn't let in; a body that was announced is not read, and ends the connection."""
    if has_body(fields):
        waits = fields.get(b"expect", b"").lower() == b"100-continue"
        await send_problem_unread(receive, send, problem, linger=not waits)
    else:
        await send_problem(send, problem)
