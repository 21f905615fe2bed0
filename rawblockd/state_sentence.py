"""The engine's state as one sentence for ``systemctl status``."""

from __future__ import annotations

from storage.recovery.report import RecoveryProgress
from storage.status import EngineState, EngineStatus, Reason


def recovering_sentence(progress: RecoveryProgress) -> str:
    """``recovering 41 %: journal``; 100 % only when nothing is left."""
    return f"recovering {int(progress.ratio * 100)} %: {progress.step or 'beginning'}"


def state_sentence(status: EngineStatus) -> str:
    """``ready``, or the state and every reason for it: ``degraded: partial recovery, 3 entries skipped``."""
    name = "read-only" if status.state is EngineState.READ_ONLY else status.state.value
    reasons = "; ".join(_reason(reason, status) for reason in status.reasons)
    return f"{name}: {reasons}" if reasons else name


def _reason(reason: Reason, status: EngineStatus) -> str:
    match reason:
        case Reason.PARTIAL_RECOVERY:
            skipped = f"partial recovery, {_count(status.skipped_entries, 'entry', 'entries')} skipped"
            return f"{skipped}, a loss of unknown extent" if status.recovery.unknown_loss else skipped
        case Reason.CORRUPTION:
            return f"corruption found, {_count(status.capacity.slots.quarantined, 'slot', 'slots')} quarantined"
        case Reason.CHECKPOINT_OVERDUE:
            return f"checkpoint overdue, the newest is {int(status.checkpoint.age_seconds // 60)} min old"
        case Reason.CHECKPOINT_FAILING:
            return f"checkpoints fail, {status.checkpoint.failed} so far"
        case Reason.JOURNAL_UNAVAILABLE:
            return "the journal can't be written"
        case Reason.DEVICE_ERRORS:
            return status.self_test.failure or "operations of the device fail"
        case _:
            return reason.value.replace("_", " ")


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
