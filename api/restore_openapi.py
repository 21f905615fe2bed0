"""Exports and parts of imports in the OpenAPI document, declared by hand.

Their bodies are sequences of msgpack objects, which no schema could say: ``docs/snapshots.md`` does.
"""

from __future__ import annotations

from api.limits import EXPORT_NUMBER_MAX, IMPORT_CHUNK_KEYS_MAX, LEASE_ID_MAX_CHARS
from api.openapi_parts import Object, parameter, problems
from storage.format.parts import PART_NAME_MAX_CHARS

EXPORT_TEMPLATE = "/v1/snapshots/{snapshot}/export"
PART_TEMPLATE = "/v1/imports/{import}/parts/{part}"

_ID: Object = {"type": "string", "minLength": 1, "maxLength": LEASE_ID_MAX_CHARS, "pattern": "^[0-9a-f]+$"}
_NUMBER: Object = {"type": "integer", "minimum": 0, "maximum": EXPORT_NUMBER_MAX, "default": 0}
_SEQUENCE: Object = {"application/msgpack": {"schema": {"type": "string", "format": "binary"}}}


def restore_paths() -> Object:
    """The ``paths`` of the document."""
    part: Object = {"type": "string", "pattern": f"^[A-Za-z0-9._-]{{1,{PART_NAME_MAX_CHARS}}}$"}
    return {
        EXPORT_TEMPLATE: {"parameters": [parameter("snapshot", "path", "Its id.", _ID)], "get": _export()},
        PART_TEMPLATE: {
            "parameters": [
                parameter("import", "path", "Its id.", _ID),
                parameter("part", "path", "The part, as the schema names it.", part),
            ],
            "put": _part(),
        },
    }


def _export() -> Object:
    return {
        "operationId": "export_snapshot",
        "tags": ["snapshots"],
        "summary": "Read a snapshot",
        "description": "A sequence of msgpack objects: a manifest; for each entry a map, followed by one or more "
        "binary objects that are its value together (a map in place of one says that the entry is damaged); with "
        "`since` the digests of all entries; a map with `end`. Every byte is verified before it is sent. A client that "
        "was cut off goes on with `from`. Each entry that is read starts the time of the snapshot anew.",
        "parameters": [
            parameter("from", "query", "The first position: one more than that of the last entry it has.", _NUMBER),
            parameter(
                "since",
                "query",
                "Only entries that changed after this seq, that of an earlier snapshot; up to this one's.",
                _NUMBER,
            ),
        ],
        "responses": {"200": {"description": "The entries.", "content": _SEQUENCE}, **problems(400, 404, 503)},
    }


def _part() -> Object:
    return {
        "operationId": "put_import_part",
        "tags": ["imports"],
        "summary": "Send a part of an import",
        "description": "A sequence of msgpack objects in pairs: a map with `keys`, a list of up to "
        f"{IMPORT_CHUNK_KEYS_MAX} binary keys, and one binary object with their rows, one behind the other, each of "
        "the size that the schema says; up to 4 MiB, or one row. A part that does not arrive whole is forgotten, and "
        "can be sent again. No key may stand twice.",
        "requestBody": {"required": True, "content": _SEQUENCE},
        "responses": {
            "200": {
                "description": "All of it is here.",
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "properties": {"keys": {"type": "integer", "minimum": 0}},
                            "required": ["keys"],
                            "additionalProperties": False,
                        }
                    }
                },
            },
            **problems(400, 404, 408, 409, 413, 415, 422, 503, 507),
        },
    }
