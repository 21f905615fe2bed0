"""``PUT /v1/imports/{import}/parts/{part}``: one part, written to the device as it arrives."""

from __future__ import annotations

from api.batch.answers import send_document
from api.batch.forms import Form, form_of_body
from api.batch.memory import BatchMemory
from api.errors import MediaTypeUnsupported
from api.import_chunks import ChunkReader
from api.parameters import read_parameters
from api.value_request import ValueRequest
from storage.limits import KEY_MAX_BYTES

_NO_PARAMETERS: frozenset[str] = frozenset()


async def answer_part(request: ValueRequest, import_id: str, part: str, memory: BatchMemory) -> int:
    """Answer 200 with the number of keys.

    Raises MediaTypeUnsupported, BodyInvalid, BatchTooLarge, BodyTimeout, ClientGone and what the engine refuses a part
    with; then the part is forgotten, and can be sent again.
    """
    read_parameters(request.query, _NO_PARAMETERS)
    if form_of_body(request) is not Form.MSGPACK:
        raise MediaTypeUnsupported("Content-Type is application/msgpack")
    upload = request.engine.begin_import_part(import_id, part)
    try:
        reader = ChunkReader(request.exchange.receive)
        while (keys := await reader.keys()) is not None:
            size_bytes = await reader.rows_bytes(len(keys))
            with memory.share() as share:
                share.take(size_bytes + len(keys) * KEY_MAX_BYTES)
                await upload.add(keys, await reader.rows(size_bytes))
        count = await upload.end()
    finally:
        # Also when the task is cancelled: no slot and no buffer may stay behind.
        upload.abort()
    return send_document(request, Form.JSON, {"keys": count})
