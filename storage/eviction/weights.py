"""Eviction weights of namespaces: how slowly their entries age, against one another.

When the policy meets an entry, it is that entry's turn with the probability (lightest weight in the class) / (weight of
its namespace); else the entry is passed over as if it had not been met. So an entry of weight 50 goes twice as readily
as one of weight 100, read or not; and where all weights are alike there is no difference at all. Not chance decides
but a running account per namespace, so that the shares are exact.
"""

from __future__ import annotations

from storage.namespaces import Namespaces

PASSES_MAX = 16
"""Weights further apart than this count as this far apart: so many entries are passed for one whose turn it is."""
LOOK_EVERY = 16
"""Choices of victims between two looks at up to 4096 namespaces."""


class Weights:
    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self._accounts: dict[int, float] = {}
        self._chances: dict[int, dict[int, float]] = {}
        """Slot class → chances below 1 of the namespaces that have entries in it."""
        self._looks: dict[int, int] = {}

    def look(self, slot_class: int) -> dict[int, float]:
        """Which namespaces' entries of a class age more slowly than the fastest. Called once per choice of victims."""
        looks = self._looks.get(slot_class, 0)
        self._looks[slot_class] = looks + 1
        if looks % LOOK_EVERY == 0:
            self._chances[slot_class] = self._chances_in(slot_class)
        return self._chances[slot_class]

    def _chances_in(self, slot_class: int) -> dict[int, float]:
        known = self._namespaces.by_id
        self._accounts = {i: account for i, account in self._accounts.items() if i in known}
        weights = {
            namespace.namespace_id: namespace.settings.eviction_weight_percent
            for namespace in known.values()
            if namespace.slots.get(slot_class)
        }
        lightest = min(weights.values(), default=1)
        return {
            namespace_id: max(lightest / weight, 1 / PASSES_MAX)
            for namespace_id, weight in weights.items()
            if weight > lightest
        }

    def has_turn(self, namespace_id: int, chances: dict[int, float]) -> bool:
        """Whether it is the turn of an entry that was met; ``chances`` are those of its class."""
        chance = chances.get(namespace_id)
        if chance is None:
            return True
        account = self._accounts.get(namespace_id, 0.0) + chance
        has_turn = account >= 1.0
        self._accounts[namespace_id] = account - has_turn
        return has_turn
