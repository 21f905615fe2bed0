"""Checks of values on request: counted and shown, never altered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rawblockd_client.table.columns import Array
from rawblockd_client.table.reports import EXAMPLES, Finding


@dataclass(frozen=True)
class Check:
    """``finite``: no NaN, no infinity. ``limit``: no |x| above it."""

    finite: bool = True
    limit: float | None = None


class Inspection:
    """Rows looked at a piece at a time."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = dict(checks)
        self._found: dict[str, Finding] = {}

    def look(self, keys: Array, parts: Mapping[str, Array]) -> None:
        """Rows of these keys. Parts without a check, or of whole numbers without a limit, are passed by."""
        for name, check in self._checks.items():
            if name in parts and keys.size:
                self._look(name, check, keys, parts[name])

    def _look(self, name: str, check: Check, keys: Array, values: Array) -> None:
        rows = values.reshape(len(keys), -1)
        odd = ~np.isfinite(rows) if check.finite and rows.dtype.kind == "f" else np.zeros(rows.shape, dtype=bool)
        large = np.zeros(rows.shape, dtype=bool)
        if check.limit is not None:
            # NaN is above no limit; infinities are above every one.
            large = (rows > check.limit) | (rows < -check.limit)
        if not odd.any() and not large.any():
            return
        before = self._found.get(name, Finding(name, 0, 0, ()))
        named = keys[(odd | large).any(axis=1)]
        examples = before.examples + tuple(map(int, named[: EXAMPLES - len(before.examples)]))
        self._found[name] = Finding(
            name, before.non_finite + int(odd.sum()), before.above_limit + int(large.sum()), examples
        )

    @property
    def findings(self) -> list[Finding]:
        return [self._found[name] for name in sorted(self._found)]
