"""Small forms: ``application/x-www-form-urlencoded``, read whole, with a limit (L1)."""

from __future__ import annotations

from urllib.parse import parse_qsl

from fastapi import Request

from storage.errors import ParameterInvalid

FORM_MAX_BYTES = 4096
FORM_MAX_FIELDS = 16
MEDIA_TYPE = "application/x-www-form-urlencoded"


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; of several with one name the last. Raises ParameterInvalid."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != MEDIA_TYPE:
        raise ParameterInvalid(f"the body of a form is {MEDIA_TYPE}")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > FORM_MAX_BYTES:
            raise ParameterInvalid(f"a form has at most {FORM_MAX_BYTES} bytes")
    try:
        fields = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FORM_MAX_FIELDS
        )
    except ValueError as error:
        raise ParameterInvalid("the form is malformed") from error
    return dict(fields)
