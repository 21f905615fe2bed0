"""States and reasons as an operator reads them: what is the case, and what to do about it.

A tone is how something looks. It never says anything alone: a word and a sign stand beside each colour.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from storage.status import EngineState, Reason


class Tone(enum.StrEnum):
    GOOD = "good"
    BUSY = "busy"
    WARN = "warn"
    BAD = "bad"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class StateText:
    tone: Tone
    word: str
    sentence: str


@dataclass(frozen=True, slots=True)
class ReasonText:
    """``what`` and ``todo`` are sentences."""

    title: str
    what: str
    todo: str


STATE_TEXTS = {
    EngineState.STARTING: StateText(Tone.BUSY, "Starting", "The device is being opened. Requests are answered 503."),
    EngineState.RECOVERING: StateText(
        Tone.BUSY,
        "Recovering",
        "The index is being read from the device. Requests are answered 503 until it is there.",
    ),
    EngineState.READY: StateText(Tone.GOOD, "Ready", "Reads and writes are served. Nothing needs you."),
    EngineState.DEGRADED: StateText(Tone.WARN, "Degraded", "Reads and writes are served, and something needs you."),
    EngineState.READ_ONLY: StateText(Tone.BAD, "Read-only", "Reads are served, writes are refused."),
    EngineState.DRAINING: StateText(Tone.BUSY, "Stopping", "The last requests are being finished."),
    EngineState.STOPPED: StateText(Tone.IDLE, "Stopped", "The engine has let go of the device."),
    EngineState.FAILED: StateText(Tone.BAD, "Failed", "The start failed and the process ends. Its log says why."),
}

REASON_TEXTS = {
    Reason.PARTIAL_RECOVERY: ReasonText(
        "Partial recovery",
        "The last start could not settle all entries. What it skipped is kept as evidence, and no checkpoint is "
        "written meanwhile.",
        "Look at what was skipped. Retry if the cause may be gone; acknowledge if the loss is acceptable.",
    ),
    Reason.CORRUPTION: ReasonText(
        "Corruption found",
        "Records failed verification while the daemon ran. Reads of them are misses; their slots are quarantined.",
        "Retry if the cause may be gone, or acknowledge to free the slots. If it happens again, look at the device.",
    ),
    Reason.CHECKPOINT_OVERDUE: ReasonText(
        "Checkpoint overdue",
        "The newest checkpoint is older than it should be: the next start takes longer, and the journal fills.",
        "Write one now. If it does not end, the device is too slow or too busy.",
    ),
    Reason.CHECKPOINT_FAILING: ReasonText(
        "Checkpoint failing",
        "The last checkpoint could not be written. Nothing is lost: the journal holds what it would have held.",
        "Look for the error in the log, and at the device. It is tried again by itself.",
    ),
    Reason.JOURNAL_UNAVAILABLE: ReasonText(
        "Journal unavailable",
        "The journal can't be written, so nothing new can be made durable.",
        "Look at the device and the path to it. The daemon tries on; writes are accepted again once it succeeds.",
    ),
    Reason.DEVICE_ERRORS: ReasonText(
        "Device errors",
        "Reads or writes of the device fail, or the self test did.",
        "Look at the kernel's log, the cable and the path. The state ends by itself when the device answers again.",
    ),
    Reason.SUPERBLOCK_DAMAGED: ReasonText(
        "Superblock damaged",
        "One of the two superblocks does not verify. One is enough to start.",
        "Restart when it suits: a start mends it. If it happens again, look at the device.",
    ),
    Reason.COPY_DAMAGED: ReasonText(
        "Checkpoint copy damaged",
        "A part of a checkpoint copy does not verify any more. The other copies are enough to start.",
        "Write a checkpoint, once for each copy: it is written anew. If it happens again, look at the device.",
    ),
}

STEP_TEXTS = {
    "": "opening the device",
    "superblocks": "reading the superblocks",
    "copies": "reading the checkpoint copies",
    "journal": "reading the journal",
    "catalogue": "reading the catalogue",
    "pages": "reading the slot table",
    "rows": "settling damaged rows",
    "headers": "reading record headers",
    "unflushed": "proving what was not flushed yet",
    "done": "writing what a start writes",
}
"""Steps of a recovery; one that is not here shows under its own name."""

SKIP_TEXTS = {
    "checksum": "page and record damaged",
    "stale_page": "older page, record damaged",
    "unreadable": "can't be read",
    "wrong_place": "page of another place",
    "wrong_device": "page of another device",
    "invalid_row": "row written wrong: a bug",
    "out_of_range": "row of no slot there is",
    "duplicate_key": "second row of a key",
    "header_mismatch": "record is not the row's",
    "journal_gap": "spoken of in a journal gap",
}
