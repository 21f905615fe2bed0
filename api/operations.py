"""What an operator can make the daemon do: the same from the API and from the page, and logged either way (R5)."""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict

from api.engine_face import EngineFace
from api.operator_log import LogLine, OperatorLog
from api.serving import refuse_unless_serving
from storage.errors import RawblockdError
from storage.retry import RetryResult
from storage.status import CheckpointStatus, RecoveryStatus

log = logging.getLogger("rawblockd.http")


class Operation(enum.StrEnum):
    RETRY = "retry"
    ACKNOWLEDGE = "acknowledge"
    CHECKPOINT = "checkpoint"


class Operations:
    """Each raises what the engine raises; a refusal is a line of the operator's log too."""

    def __init__(self, engine: EngineFace, operator_log: OperatorLog) -> None:
        self._engine = engine
        self._operator_log = operator_log

    async def acknowledge(self) -> RecoveryStatus:
        """Accept the loss of a partial recovery."""
        with self._refusals(Operation.ACKNOWLEDGE):
            before = self._engine.status()
            result = await self._engine.acknowledge()
        skipped, quarantined = before.skipped_entries, before.capacity.slots.quarantined
        log.warning("loss acknowledged", extra={"fields": {"skipped": skipped, "quarantined": quarantined}})
        self._operator_log.add(
            f"Loss acknowledged: skipped entries given up {skipped}, quarantined slots freed {quarantined}"
        )
        return result

    async def retry(self) -> RetryResult:
        """Try to repair what was skipped. The engine logs each entry that came back."""
        with self._refusals(Operation.RETRY):
            result = await self._engine.retry()
        log.info("repair retried", extra={"fields": asdict(result)})
        self._operator_log.add(
            f"Retry: restored {result.restored}, superseded {result.superseded}, still skipped {result.still_skipped}"
        )
        return result

    async def checkpoint(self) -> CheckpointStatus:
        """Write a checkpoint now."""
        with self._refusals(Operation.CHECKPOINT):
            result = await self._engine.checkpoint()
        log.info("checkpoint on request", extra={"fields": {"seq": result.seq}})
        self._operator_log.add(f"Checkpoint written on request: seq {result.seq}")
        return result

    async def outcome(self, operation: Operation) -> LogLine:
        """Carry out an operation, refused or not: its line in the operator's log."""
        carry_out: dict[Operation, Callable[[], Awaitable[object]]] = {
            Operation.RETRY: self.retry,
            Operation.ACKNOWLEDGE: self.acknowledge,
            Operation.CHECKPOINT: self.checkpoint,
        }
        with contextlib.suppress(RawblockdError):
            await carry_out[operation]()
        # Nothing was awaited since the line was added: it is the newest one.
        return self._operator_log.newest(1)[0]

    @contextlib.contextmanager
    def _refusals(self, operation: Operation) -> Iterator[None]:
        try:
            refuse_unless_serving(self._engine)
            yield
        except RawblockdError as error:
            detail = f" {error.detail}" if error.detail and error.detail != error.sentence else ""
            self._operator_log.add(f"{operation.value.capitalize()} refused: {error.sentence}{detail}", failed=True)
            raise
