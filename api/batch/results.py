"""The result of one key, as a map."""

from __future__ import annotations

from typing import Any

from storage.errors import PreconditionFailed, RawblockdError

Result = dict[str, Any]

DETAIL_MAX_CHARS = 200


def etag_text(write_id: int) -> str:
    return f'"{write_id:016x}"'


def failure(error: RawblockdError) -> Result:
    """``status`` and ``reason`` (the code) as a problem has them; ``present_etag`` for the loser of a condition."""
    result: Result = {"status": error.http_status, "reason": error.code}
    if error.detail:
        result["detail"] = error.detail[:DETAIL_MAX_CHARS]
    if isinstance(error, PreconditionFailed) and error.present_write_id:
        result["present_etag"] = etag_text(error.present_write_id)
    return result
