"""The two forms of a batch: msgpack for programs, JSON for people; and how a request says which."""

from __future__ import annotations

import base64
import binascii
import enum
import json
from typing import Any

from api.batch.msgpack_reader import OddMap, mapping
from api.errors import BodyInvalid, MediaTypeUnsupported
from api.value_request import ValueRequest


class Form(enum.Enum):
    MSGPACK = b"application/msgpack"
    JSON = b"application/json"


_FORMS = {form.value: form for form in Form}


def form_of_body(request: ValueRequest) -> Form:
    """By Content-Type. Raises MediaTypeUnsupported."""
    text = request.fields.get(b"content-type", b"")
    form = _FORMS.get(text) or _FORMS.get(text.partition(b";")[0].strip(b" \t").lower())
    if form is None:
        raise MediaTypeUnsupported("Content-Type is application/msgpack or application/json")
    return form


def form_of_answer(request: ValueRequest, default: Form) -> Form:
    """The first of the two that Accept names; the default if it names neither."""
    accept = request.fields.get(b"accept")
    if accept is not None:
        for part in accept.split(b","):
            form = _FORMS.get(part.partition(b";")[0].strip(b" \t").lower())
            if form is not None:
                return form
    return default


def parse_json(body: bytes) -> dict[str, Any]:
    """The one object of a body, names checked. Raises BodyInvalid."""
    try:
        found = json.loads(body.decode("utf-8"), object_pairs_hook=mapping, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BodyInvalid(f"not valid JSON: {str(error)[:100]}") from None
    return checked_map(found, "the body")


def checked_map(found: object, what: str) -> dict[str, Any]:
    """``found`` if it is a map with text for names. Raises BodyInvalid."""
    if isinstance(found, OddMap):
        raise BodyInvalid(f"{what}: {found.detail}")
    if not isinstance(found, dict):
        raise BodyInvalid(f"{what} is not a map")
    return found


def from_base64(text: object, place: str) -> bytes:
    """Raises BodyInvalid."""
    if type(text) is str:
        try:
            return binascii.a2b_base64(text, strict_mode=True)
        except ValueError:
            pass
    raise BodyInvalid(f"{place} is not base64")


def to_base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode("ascii")


def key_from_json(found: object, place: str) -> bytes:
    """A key is a string, in UTF-8, or an object with its bytes in base64. Raises BodyInvalid."""
    if type(found) is str:
        try:
            return found.encode("utf-8")
        except UnicodeEncodeError:
            raise BodyInvalid(f"{place} has half a character: such a key is given in base64") from None
    if type(found) is dict and found.keys() == {"base64"}:
        return from_base64(found["base64"], f"{place}.base64")
    raise BodyInvalid(f"{place} is neither a string nor an object with base64 alone")


def dump_json(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace") + b"\n"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
