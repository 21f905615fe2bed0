"""FastAPI and diskcache, as one writes it without further thought: what blocks runs in threads."""

from __future__ import annotations

import asyncio
import os

import diskcache
from fastapi import FastAPI, Request, Response

application = FastAPI()
cache = diskcache.Cache(os.environ["BENCH_FOLDER"] + "/cache", size_limit=1 << 40)


@application.get("/{size}/{key}")
def get(size: int, key: str) -> Response:
    value = cache.get(f"{size}/{key}")
    if value is None:
        return Response(status_code=404)
    return Response(value, media_type="application/octet-stream")


@application.put("/{size}/{key}")
async def put(size: int, key: str, request: Request) -> Response:
    await asyncio.to_thread(cache.set, f"{size}/{key}", await request.body())
    return Response(status_code=204)
