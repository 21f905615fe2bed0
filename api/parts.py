"""Parts of a value in HTTP: the field ``Rawblockd-Parts``, one part of a read, and parts in batches.

A put names its parts in the order of their bytes: ``Rawblockd-Parts: w=float32[8], m=float32[8]``. Whether they are
what they should be, the engine decides; here is only how they are written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from api.batch.fields import is_unicode
from api.errors import PartNotFound
from api.headers import line
from storage.entries import EntryInfo
from storage.errors import ParameterInvalid, PartsInvalid
from storage.format.parts import PARTS_MAX, Part, bounds

PARTS_FIELD = b"rawblockd-parts"
PART_FIELD = b"rawblockd-part"

_BLANKS = " \t"
_PART = re.compile(r"([^=,\[\]\s]*)=([^=,\[\]\s]*)\[([0-9, ]*)\]", re.ASCII)
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_SEPARATOR = re.compile(r"[ \t]*,[ \t]*")

Bounds = tuple[int, int]


def read_parts(fields: dict[bytes, bytes]) -> tuple[Part, ...]:
    """The parts that a put names, none without the field. Raises PartsInvalid."""
    found = fields.get(PARTS_FIELD)
    if found is None:
        return ()
    text = found.decode("latin-1").strip(_BLANKS)
    parts: list[Part] = []
    at = 0
    while True:
        match = _PART.match(text, at)
        if match is None or len(parts) == PARTS_MAX:
            why = f"more than {PARTS_MAX}" if match else "not of the form name=dtype[size,size]"
            raise _refused(text[at:].partition("=")[0], why)
        parts.append(Part(match[1], match[2], _shape(match[1], match[3])))
        at = match.end()
        if at == len(text):
            return tuple(parts)
        separator = _SEPARATOR.match(text, at)
        if separator is None:
            raise _refused(match[1], "not followed by a comma")
        at = separator.end()


def parts_lines(parts: Sequence[Part]) -> bytes:
    """What an answer says of an entry's parts."""
    if not parts:
        return b""
    shapes = (",".join(map(str, part.shape)) for part in parts)
    named = (f"{part.name}={part.dtype}[{shape}]" for part, shape in zip(parts, shapes, strict=True))
    return line(PARTS_FIELD, ", ".join(named).encode("ascii"))


def find_part(info: EntryInfo, name: str) -> Bounds:
    """Where a part lies in the payload. Raises PartNotFound."""
    found = bounds(info.parts).get(name)
    if found is None:
        names = [part.name for part in info.parts]
        raise PartNotFound(f"there is no part {name[:64]!r}", part=name[:64], parts=names)
    return found


def select_parts(info: EntryInfo, names: Sequence[str]) -> tuple[EntryInfo, list[Bounds]]:
    """An entry of these parts alone, in this order, and where they lie in the payload. Raises PartNotFound."""
    places = [find_part(info, name) for name in names]
    by_name = {part.name: part for part in info.parts}
    size_bytes = sum(stop - start for start, stop in places)
    return info._replace(payload_bytes=size_bytes, parts=tuple(by_name[name] for name in names)), places


# -- batches ------------------------------------------------------------------------------------------------------


def parts_of_list(listed: Any) -> tuple[Part, ...] | None:
    """The parts of an entry in a batch, ``[name, dtype, [size, …]]`` each; None for what has another form."""
    if type(listed) is not list or not all(map(_has_the_form, listed)):
        return None
    return tuple(Part(name, dtype, tuple(shape)) for name, dtype, shape in listed)


def list_of_parts(parts: Sequence[Part]) -> list[list[Any]]:
    return [[part.name, part.dtype, list(part.shape)] for part in parts]


def read_names(listed: Any) -> tuple[str, ...] | None:
    """The parts that a batch read asks for, None for all. Raises ParameterInvalid."""
    if listed is None:
        return None
    if (
        type(listed) is not list
        or not 1 <= len(listed) <= PARTS_MAX
        or not all(type(name) is str for name in listed)
        or len(set(listed)) != len(listed)
    ):
        raise ParameterInvalid(f"parts is a list of 1 to {PARTS_MAX} names, each once", parameter="parts")
    return tuple(listed)


def _has_the_form(item: Any) -> bool:
    return (
        type(item) is list
        and len(item) == 3
        and type(item[0]) is type(item[1]) is str
        and type(item[2]) is list
        and is_unicode(item[0] + item[1])
    )


def _shape(name: str, text: str) -> tuple[int, ...]:
    if not text.strip(_BLANKS):
        return ()
    sizes = [size.strip(_BLANKS) for size in text.split(",")]
    if not all(map(_SIZE.fullmatch, sizes)):
        raise _refused(name, "the sizes of its shape are whole numbers")
    return tuple(map(int, sizes))


def _refused(name: str, why: str) -> PartsInvalid:
    shown = name.strip(_BLANKS).encode("utf-8", "backslashreplace").decode()[:64]
    return PartsInvalid(f"part {shown!r}: {why}", part=shown)
