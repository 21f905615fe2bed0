"""``:mdelete``: many keys deleted by one journal commit."""

from __future__ import annotations

from api.batch.answers import send_results
from api.batch.forms import form_of_answer
from api.batch.keys import read_keys
from api.batch.memory import BatchMemory
from api.batch.results import Result, etag_text, failure
from api.defaults import durability_of
from api.parameters import read_parameters
from api.value_request import ValueRequest

_NO_PARAMETERS: frozenset[str] = frozenset()
_FIELDS = frozenset({"durability"})


async def answer_mdelete(request: ValueRequest, memory: BatchMemory) -> int:
    """Answer 200 with a result for each key; of a key that stands twice, the second is a miss. Raises what
    ``read_keys`` raises."""
    read_parameters(request.query, _NO_PARAMETERS)
    with memory.share() as share:
        form, keys, fields = await read_keys(request, _FIELDS, share)
        durability = durability_of(request, fields.durability())
        outcomes = await request.engine.delete_many(request.namespace, keys, durability=durability)
        results: list[Result] = [
            {"status": 204, "etag": etag_text(outcome)} if isinstance(outcome, int) else failure(outcome)
            for outcome in outcomes
        ]
        deleted = sum(isinstance(outcome, int) for outcome in outcomes)
        return send_results(request, form_of_answer(request, form), results, {"deleted": deleted})
