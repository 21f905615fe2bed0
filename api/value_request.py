"""One request to a value, as the handlers of its methods get it."""

from __future__ import annotations

from api.access.credentials import Credentials
from api.engine_face import EngineFace
from api.exchange import Exchange
from api.settings import ApiSettings


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
