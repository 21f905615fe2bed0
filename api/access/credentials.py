"""What a client has shown, and whether it suffices: the one decision of the daemon's access control."""

from __future__ import annotations

from dataclasses import dataclass, field

from api.access.rate import Bucket
from api.access.roles import Role, Scope
from api.errors import Forbidden, Unauthenticated


@dataclass(frozen=True, slots=True, eq=False)
class Credentials:
    """``role`` is None for a client without a token that is known; ``refusal`` then says what is wrong."""

    name: str
    role: Role | None
    scope: Scope = field(default_factory=Scope)
    refusal: str = ""
    bucket: Bucket | None = None

    def may(self, role: Role, namespace: str) -> bool:
        """Whether ``require`` would pass: to filter listings and streams by what the client may see."""
        return self.role is not None and self.role >= role and namespace in self.scope

    def may_device(self, role: Role) -> bool:
        return self.role is not None and self.role >= role and self.scope.everything


EVERYBODY = Credentials("everybody", Role.OPERATOR)
"""Whoever reaches a daemon that has no tokens."""
NOBODY = Credentials("nobody", None, refusal="the request carries no token")
STRANGER = Credentials("stranger", None, refusal="the token is not known")
MALFORMED = Credentials("malformed", None, refusal="the Authorization field is neither Bearer nor Basic with a token")


def require(credentials: Credentials, role: Role, namespace: str) -> None:
    """Let pass who may act as ``role`` in ``namespace``, the decoded name that the engine is asked for.

    Raises Unauthenticated without a known token and Forbidden with one that doesn't suffice. Both are decided without a
    look at the engine, so neither says whether the namespace exists.
    """
    if credentials is EVERYBODY:
        return
    if not credentials.may(role, namespace):
        _require_role(credentials, role, namespace)
        raise Forbidden("the token does not hold for this namespace", role=role.word, namespace=namespace)


def require_device(credentials: Credentials, role: Role) -> None:
    """As ``require``, for what concerns all namespaces at once: a token that is limited to some does not suffice."""
    if credentials is EVERYBODY:
        return
    if not credentials.may_device(role):
        _require_role(credentials, role, None)
        raise Forbidden("this takes a token that holds for all namespaces", role=role.word)


def require_role(credentials: Credentials, role: Role) -> None:
    """As ``require``, in whatever namespaces: what the answer tells of is then filtered with ``may``."""
    if credentials is not EVERYBODY:
        _require_role(credentials, role, None)


def _require_role(credentials: Credentials, role: Role, namespace: str | None) -> None:
    if credentials.role is None:
        raise Unauthenticated(credentials.refusal)
    if credentials.role < role:
        facts = {} if namespace is None else {"namespace": namespace}
        raise Forbidden(f"this takes the role {role.word}", role=role.word, **facts)
