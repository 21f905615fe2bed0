"""``/v1/namespaces``: what is set for a namespace, what it uses, and its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import ClientDisconnect

from api.engine_face import EngineFace
from api.errors import BatchTooLarge, BodyInvalid
from api.limits import CONTROL_BODY_MAX_BYTES
from api.problem_schema import PROBLEM_ANSWER, problem_answers
from api.schema_model import PartBody, PartDocument, part_documents, specs_of
from api.serving import refuse_unless_serving
from storage.entries import Durability
from storage.format.parts import PARTS_MAX
from storage.limits import NAMESPACE_MAX_CHARS, TTL_MAX_SECONDS
from storage.namespace_settings import (
    EVICTION_WEIGHT_MAX_PERCENT,
    QUOTA_BYTES_MAX,
    QUOTA_ENTRIES_MAX,
    RANGES,
    NamespaceSettings,
    QuotaMode,
)
from storage.namespaces import NamespaceView
from storage.schema import OnMissing

_Name = Annotated[
    str,
    Path(
        description="The namespace (tenant).",
        json_schema_extra={"pattern": f"^[A-Za-z0-9._-]{{1,{NAMESPACE_MAX_CHARS}}}$"},  # the engine checks it
    ),
]


_, SCHEMA_VERSION_MAX = RANGES["schema_version"]

_SLIDING_NEEDS_A_TTL: list[Any] = [
    {"properties": {"sliding_ttl": {"const": False}}},
    {"properties": {"default_ttl_seconds": {"type": "integer"}}, "required": ["default_ttl_seconds"]},
]

_PARTS_NEED_A_VERSION: list[Any] = [
    {"properties": {"parts": {"maxItems": 0}}},
    {"properties": {"schema_version": {"minimum": 1}}, "required": ["schema_version"]},
]


class SettingsBody(BaseModel):
    """The whole settings of a namespace: what is left out has its default, whatever it was before."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        title="NamespaceSettings",
        json_schema_extra={"allOf": [{"anyOf": _SLIDING_NEEDS_A_TTL}, {"anyOf": _PARTS_NEED_A_VERSION}]},
    )

    quota_bytes: int | None = Field(None, ge=1, le=QUOTA_BYTES_MAX, description="Most bytes of slots it may use.")
    quota_entries: int | None = Field(None, ge=1, le=QUOTA_ENTRIES_MAX, description="Most entries it may have.")
    quota_mode: QuotaMode = Field(
        QuotaMode.SOFT,
        description="Above a quota: `soft`, its own entries make room; `hard`, puts are answered 507 `quota_exceeded`.",
    )
    default_ttl_seconds: int | None = Field(
        None, ge=1, le=TTL_MAX_SECONDS, description="Time to live of a put that names none."
    )
    sliding_ttl: bool = Field(
        False,
        description="A read moves the expiry of an entry that expires to at least now + `default_ttl_seconds`, "
        "which must be set.",
    )
    ttl_jitter_percent: int = Field(
        0, ge=0, le=100, description="Expiries are drawn from the last so many percent of the TTL, against herds."
    )
    default_durability: Durability | None = Field(None, description="Level of a mutation that names none.")
    eviction_weight_percent: int = Field(
        100,
        ge=1,
        le=EVICTION_WEIGHT_MAX_PERCENT,
        description="How long an unread entry is kept, relative to those of other namespaces.",
    )
    parts: list[PartBody] = Field(
        default_factory=list,
        description="The schema: what each record consists of. Empty: any value.",
        json_schema_extra={"maxItems": PARTS_MAX},
    )
    on_missing: OnMissing = Field(
        OnMissing.REJECT,
        description="A put that leaves out a part: `reject`, 422 `parts_invalid`; `default`, the part is filled with "
        "its declared number.",
    )
    schema_version: int = Field(
        0,
        ge=0,
        le=SCHEMA_VERSION_MAX,
        description="One more than before if `parts` or `on_missing` change, else as before; otherwise 409.",
    )

    @model_validator(mode="after")
    def _sliding_needs_a_ttl(self) -> SettingsBody:
        if self.sliding_ttl and self.default_ttl_seconds is None:
            raise ValueError("sliding_ttl needs default_ttl_seconds")
        return self

    def settings(self) -> NamespaceSettings:
        """Raises PartsInvalid."""
        plain = {name: getattr(self, name) for name in type(self).model_fields if name != "parts"}
        return NamespaceSettings(parts=specs_of(self.parts), **plain)


@dataclass(slots=True)
class NamespaceDocument:
    """A namespace's settings (null: not set) and its exact usage; `used_bytes` are bytes of slots."""

    name: str
    quota_bytes: int | None
    quota_entries: int | None
    quota_mode: QuotaMode
    default_ttl_seconds: int | None
    sliding_ttl: bool
    ttl_jitter_percent: int
    default_durability: Durability | None
    eviction_weight_percent: int
    parts: list[PartDocument]
    on_missing: OnMissing
    schema_version: int
    entries: int
    used_bytes: int
    payload_bytes: int


@dataclass(slots=True)
class NamespaceList:
    namespaces: list[NamespaceDocument]


def _document(view: NamespaceView) -> NamespaceDocument:
    return NamespaceDocument(
        name=view.name,
        **{name: getattr(view.settings, name) for name in SettingsBody.model_fields if name != "parts"},
        parts=part_documents(view.settings.parts),
        entries=view.entries,
        used_bytes=view.used_bytes,
        payload_bytes=view.payload_bytes,
    )


def namespaces_router(engine: EngineFace) -> APIRouter:
    """The routes of one engine."""
    router = APIRouter(tags=["namespaces"])

    @router.get(
        "/v1/namespaces",
        summary="All namespaces",
        operation_id="namespaces",
        responses=problem_answers(503),
    )
    async def namespaces() -> NamespaceList:
        """Their settings and their usage, by name."""
        refuse_unless_serving(engine)
        views = sorted(engine.namespaces(), key=lambda view: view.name)
        return NamespaceList([_document(view) for view in views])

    @router.get(
        "/v1/namespaces/{namespace}",
        summary="Settings and usage of a namespace",
        operation_id="namespace",
        responses=problem_answers(400, 404, 503) | {422: PROBLEM_ANSWER},
    )
    async def namespace(namespace: _Name) -> NamespaceDocument:
        """Usage is the exact sum over its live entries."""
        refuse_unless_serving(engine)
        return _document(engine.namespace(namespace))

    @router.put(
        "/v1/namespaces/{namespace}",
        summary="Make a namespace, or give it settings",
        operation_id="set_namespace",
        responses=problem_answers(400, 409, 413, 503, 507)
        | {201: {"description": "Made.", "model": NamespaceDocument}, 422: PROBLEM_ANSWER},
        openapi_extra={"requestBody": _request_body()},
    )
    async def set_namespace(namespace: _Name, request: Request, response: Response) -> NamespaceDocument:
        """Replaces all settings. A lowered quota holds when this answers: entries above it are gone, but for those
        that a lease or a snapshot holds. Durable when it answers; an empty object means the defaults."""
        body = await _read_settings(request)  # first, so that no answer leaves it unread
        refuse_unless_serving(engine)
        view, created = await engine.set_namespace(namespace, body.settings())
        response.status_code = 201 if created else 200
        return _document(view)

    @router.delete(
        "/v1/namespaces/{namespace}",
        summary="Wipe a namespace",
        operation_id="wipe_namespace",
        responses=problem_answers(400, 404, 503) | {422: PROBLEM_ANSWER},
    )
    async def wipe_namespace(namespace: _Name) -> NamespaceDocument:
        """Ends the namespace with all its entries and settings, durably, and answers what it was. Its slots are freed
        in the background; the name can be used again at once."""
        refuse_unless_serving(engine)
        return _document(await engine.wipe_namespace(namespace))

    return router


async def _read_settings(request: Request) -> SettingsBody:
    """The body, strictly: as JSON has it, without conversions. Raises RequestValidationError, naming the field."""
    body = await read_bounded(request)
    try:
        return SettingsBody.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in found]) from None


async def read_bounded(request: Request) -> bytes:
    """The body of an operator's request. Raises BatchTooLarge, BodyInvalid."""
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > CONTROL_BODY_MAX_BYTES:
                raise BatchTooLarge(f"this body may have {CONTROL_BODY_MAX_BYTES} bytes")
    except ClientDisconnect:
        raise BodyInvalid("the client left within the body") from None
    return bytes(body)


def _request_body() -> dict[str, Any]:
    schema = SettingsBody.model_json_schema(ref_template="#/components/schemas/{model}")
    known = schema.pop("$defs", {})
    return {"required": True, "content": {"application/json": {"schema": _inlined(schema, known)}}}


def _inlined(schema: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """The schema without references: what it refers to is small."""

    def resolve(part: Any) -> Any:
        if isinstance(part, dict):
            if "$ref" in part:
                found = resolve(known[part["$ref"].rpartition("/")[2]])
                return {**found, **{name: value for name, value in part.items() if name != "$ref"}}
            return {name: resolve(value) for name, value in part.items()}
        if isinstance(part, list):
            return [resolve(value) for value in part]
        return part

    return dict(resolve(schema))
