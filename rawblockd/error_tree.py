"""The project's errors as a tree, in the order in which the docstring of ``storage/errors.py`` draws it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import api.errors
import rawblockd.errors
import storage.errors
import storage.imports.errors
import storage.recovery.errors
from storage.errors import RawblockdError

_MODULES = {
    module.__name__
    for module in (storage.errors, storage.imports.errors, storage.recovery.errors, api.errors, rawblockd.errors)
}


def error_classes(
    base: type[RawblockdError] = RawblockdError, depth: int = 0
) -> Iterator[tuple[int, type[RawblockdError]]]:
    """(depth, class) of the errors below one. Raises ValueError for a class that isn't drawn."""
    kinds = [kind for kind in base.__subclasses__() if kind.__module__ in _MODULES]
    for kind in sorted(kinds, key=_place):
        yield depth, kind
        yield from error_classes(kind, depth + 1)


def _place(kind: type[RawblockdError]) -> int:
    """Where a class stands in the drawing."""
    found = re.search(rf"\b{kind.__name__}\b", storage.errors.__doc__ or "")
    if found is None:
        raise ValueError(f"{kind.__name__} is not drawn in storage/errors.py")
    return found.start()
