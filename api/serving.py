"""When the daemon serves: one rule for requests and for readiness."""

from __future__ import annotations

from api.engine_face import EngineFace
from storage.errors import Draining, Starting, Unavailable
from storage.status import EngineState, accepts_mutations

_REFUSALS: dict[EngineState, type[Unavailable]] = {
    EngineState.STARTING: Starting,
    EngineState.RECOVERING: Starting,
    EngineState.STOPPED: Draining,
    EngineState.FAILED: Unavailable,
}
"""Draining and read-only engines still read; they refuse mutations themselves."""


def refuse_unless_serving(engine: EngineFace) -> None:
    """Raise at once, rather than let a request wait for the recovery."""
    refusal = _REFUSALS.get(engine.phase)
    if refusal is not None:
        raise refusal()


def is_ready(engine: EngineFace) -> bool:
    """True while reads and mutations are both accepted."""
    return accepts_mutations(engine.state, engine.reasons)
