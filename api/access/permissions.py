"""Which role each route takes, and on which listener it is served: one table for all doors.

A route that isn't here takes an operator for all namespaces, wherever control routes are served; a test demands that
every operation of the OpenAPI document is here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from api.access.credentials import EVERYBODY, Credentials, require, require_device, require_role
from api.access.roles import Role
from api.errors import Unauthenticated


class Reach(enum.Enum):
    """What a role must hold for."""

    OPEN = "open"
    """Nothing is asked."""
    SOME = "some"
    """Any namespaces: the answer has nothing of theirs, or only what the token may see."""
    NAMESPACE = "namespace"
    """The namespace that the path names."""
    DEVICE = "device"
    """All namespaces."""


class Room(enum.Enum):
    """Where a route is served, if there is a listener for operators."""

    VALUES = "values"
    """For clients of the cache alone."""
    CONTROL = "control"
    """For operators alone."""
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Permission:
    role: Role = Role.OPERATOR
    reach: Reach = Reach.DEVICE
    room: Room = Room.CONTROL
    offers_basic: bool = False
    """Whether a refusal says that a password will do: browsers ask their user then, some build tools wait for it."""

    def demand(self, credentials: Credentials, namespace: str | None) -> None:
        """Raise Unauthenticated or Forbidden unless the credentials suffice.

        ``namespace`` is the path's, decoded: the name that the engine will be asked for, and no other form of it.
        """
        if credentials is EVERYBODY:
            return
        try:
            self._demand(credentials, namespace)
        except Unauthenticated as error:
            error.offers_basic = self.offers_basic
            raise

    def _demand(self, credentials: Credentials, namespace: str | None) -> None:
        match self.reach:
            case Reach.OPEN:
                return
            case Reach.SOME:
                require_role(credentials, self.role)
            case Reach.NAMESPACE:
                assert namespace is not None
                require(credentials, self.role, namespace)
            case Reach.DEVICE:
                require_device(credentials, self.role)


_NAMESPACE = Reach.NAMESPACE
_READ_VALUES = Permission(Role.READER, _NAMESPACE, Room.VALUES)
_WRITE_VALUES = Permission(Role.WRITER, _NAMESPACE, Room.VALUES)
_OPERATE_NAMESPACE = Permission(Role.OPERATOR, _NAMESPACE)
_OPERATE = Permission()
_READ_SOME = Permission(Role.READER, Reach.SOME, Room.BOTH)
_WRITE_SOME = Permission(Role.WRITER, Reach.SOME, Room.BOTH)
_LOOK = Permission(Role.READER, Reach.DEVICE, offers_basic=True)
_ACT = Permission(Role.OPERATOR, Reach.DEVICE, offers_basic=True)
_DOCUMENTS = Permission(Role.READER, Reach.SOME, Room.BOTH, offers_basic=True)
_OPEN = Permission(Role.READER, Reach.OPEN, Room.BOTH)

UNKNOWN = _OPERATE

PERMISSIONS: Mapping[tuple[str, str], Permission] = {
    ("/v1/kv/{namespace}/{key}", "GET"): _READ_VALUES,
    ("/v1/kv/{namespace}/{key}", "HEAD"): _READ_VALUES,
    ("/v1/kv/{namespace}/{key}", "PUT"): _WRITE_VALUES,
    ("/v1/kv/{namespace}/{key}", "DELETE"): _WRITE_VALUES,
    ("/v1/kv/{namespace}/{key}", "PATCH"): _WRITE_VALUES,
    ("/v1/kv/{namespace}", "GET"): _READ_VALUES,
    ("/v1/kv/{namespace}:mget", "POST"): _READ_VALUES,
    ("/v1/kv/{namespace}:exists", "POST"): _READ_VALUES,
    ("/v1/kv/{namespace}:mput", "POST"): _WRITE_VALUES,
    ("/v1/kv/{namespace}:mdelete", "POST"): _WRITE_VALUES,
    ("/v1/kv/{namespace}:lease", "POST"): _WRITE_VALUES,
    # For clients' indexes, and for the operators' own view of what happens.
    ("/v1/events", "GET"): Permission(Role.READER, Reach.SOME, Room.BOTH),
    ("/v1/namespaces/{namespace}", "GET"): Permission(Role.READER, _NAMESPACE, Room.BOTH),
    ("/v1/namespaces/{namespace}", "PUT"): _OPERATE_NAMESPACE,
    ("/v1/namespaces/{namespace}", "DELETE"): _OPERATE_NAMESPACE,
    ("/v1/namespaces", "GET"): _OPERATE,
    ("/v1/leases", "GET"): _OPERATE,
    # Whoever has the id of a lease is its holder: nobody else is told it.
    ("/v1/leases/{lease}", "DELETE"): Permission(Role.READER, Reach.SOME, Room.BOTH),
    ("/v1/namespaces/{namespace}/snapshots", "POST"): Permission(Role.WRITER, _NAMESPACE, Room.BOTH),
    ("/v1/snapshots", "GET"): _OPERATE,
    # Their handlers ask for the same role in the namespace that the id leads to.
    ("/v1/snapshots/{snapshot}", "GET"): _READ_SOME,
    ("/v1/snapshots/{snapshot}", "DELETE"): _WRITE_SOME,
    ("/v1/snapshots/{snapshot}/export", "GET"): _READ_SOME,
    ("/v1/namespaces/{namespace}/imports", "POST"): Permission(Role.WRITER, _NAMESPACE, Room.BOTH),
    ("/v1/imports", "GET"): _OPERATE,
    ("/v1/imports/{import}", "GET"): _WRITE_SOME,
    ("/v1/imports/{import}", "DELETE"): _WRITE_SOME,
    ("/v1/imports/{import}/parts/{part}", "PUT"): _WRITE_SOME,
    ("/v1/imports/{import}/differences", "GET"): _WRITE_SOME,
    ("/v1/imports/{import}/commit", "POST"): _WRITE_SOME,
    ("/v1/status", "GET"): _OPERATE,
    ("/v1/recovery", "GET"): _OPERATE,
    ("/v1/recovery/acknowledge", "POST"): _OPERATE,
    ("/v1/recovery/retry", "POST"): _OPERATE,
    ("/v1/checkpoint", "POST"): _OPERATE,
    ("/metrics", "GET"): Permission(Role.READER, Reach.DEVICE),
    ("/livez", "GET"): _OPEN,
    ("/readyz", "GET"): _OPEN,
    ("/", "GET"): _LOOK,
    ("/skipped", "GET"): _ACT,
    ("/operator/{operation}", "GET"): _ACT,
    ("/operator/{operation}", "POST"): _ACT,
    ("/v1/history", "GET"): Permission(Role.READER, Reach.DEVICE),
    ("/static/{name}", "GET"): _OPEN,
    ("/docs", "GET"): _DOCUMENTS,
    ("/openapi.json", "GET"): _DOCUMENTS,
}
"""(path template, method) → permission. A HEAD takes what its GET takes."""

OPEN_METRICS = Permission(Role.READER, Reach.OPEN)
"""Instead of the table's, with ``metrics_open``."""


def permission_of(template: str, method: str) -> Permission:
    found = PERMISSIONS.get((template, method))
    if found is None and method == "HEAD":
        found = PERMISSIONS.get((template, "GET"))
    return UNKNOWN if found is None else found
