"""Calls about one value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Union

from rawblockd_client.codec import Buffer
from rawblockd_client.errors import AnswerInvalid
from rawblockd_client.exchange import Answer, Call, is_miss, pieces_of, problem_of_answer, value_target
from rawblockd_client.models import DTYPE_BYTES, Entry, EntryInfo, Key, Part, PutResult
from rawblockd_client.problems import EntryNotFound

META = "rawblockd-meta-"
PARTS = "Rawblockd-Parts"

Tags = Union[str, Sequence[str], None]
"""One ETag, several, or ``*``."""

_PART = re.compile(r"[ \t,]*([A-Za-z0-9._-]+)=([a-z0-9_]+)\[([0-9,]*)\][ \t]*(?:,|$)")
_MAX_AGE = re.compile(r"max-age=(\d+)")


def get_call(namespace: str, key: Key, *, lease: str | None, part: str | None = None) -> Call[Entry | None]:
    target = value_target(namespace, key, {"lease": lease, "part": part})
    return Call("GET", target, lambda answer: _entry(answer, part))


def get_into_call(
    namespace: str,
    key: Key,
    sink: memoryview,
    *,
    lease: str | None,
    part: str | None = None,
    start: int | None = None,
) -> Call[EntryInfo | None]:
    headers = {} if start is None else {"Range": f"bytes={start}-{start + len(sink) - 1}"}

    def parse(answer: Answer) -> EntryInfo | None:
        if answer.status not in (200, 206):
            _demand_miss(answer)
            return None
        if start is not None and answer.status != 206:
            raise AnswerInvalid("a range was asked for, the whole value came")
        return _info(answer, answer.received_bytes)

    return Call("GET", value_target(namespace, key, {"lease": lease, "part": part}), parse, headers, sink=sink)


def head_call(namespace: str, key: Key, *, lease: str | None) -> Call[EntryInfo | None]:
    def parse(answer: Answer) -> EntryInfo | None:
        if is_miss(answer):
            return None
        if answer.status != 200:
            raise problem_of_answer(answer)
        return _info(answer, int(answer.field("content-length")))

    return Call("HEAD", value_target(namespace, key, {"lease": lease}), parse)


def put_call(
    namespace: str,
    key: Key,
    value: Buffer | Sequence[Buffer],
    *,
    ttl: int | str | None,
    content_type: str | None,
    meta: Mapping[str, str] | None,
    durability: str | None,
    if_match: Tags,
    if_absent: bool,
    parts: Sequence[Part],
) -> Call[PutResult]:
    headers = {f"Rawblockd-Meta-{name}": text for name, text in (meta or {}).items()}
    if content_type is not None:
        headers["Content-Type"] = content_type
    if if_match is not None:
        headers["If-Match"] = _tags(if_match)
    if if_absent:
        headers["If-None-Match"] = "*"
    if parts:
        headers[PARTS] = ", ".join(part.text for part in parts)
    conditional = if_absent or if_match is not None

    def parse(answer: Answer) -> PutResult:
        if answer.status not in (201, 204):
            raise problem_of_answer(answer)
        return PutResult(answer.field("etag"), answer.status == 201, answer.field("rawblockd-durability"))

    target = value_target(namespace, key, {"ttl": ttl, "durability": durability})
    return Call("PUT", target, parse, headers, pieces_of(value), repeatable=not conditional)


def touch_call(namespace: str, key: Key, ttl: int | str, *, if_match: Tags) -> Call[str | None]:
    def parse(answer: Answer) -> str | None:
        if answer.status != 204:
            _demand_miss(answer)
            return None
        return answer.field("etag")

    headers = {} if if_match is None else {"If-Match": _tags(if_match)}
    return Call("PATCH", value_target(namespace, key, {"ttl": ttl}), parse, headers)


def delete_call(namespace: str, key: Key, *, durability: str | None, if_match: Tags) -> Call[bool]:
    def parse(answer: Answer) -> bool:
        if answer.status == 204:
            return True
        _demand_miss(answer)
        return False

    headers = {} if if_match is None else {"If-Match": _tags(if_match)}
    target = value_target(namespace, key, {"durability": durability})
    return Call("DELETE", target, parse, headers, repeatable=if_match is None)


def parse_parts(text: str) -> tuple[Part, ...]:
    """The field ``Rawblockd-Parts``. Raises AnswerInvalid."""
    parts: list[Part] = []
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None or match[2] not in DTYPE_BYTES:
            raise AnswerInvalid(f"parts: {text[at : at + 40]!r}")
        parts.append(Part(match[1], match[2], tuple(int(size) for size in match[3].split(",") if size)))
        at = match.end()
    return tuple(parts)


def _entry(answer: Answer, part: str | None) -> Entry | None:
    if answer.status != 200:
        _demand_miss(answer)
        return None
    info = _info(answer, memoryview(answer.body).nbytes)
    if part is not None:
        chosen = tuple(one for one in info.parts if one.name == part)
        if len(chosen) != 1 or chosen[0].size_bytes != info.size_bytes:
            raise AnswerInvalid(f"the answer is not the part {part}")
        info = EntryInfo(
            info.etag, info.size_bytes, info.content_type, info.meta, info.stored_at, info.expires_at, chosen
        )
    return Entry(info, answer.body)


def _demand_miss(answer: Answer) -> None:
    """Raises every problem but a miss, also that of a part or lease that isn't there."""
    problem = problem_of_answer(answer)
    if not isinstance(problem, EntryNotFound):
        raise problem


def _info(answer: Answer, size_bytes: int) -> EntryInfo:
    headers = answer.headers
    stored_at = None
    if "last-modified" in headers:
        stored_at = parsedate_to_datetime(headers["last-modified"]).timestamp()
    lives = _MAX_AGE.search(headers.get("cache-control", ""))
    expires_at = stored_at + float(lives[1]) if lives and stored_at is not None else None
    meta: dict[str, str] = {name[len(META) :]: text for name, text in headers.items() if name.startswith(META)}
    return EntryInfo(
        answer.field("etag"),
        size_bytes,
        headers.get("content-type", ""),
        meta,
        stored_at,
        expires_at,
        parse_parts(headers.get("rawblockd-parts", "")),
    )


def _tags(tags: str | Sequence[str]) -> str:
    return tags if isinstance(tags, str) else ", ".join(tags)
