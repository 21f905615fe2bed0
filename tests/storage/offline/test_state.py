"""The invariants of a state at rest: what breaks one is found, once and by its name (A1, A2)."""

from __future__ import annotations

import numpy as np
import pytest

from storage.format.row import QuarantineReason, SlotState, encode_row
from storage.index import Index
from storage.offline.findings import Damage, Findings, Note, Verdict
from storage.offline.opening import opened
from storage.offline.state import ANYTHING, check_state, live_row_ids, recovered_state
from tests.storage.offline.devices import NOW, DeviceFile


@pytest.fixture
def index(device: DeviceFile) -> Index:
    with opened(str(device)) as cache:
        return recovered_state(cache, Findings(), ANYTHING, lambda: NOW).index


def found(index: Index) -> dict[str, int]:
    findings = Findings()
    check_state(index, findings)
    return {kind.value: count for kind, count in findings.counts.items()}


def test_what_was_recovered_is_consistent(index: Index) -> None:
    assert found(index) == {}


def test_a1_a_live_slot_too_many(index: Index) -> None:
    index.live[0] += 1
    assert found(index) == {"accounting": 2}, "the class's live slots, and the class's sum"


def test_a1_a_leaked_slot(index: Index) -> None:
    index.slots.take(0)
    index.slots.in_flight.clear()
    assert found(index) == {"accounting": 2}


@pytest.mark.parametrize("name", ["entries", "used_bytes", "payload_bytes"])
def test_a2_usage_that_is_not_the_sum(index: Index, name: str) -> None:
    namespace = index.namespaces.by_name["small"]
    setattr(namespace, name, getattr(namespace, name) + 1)
    assert found(index) == {"accounting": 1}


def test_a2_a_key_too_many(index: Index) -> None:
    index.keys.entries += 1
    assert found(index) == {"accounting": 1}


def test_a_key_held_twice(index: Index) -> None:
    first, second = live_row_ids(index)[:2].tolist()
    index.table.lines["digest"][second] = index.table.lines["digest"][first]
    assert found(index) == {"duplicate_key": 1}


def test_slots_that_overlap(index: Index) -> None:
    live = live_row_ids(index)
    index.table.lines["slot"][live[1]] = index.table.lines["slot"][live[0]]
    assert found(index) == {"slot_overlap": 1}


def test_a_slot_that_leaves_its_slab(index: Index) -> None:
    whole_slab = index.table.lines["slot_class"] == len(index.geometry.class_bytes) - 1
    index.table.lines["slot"][whole_slab & (index.table.lines["state"] == SlotState.LIVE)] = 5
    assert found(index) == {"slot_overlap": 1}


@pytest.mark.parametrize(("reason", "count"), [("SKIPPED", 0), ("CORRUPT", 1), ("UNREADABLE", 1)])
def test_slots_quarantined_at_run_time(index: Index, reason: str, count: int) -> None:
    row_id = int(live_row_ids(index)[0])
    row = index.table.row(row_id)
    raw = encode_row(
        index.seed,
        state=SlotState.QUARANTINED,
        slot_class=row.slot_class,
        slab=row.slab,
        slot=row.slot,
        seq=row.seq + 10_000,
        reason=QuarantineReason[reason],
    )
    index.apply_row(row_id, raw, 0)
    assert found(index) == ({"quarantined_slot": count} if count else {})


def test_an_empty_index(index: Index) -> None:
    index.table.lines["state"][live_row_ids(index)] = SlotState.RETIRED
    assert len(live_row_ids(index)) == 0
    assert np.any(list(found(index)))


# -- verdicts -------------------------------------------------------------------------------------------------------


def test_verdicts() -> None:
    findings = Findings()
    assert findings.verdict() is Verdict.CLEAN
    findings.note(Note.TORN_TAIL)
    assert findings.verdict() is Verdict.CLEAN, "traces of a crash are no damage"
    findings.add(Damage.PAGE, "copy 0 page 3", "checksum")
    assert findings.verdict() is Verdict.REPAIRABLE
    findings.add(Damage.RECORD_HEADER, "slab 0 slot 0", "checksum")
    assert findings.verdict() is Verdict.DAMAGED
    findings.refusal = "copies_lost"
    assert findings.verdict() is Verdict.REFUSED
    assert findings.total == 2
