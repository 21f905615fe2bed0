"""Snapshots and imports as JSON: what is asked for, and what is told of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from api.batch.forms import to_base64
from api.limits import IMPORT_COMMIT_WAIT_MAX_SECONDS, LEASE_ID_MAX_CHARS
from api.schema_model import PartDocument, part_documents
from storage.errors import RawblockdError
from storage.imports.session import Difference, ImportPolicy, ImportResult, ImportState, ImportView
from storage.limits import HOLDER_MAX_CHARS, LEASE_MAX_SECONDS, NAMESPACE_MAX_CHARS
from storage.namespace_settings import NamespaceSettings
from storage.schema import OnMissing
from storage.snapshots import SnapshotView

Namespace = Annotated[
    str,
    Path(
        description="The namespace (tenant).",
        json_schema_extra={"pattern": f"^[A-Za-z0-9._-]{{1,{NAMESPACE_MAX_CHARS}}}$"},  # the engine checks it
    ),
]
SnapshotId = Annotated[str, Path(alias="snapshot", description="Its id.", min_length=1, max_length=LEASE_ID_MAX_CHARS)]
ImportId = Annotated[str, Path(alias="import", description="Its id.", min_length=1, max_length=LEASE_ID_MAX_CHARS)]


class HoldBody(BaseModel):
    """How long to hold what is asked for, and on whose behalf."""

    model_config = ConfigDict(strict=True, extra="forbid", title="Hold")

    ttl_seconds: int = Field(ge=1, le=int(LEASE_MAX_SECONDS), description="It ends when nobody used it for so long.")
    owner: str = Field("", max_length=HOLDER_MAX_CHARS, pattern="^[ -~]*$", description="A text for operators.")


class CommitBody(BaseModel):
    """What becomes of keys that are not in every part."""

    model_config = ConfigDict(strict=True, extra="forbid", title="Commit")

    policy: ImportPolicy = Field(
        description="`reject`: there may be none; `drop`: only complete keys are kept; `default`: the number that the "
        "schema declares stands in for a part that lacks a key.",
    )
    wait_seconds: int = Field(
        IMPORT_COMMIT_WAIT_MAX_SECONDS,
        ge=0,
        le=IMPORT_COMMIT_WAIT_MAX_SECONDS,
        description="How long to wait for the end before 202 is answered.",
    )


# -- schemas ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SchemaDocument:
    """The schema at the time of the snapshot; without parts, any value was taken."""

    schema_version: int
    on_missing: OnMissing
    parts: list[PartDocument]

    @classmethod
    def of(cls, settings: NamespaceSettings) -> SchemaDocument:
        return cls(settings.schema_version, settings.on_missing, part_documents(settings.parts))


# -- snapshots ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SnapshotDocument:
    """`seq` is the moment; `held_bytes` are bytes of slots, `freed_bytes` those of them that are kept for the
    snapshot alone; `checksum` is over digest, write id, size and checksum of all entries."""

    id: str
    owner: str
    namespace: str
    seq: int
    created_at: float
    entries: int
    payload_bytes: int
    held_bytes: int
    freed_bytes: int
    checksum: str
    schema: SchemaDocument
    expires_in_seconds: float

    @classmethod
    def of(cls, view: SnapshotView) -> SnapshotDocument:
        return cls(
            view.snapshot_id,
            view.owner,
            view.namespace,
            view.seq,
            view.created_at,
            view.entries,
            view.payload_bytes,
            view.held_bytes,
            view.freed_bytes,
            view.checksum,
            SchemaDocument.of(view.settings),
            view.expires_in_seconds,
        )


@dataclass(slots=True)
class SnapshotList:
    snapshots: list[SnapshotDocument]


# -- imports ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ImportPart:
    """`complete` once the whole part has come; before, `keys` counts what has."""

    name: str
    keys: int
    complete: bool


@dataclass(slots=True)
class Usage:
    """What the namespace had when the commit was done; `used_bytes` are bytes of slots."""

    entries: int
    used_bytes: int
    payload_bytes: int


@dataclass(slots=True)
class ImportOutcome:
    """`entries` were published, `dropped` keys were not complete; `filled` counts keys, per part, for which the number
    that the schema declares stands in."""

    policy: ImportPolicy
    entries: int
    dropped: int
    filled: dict[str, int]
    usage: Usage

    @classmethod
    def of(cls, policy: ImportPolicy, result: ImportResult) -> ImportOutcome:
        view = result.namespace
        usage = Usage(view.entries, view.used_bytes, view.payload_bytes)
        return cls(policy, view.entries, result.dropped, result.filled, usage)


@dataclass(slots=True)
class ImportProblem:
    """Why the last commit was refused or failed: code and detail as a problem has them. The import is open again."""

    code: str
    detail: str
    facts: dict[str, Any]

    @classmethod
    def of(cls, error: RawblockdError) -> ImportProblem:
        return cls(error.code, error.detail or error.sentence, error.fields)


@dataclass(slots=True)
class ImportDocument:
    """`outcome` is there once it is committed, `problem` after a commit that was not."""

    id: str
    owner: str
    namespace: str
    state: ImportState
    parts: list[ImportPart]
    held_bytes: int
    expires_in_seconds: float
    committed_ratio: float
    outcome: ImportOutcome | None
    problem: ImportProblem | None

    @classmethod
    def of(
        cls, view: ImportView, outcome: ImportOutcome | None = None, problem: ImportProblem | None = None
    ) -> ImportDocument:
        return cls(
            view.import_id,
            view.owner,
            view.namespace,
            view.state,
            [ImportPart(part.name, part.keys, part.complete) for part in view.parts],
            view.held_bytes,
            view.expires_in_seconds,
            view.committed_ratio,
            outcome,
            problem,
        )


@dataclass(slots=True)
class ImportList:
    imports: list[ImportDocument]


@dataclass(slots=True)
class DifferenceDocument:
    """`keys` keys are in part `has` and not in part `lacks`; `examples` are some of them, each with `key`, or with
    `key_base64` if it is not UTF-8."""

    has: str
    lacks: str
    keys: int
    examples: list[Mapping[str, str]]


@dataclass(slots=True)
class DifferenceList:
    """Pairs without a difference are not listed."""

    differences: list[DifferenceDocument]

    @classmethod
    def of(cls, found: Iterable[Difference]) -> DifferenceList:
        return cls([DifferenceDocument(one.has, one.lacks, one.keys, [*map(named, one.examples)]) for one in found])


def named(key: bytes) -> dict[str, str]:
    """A key as listings have it."""
    try:
        return {"key": key.decode("utf-8")}
    except UnicodeDecodeError:
        return {"key_base64": to_base64(key)}
