"""One request to a value, as the handlers of its methods get it."""

from __future__ import annotations

from api.access.credentials import Credentials
from api.admission import Admission
from api.engine_face import EngineFace
from api.exchange import Exchange
from api.serving import refuse_unless_serving
from api.settings import ApiSettings
from api.value_paths import decode_key, decode_namespace


class ValueRequest:
    """Namespace and key are filled in when they are decoded."""

    __slots__ = ("credentials", "engine", "exchange", "fields", "key", "namespace", "query", "settings")

    def __init__(self, engine: EngineFace, settings: ApiSettings, exchange: Exchange, credentials: Credentials) -> None:
        self.engine = engine
        self.settings = settings
        self.exchange = exchange
        self.credentials = credentials
        self.fields = exchange.fields
        self.query = exchange.query
        self.namespace = ""
        self.key = b""


def let_in(
    engine: EngineFace,
    admission: Admission,
    credentials: Credentials,
    template: str,
    method: str,
    raw_namespace: bytes,
    raw_key: bytes | None,
) -> tuple[str, bytes]:
    """Namespace and key, empty without one, of a request that may be answered. Raises what it is refused with."""
    namespace = decode_namespace(raw_namespace)
    admission.demand(credentials, template, method, namespace)
    refuse_unless_serving(engine)
    return namespace, b"" if raw_key is None else decode_key(raw_key)
