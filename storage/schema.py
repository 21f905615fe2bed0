"""The schema of a namespace: which parts its records consist of, and what stands in for a part that is not given.

Nothing is coerced: a put's parts are those of the schema, exactly, or it is refused with the part and the fault named.
A part without a declared default can't be left out; one with a default is filled with that number, never with what a
buffer held before.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from storage.errors import ParameterInvalid, PartsInvalid
from storage.format.layout import Defect, Undecodable
from storage.format.parts import DTYPES, PARTS_MAX, Part, fault_of, total_bytes

Number = int | float
WHOLE_MAX = (1 << 64) - 1
"""The largest whole number of any type: 20 digits, so that a schema fits one block of the journal."""


class OnMissing(enum.StrEnum):
    """What becomes of a put that leaves out a part."""

    REJECT = "reject"
    DEFAULT = "default"
    """The part is filled with its declared number."""


@dataclass(frozen=True, slots=True)
class PartSpec:
    """A part as the schema declares it. ``default`` None: it must be given."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    default: Number | None = None

    @property
    def part(self) -> Part:
        return Part(self.name, self.dtype, self.shape)


_FORMATS = {
    "bool": "<?",
    "int8": "<b",
    "uint8": "<B",
    "int16": "<h",
    "uint16": "<H",
    "float16": "<e",
    "int32": "<i",
    "uint32": "<I",
    "float32": "<f",
    "int64": "<q",
    "uint64": "<Q",
    "float64": "<d",
}


def element_bytes(dtype: str, number: Number) -> bytes:
    """One element of this value, little-endian. Raises ValueError for what the type does not hold exactly enough:
    a fraction as an integer, a number out of range, anything but 0 in the 8-bit floats."""
    if type(number) is int and abs(number) > WHOLE_MAX:
        raise ValueError(f"a whole number is up to {WHOLE_MAX}; a larger one is written with a point or an exponent")
    if type(number) not in (int, float) or not math.isfinite(number):
        raise ValueError("a default is a finite number")
    if dtype == "bool":
        if number not in (0, 1):
            raise ValueError("a default of dtype bool is 0 or 1")
        return bytes([int(number)])
    if dtype.startswith("float8"):
        if number:
            raise ValueError(f"a default of dtype {dtype} is 0")
        return b"\0"
    if dtype == "bfloat16":
        return _bfloat16(float(number))
    if not dtype.startswith("float") and type(number) is not int:
        raise ValueError(f"a default of dtype {dtype} is a whole number")
    try:
        return struct.pack(_FORMATS[dtype], number)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{number} is out of the range of {dtype}") from error


def _bfloat16(number: float) -> bytes:
    """The upper half of a float32, rounded to nearest even."""
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", number))
    except OverflowError as error:
        raise ValueError(f"{number} is out of the range of bfloat16") from error
    rounded = bits + 0x7FFF + (bits >> 16 & 1)
    if rounded >> 16 & 0x7F80 == 0x7F80:
        raise ValueError(f"{number} is out of the range of bfloat16")
    return struct.pack("<H", rounded >> 16)


def check_specs(specs: Sequence[PartSpec]) -> None:
    """Raises ParameterInvalid, naming the part."""
    if len(specs) > PARTS_MAX:
        raise ParameterInvalid(f"a schema has up to {PARTS_MAX} parts", parameter="parts")
    names = [spec.name for spec in specs]
    for spec in specs:
        fault = fault_of(spec.part) or ("declared twice" if names.count(spec.name) > 1 else "")
        if not fault and spec.default is not None:
            try:
                element_bytes(spec.dtype, spec.default)
            except ValueError as error:
                fault = str(error)
        if fault:
            raise ParameterInvalid(f"part {str(spec.name)[:64]!r}: {fault}", parameter="parts")


def check_parts(parts: Sequence[Part], payload_bytes: int) -> None:
    """Whether parts are well formed and together the payload. Raises PartsInvalid."""
    if len(parts) > PARTS_MAX:
        raise PartsInvalid(f"a record has up to {PARTS_MAX} parts")
    names = [part.name for part in parts]
    for part in parts:
        fault = fault_of(part) or ("given twice" if names.count(part.name) > 1 else "")
        if fault:
            raise PartsInvalid(f"part {str(part.name)[:64]!r}: {fault}", part=str(part.name)[:64])
    if parts and total_bytes(parts) != payload_bytes:
        raise PartsInvalid(f"the parts are {total_bytes(parts)} bytes, the value has {payload_bytes}")


def missing_parts(specs: Sequence[PartSpec], on_missing: OnMissing, parts: Sequence[Part]) -> list[PartSpec]:
    """The parts that must be filled so that a put fits the schema. Raises PartsInvalid where it can't."""
    declared = {spec.name: spec for spec in specs}
    for part in parts:
        spec = declared.pop(part.name, None)
        if spec is None:
            raise PartsInvalid(f"part {part.name!r} is not in the schema", part=part.name)
        if part.dtype != spec.dtype:
            raise PartsInvalid(f"part {part.name!r} is {part.dtype}, the schema says {spec.dtype}", part=part.name)
        if part.shape != spec.shape:
            why = f"part {part.name!r} has shape {list(part.shape)}, the schema says {list(spec.shape)}"
            raise PartsInvalid(why, part=part.name)
    for spec in declared.values():
        if on_missing is OnMissing.REJECT or spec.default is None:
            why = "has no default" if spec.default is None else "is missing"
            raise PartsInvalid(f"part {spec.name!r} {why} and is not given", part=spec.name)
    return list(declared.values())


def default_bytes(spec: PartSpec) -> bytes:
    """The whole part, each element the declared number."""
    assert spec.default is not None
    return element_bytes(spec.dtype, spec.default) * (spec.part.size_bytes // DTYPES[spec.dtype])


def encode_specs(specs: Sequence[PartSpec]) -> str:
    """Name, dtype, shape, default, with ``:`` between them and ``;`` between the parts."""
    return ";".join(
        ":".join(
            (spec.name, spec.dtype, ",".join(map(str, spec.shape)), "" if spec.default is None else repr(spec.default))
        )
        for spec in specs
    )


def decode_specs(text: str) -> tuple[PartSpec, ...]:
    """Strictly (B4): only what ``encode_specs`` writes. Raises Undecodable."""
    try:
        specs = tuple(_decode_spec(item) for item in text.split(";"))
        check_specs(specs)
    except (ValueError, ParameterInvalid) as error:
        raise Undecodable(Defect.INVALID, f"schema: {error}") from error
    if encode_specs(specs) != text:
        raise Undecodable(Defect.INVALID, "schema: not as it is written")
    return specs


def _decode_spec(item: str) -> PartSpec:
    name, dtype, shape, default = item.split(":")
    number: Number | None = None
    if default:
        number = float(default) if set(default) & set(".en") else int(default)
    return PartSpec(name, dtype, tuple(int(size) for size in shape.split(",") if size), number)
