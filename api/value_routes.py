"""Which handler answers which path and method below ``/v1/kv/``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from api.batch.memory import BatchMemory
from api.batch.verbs import BATCH_VERBS, HOLDING_VERBS
from api.limits import BATCH_MEMORY_BYTES
from api.listing import answer_listing
from api.value_paths import NAMESPACE_TEMPLATE, TEMPLATE, VERB_TEMPLATE, split_path, split_verb
from api.value_request import ValueRequest
from api.values_delete import answer_delete
from api.values_get import answer_get, answer_head
from api.values_patch import answer_patch
from api.values_put import answer_put

Handler = Callable[[ValueRequest], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class ValueRoute:
    """One path template and its handlers by method."""

    template: str
    handlers: Mapping[str, Handler]

    holds_template: str = ""
    """What a request with a query takes the permission of, where that lets it hold entries."""

    def permission_template(self, query: bytes) -> str:
        """The template whose permission a request needs."""
        return self.holds_template if query and self.holds_template else self.template


def _with_memory(answer: Callable[[ValueRequest, BatchMemory], Awaitable[int]], memory: BatchMemory) -> Handler:
    return lambda request: answer(request, memory)


class ValueRoutes:
    def __init__(self) -> None:
        memory = BatchMemory(BATCH_MEMORY_BYTES)
        self._value = ValueRoute(
            TEMPLATE,
            {
                "GET": answer_get,
                "HEAD": answer_head,
                "PUT": answer_put,
                "PATCH": answer_patch,
                "DELETE": answer_delete,
            },
        )
        # The server keeps the body of an answer to HEAD to itself.
        self._listing = ValueRoute(NAMESPACE_TEMPLATE, {"GET": answer_listing, "HEAD": answer_listing})
        self._verbs = {
            verb.encode(): ValueRoute(
                VERB_TEMPLATE % verb,
                {"POST": _with_memory(answer, memory)},
                VERB_TEMPLATE % HOLDING_VERBS[verb] if verb in HOLDING_VERBS else "",
            )
            for verb, answer in BATCH_VERBS.items()
        }

    @property
    def all(self) -> list[ValueRoute]:
        return [self._value, self._listing, *self._verbs.values()]

    def find(self, raw_path: bytes) -> tuple[ValueRoute | None, bytes, bytes | None]:
        """The route of a path, None if there is none; namespace and key, still escaped, the key None without one."""
        parts = split_path(raw_path)
        if parts is not None:
            return self._value, *parts
        namespace, verb = split_verb(raw_path)
        return (self._listing if verb is None else self._verbs.get(verb)), namespace, None
