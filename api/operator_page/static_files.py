"""The page's style sheets, scripts and icon: read once, named by file name and content, cached for ever."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi import Path as PathParameter
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from api.problem_schema import PROBLEM_ANSWER

FOLDER = Path(__file__).parent / "static"
ROUTE = "/static/{name}"

CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FOR_EVER = "public, max-age=31536000, immutable"
ASK_EACH_TIME = "no-cache"


@dataclass(frozen=True, slots=True)
class StaticFile:
    content: bytes
    content_type: str
    digest: str

    @property
    def etag(self) -> str:
        return f'"{self.digest}"'


@lru_cache(maxsize=1)
def static_files() -> Mapping[str, StaticFile]:
    """What is served, by name. A request only ever looks into this table, so no path can lead out of it."""
    files = {}
    for path in sorted(FOLDER.rglob("*")):
        content_type = CONTENT_TYPES.get(path.suffix)
        if content_type is not None:
            content = path.read_bytes()
            files[path.name] = StaticFile(content, content_type, hashlib.sha256(content).hexdigest()[:16])
    return files


def static_url(name: str) -> str:
    """The address of a file: it changes with the content, so the answer may be kept for ever."""
    return f"{ROUTE.format(name=name)}?v={static_files()[name].digest}"


def static_router() -> APIRouter:
    router = APIRouter(tags=["pages"])

    @router.get(
        ROUTE,
        summary="Style sheets and scripts of the pages",
        operation_id="static_file",
        response_class=Response,
        responses={
            200: {"description": "The file.", "content": {kind: {} for kind in CONTENT_TYPES.values()}},
            304: {"description": "The client has it."},
            404: PROBLEM_ANSWER,
        },
    )
    async def static_file(
        name: Annotated[str, PathParameter(description="Name of the file.")],
        v: Annotated[str | None, Query(description="Digest of the content; with the right one it may be kept.")] = None,
        if_none_match: Annotated[str | None, Header(include_in_schema=False)] = None,
    ) -> Response:
        """With `v` as in the pages the answer never changes; without it clients ask again by ETag."""
        file = static_files().get(name)
        if file is None:
            raise HTTPException(404)
        headers = {
            "cache-control": FOR_EVER if v == file.digest else ASK_EACH_TIME,
            "etag": file.etag,
            "x-content-type-options": "nosniff",
        }
        if file.etag in (if_none_match or ""):
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers | {"content-type": file.content_type})

    return router
