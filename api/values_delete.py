"""``DELETE`` of a value."""

from __future__ import annotations

from api.conditions import read_conditions
from api.defaults import durability_of
from api.parameters import read_durability, read_parameters
from api.value_request import ValueRequest

_PARAMETERS = frozenset({"durability"})


async def answer_delete(request: ValueRequest) -> int:
    """Answer 204 and return it. Raises the engine's errors and ``ParameterInvalid``."""
    parameters = read_parameters(request.query, _PARAMETERS)
    durability = durability_of(request, read_durability(parameters))
    conditions = read_conditions(request.fields)
    await request.engine.delete(request.namespace, request.key, conditions=conditions, durability=durability)
    request.exchange.answer(204, b"")
    return 204
