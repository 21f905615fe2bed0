"""Which records a commit will write: the keys of all parts put together, by the policy for incomplete ones."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np

from storage.errors import PartsInvalid, ValueTooLarge
from storage.imports.errors import ImportRefused
from storage.imports.key_lists import Positions, missing_in, positions_in
from storage.imports.session import ImportPolicy, ImportSession, Received


@dataclass(slots=True)
class Plan:
    """Records to be written: their keys, and for each part where the row stands in its list, -1 for the default."""

    keys: list[bytes]
    positions: dict[str, Positions]
    filled: dict[str, int]
    dropped: int


async def make_plan(session: ImportSession, policy: ImportPolicy, max_value_bytes: int) -> Plan:
    """Which records there will be. Raises ImportRefused, PartsInvalid, ValueTooLarge."""
    largest = sum(spec.part.size_bytes for spec in session.specs)
    if largest > max_value_bytes:  # before so much is filled with a default
        raise ValueTooLarge(f"a record of {largest} bytes; the largest value is about {max_value_bytes} bytes")
    absent = [spec.name for spec in session.specs if spec.name not in session.parts]
    if absent and policy is not ImportPolicy.DEFAULT:
        raise ImportRefused(f"parts {absent} did not come", missing_parts=absent)
    plan = await asyncio.to_thread(combine, list(session.parts.values()), policy)
    for name in absent:
        plan.filled[name] = len(plan.keys)
        plan.positions[name] = np.full(len(plan.keys), -1, dtype=np.int64)
    for spec in session.specs:
        if plan.filled.get(spec.name) and spec.default is None:
            why = f"part {spec.name!r} has no default and lacks {plan.filled[spec.name]} keys"
            raise PartsInvalid(why, part=spec.name)
    if policy is ImportPolicy.REJECT and plan.dropped:
        raise ImportRefused(f"{plan.dropped} keys are not in every part", incomplete=plan.dropped)
    return plan


def combine(parts: list[Received], policy: ImportPolicy) -> Plan:
    """Keys of all parts in the order of their first appearance; only complete ones unless defaults stand in."""
    keys: list[bytes] = []
    digests = np.empty((0, 2), dtype=np.uint64)
    for received in parts:
        listed = received.listed()
        fresh = missing_in(listed, digests)
        keys += [received.keys[position] for position in fresh.tolist()]
        digests = np.concatenate((digests, listed[fresh]))
    positions = {received.spec.name: positions_in(digests, received.listed()) for received in parts}
    incomplete = np.zeros(len(keys), dtype=bool)
    for found in positions.values():
        incomplete |= found < 0
    dropped = int(incomplete.sum())
    if policy is ImportPolicy.DEFAULT:
        return Plan(keys, positions, {name: int((found < 0).sum()) for name, found in positions.items()}, 0)
    whole = np.flatnonzero(~incomplete)
    kept = {name: found[whole] for name, found in positions.items()}
    return Plan([keys[position] for position in whole.tolist()], kept, {}, dropped)
