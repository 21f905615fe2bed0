"""Answers of batches that are sent whole: results that are no larger than the request was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.batch.forms import Form, dump_json
from api.batch.packing import pack
from api.batch.results import Result
from api.headers import NO_SCRIPTS, encode
from api.value_request import ValueRequest

_LINES = {form: encode([(b"content-type", form.value), (b"cache-control", b"no-store")]) + NO_SCRIPTS for form in Form}


def answer_lines(form: Form) -> bytes:
    return _LINES[form]


def send_document(request: ValueRequest, form: Form, document: dict[str, Any]) -> int:
    """One map."""
    return _send(request, form, pack(document) if form is Form.MSGPACK else dump_json(document))


def send_results(request: ValueRequest, form: Form, results: Sequence[Result], end: Result) -> int:
    """A map for each key and one at the end, with how many they are; in JSON one object with the list ``results``."""
    if form is Form.MSGPACK:
        body = b"".join([*map(pack, results), pack({"end": True, "results": len(results), **end})])
    else:
        body = dump_json({"results": results, **end})
    return _send(request, form, body)


def _send(request: ValueRequest, form: Form, body: bytes) -> int:
    request.exchange.answer(200, answer_lines(form), body)
    return 200
