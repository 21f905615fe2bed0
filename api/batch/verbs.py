"""The batch calls by their names in the path: ``POST /v1/kv/{namespace}:{verb}``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from api.batch.exists import answer_exists, answer_lease
from api.batch.mdelete import answer_mdelete
from api.batch.memory import BatchMemory
from api.batch.mget import answer_mget
from api.batch.mput import answer_mput
from api.value_request import ValueRequest

BATCH_VERBS: Mapping[str, Callable[[ValueRequest, BatchMemory], Awaitable[int]]] = {
    "mget": answer_mget,
    "mput": answer_mput,
    "mdelete": answer_mdelete,
    "exists": answer_exists,
    "lease": answer_lease,
}

HOLDING_VERBS: Mapping[str, str] = {"exists": "lease"}
"""Verbs that with a query (``?lease=``) do what another verb does besides: they then take that one's permission."""
