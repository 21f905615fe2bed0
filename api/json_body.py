"""Small JSON bodies of control routes: bounded, strict, and declared by hand because they are read by hand."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from api.namespaces import read_bounded

Model = TypeVar("Model", bound=BaseModel)


async def read_json(request: Request, model: type[Model]) -> Model:
    """The body, as JSON has it, without conversions.

    Raises RequestValidationError, naming the field, BatchTooLarge and BodyInvalid.
    """
    body = await read_bounded(request)
    try:
        return model.model_validate_json(body, strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in found]) from None


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """What FastAPI takes as ``openapi_extra`` of a route that calls ``read_json``. The model has no models within."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    properties = schema["properties"]
    for name, field in properties.items():
        if "$ref" in field:
            kind = definitions[field["$ref"].rpartition("/")[2]]
            given = {key: value for key, value in field.items() if key != "$ref"}
            properties[name] = {"type": kind["type"], "enum": kind["enum"], **given}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
