"""The parts of a namespace's schema in JSON, taken without conversions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from storage.errors import ParameterInvalid, PartsInvalid
from storage.format.parts import DIMENSION_MAX, DIMENSIONS_MAX, DTYPES, PART_NAME_MAX_CHARS
from storage.schema import Number, PartSpec, check_specs

_SIZE: JsonDict = {"type": "integer", "minimum": 0, "maximum": DIMENSION_MAX}


class PartBody(BaseModel):
    """A part as a schema declares it. What is wrong with it is said by its name, so the engine's rules decide."""

    model_config = ConfigDict(strict=True, extra="forbid", title="PartSpec")

    name: str = Field(json_schema_extra={"pattern": f"^[A-Za-z0-9._-]{{1,{PART_NAME_MAX_CHARS}}}$"})
    dtype: str = Field(json_schema_extra={"enum": [*DTYPES]})
    shape: list[int] = Field(json_schema_extra={"maxItems": DIMENSIONS_MAX, "items": _SIZE})
    default: int | float | None = Field(
        None, description="The number that stands for an element that is not given; null: the part must be given."
    )

    def spec(self) -> PartSpec:
        return PartSpec(self.name, self.dtype, tuple(self.shape), self.default)


@dataclass(slots=True)
class PartDocument:
    """A part of the schema."""

    name: str
    dtype: str
    shape: list[int]
    default: Number | None


def specs_of(bodies: Sequence[PartBody]) -> tuple[PartSpec, ...]:
    """Raises PartsInvalid, naming the part."""
    specs = tuple(body.spec() for body in bodies)
    for spec in specs:
        _check((spec,), spec.name)
    twice = next((spec.name for at, spec in enumerate(specs) if any(spec.name == one.name for one in specs[:at])), "")
    _check(specs, twice)
    return specs


def part_documents(specs: Sequence[PartSpec]) -> list[PartDocument]:
    return [PartDocument(spec.name, spec.dtype, list(spec.shape), spec.default) for spec in specs]


def _check(specs: tuple[PartSpec, ...], name: str) -> None:
    try:
        check_specs(specs)
    except ParameterInvalid as error:
        raise PartsInvalid(error.detail, part=name[:64]) from None
