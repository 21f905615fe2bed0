"""Calls about many values at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, Union

from rawblockd_client.codec import Buffer, Malformed, Unpacker, bin_head, pack
from rawblockd_client.errors import AnswerInvalid, Problem, problem_of
from rawblockd_client.exchange import MSGPACK, Answer, Call, namespace_target, pieces_of, problem_of_answer, query
from rawblockd_client.models import (
    DTYPE_BYTES,
    Entry,
    EntryInfo,
    Key,
    Lease,
    Part,
    Presence,
    PutItem,
    PutResult,
    key_bytes,
)
from rawblockd_client.problems import EntryCorrupt, EntryNotFound

T = TypeVar("T")

GetResult = Union[Entry, Problem, None]
"""None: a miss. A problem: this one key can't be read."""

_HEADERS = {"Content-Type": MSGPACK, "Accept": MSGPACK}


def mget_call(
    namespace: str,
    keys: Sequence[Key],
    *,
    parts: Sequence[str] | None,
    lease: str | None,
    stop_at_first_miss: bool,
) -> Call[list[GetResult]]:
    """Values are views of the answer."""
    fields: dict[str, Any] = {"keys": [key_bytes(key) for key in keys]}
    if parts is not None:
        fields["parts"] = list(parts)
    if stop_at_first_miss:
        fields["stop_at_first_miss"] = True

    def parse(answer: Answer) -> list[GetResult]:
        results = list(_values(_objects(answer)))
        # With stop_at_first_miss the keys behind the miss were not looked at: misses, as far as anybody knows.
        if len(results) > len(keys) or (len(results) < len(keys) and not stop_at_first_miss):
            raise AnswerInvalid(f"{len(results)} results for {len(keys)} keys")
        return results + [None] * (len(keys) - len(results))

    return _call(namespace, "mget", [pack(fields)], parse, lease=lease)


def mput_call(
    namespace: str, items: Sequence[PutItem], *, ttl: int | str | None, durability: str | None
) -> Call[list[PutResult | Problem]]:
    options: dict[str, Any] = {"entries": len(items)}
    if ttl is not None:
        options["ttl"] = ttl
    if durability is not None:
        options["durability"] = durability
    body: list[Buffer] = [pack(options)]
    conditional = False
    for item in items:
        pieces = pieces_of(item.value)
        body.append(pack(_head(item)) + bin_head(sum(memoryview(piece).nbytes for piece in pieces)))
        body.extend(pieces)
        conditional = conditional or item.if_absent or item.if_match is not None

    def parse(answer: Answer) -> list[PutResult | Problem]:
        return [_put_result(result) for result in _results(answer, len(items))]

    return _call(namespace, "mput", body, parse, repeatable=not conditional)


def mdelete_call(namespace: str, keys: Sequence[Key], *, durability: str | None) -> Call[list[bool | Problem]]:
    """True: it was there; False: a miss."""
    fields: dict[str, Any] = {"keys": [key_bytes(key) for key in keys]}
    if durability is not None:
        fields["durability"] = durability

    def parse(answer: Answer) -> list[bool | Problem]:
        found: list[bool | Problem] = []
        for result in _results(answer, len(keys)):
            problem = None if result["status"] == 204 else _problem(result)
            found.append(True if problem is None else False if isinstance(problem, EntryNotFound) else problem)
        return found

    return _call(namespace, "mdelete", [pack(fields)], parse)


def exists_call(namespace: str, keys: Sequence[Key], *, sizes: bool, lease_seconds: int | None) -> Call[Presence]:
    fields: dict[str, Any] = {"keys": [key_bytes(key) for key in keys]}
    if sizes:
        fields["sizes"] = True

    def parse(answer: Answer) -> Presence:
        document = _document(answer)
        found = document.get("sizes")
        sizes_found = None if found is None else tuple(found)
        return Presence(_bits(document, len(keys)), int(document["leading_hits"]), sizes_found, document.get("lease"))

    return _call(namespace, "exists", [pack(fields)], parse, lease=lease_seconds)


def lease_call(
    namespace: str, keys: Sequence[Key], *, ttl_seconds: int, owner: str, lease_id: str | None
) -> Call[Lease]:
    fields: dict[str, Any] = {"keys": [key_bytes(key) for key in keys], "ttl_seconds": ttl_seconds}
    if owner:
        fields["owner"] = owner
    if lease_id is not None:
        fields["lease"] = lease_id

    def parse(answer: Answer) -> Lease:
        document = _document(answer)
        return Lease(
            document["lease"],
            document["expires_in_seconds"],
            document["entries"],
            document["held_bytes"],
            _bits(document, len(keys)),
        )

    # A second lease for an answer that was lost would hold slots that nobody releases.
    return _call(namespace, "lease", [pack(fields)], parse, repeatable=lease_id is not None)


def parts_of(listed: Iterable[Any]) -> tuple[Part, ...]:
    """Parts as batch answers list them. Raises AnswerInvalid."""
    parts = []
    for item in listed:
        if not isinstance(item, list) or len(item) != 3 or item[1] not in DTYPE_BYTES:
            raise AnswerInvalid("parts of a result")
        parts.append(Part(item[0], item[1], tuple(item[2])))
    return tuple(parts)


def _head(item: PutItem) -> dict[str, Any]:
    head: dict[str, Any] = {"key": key_bytes(item.key)}
    if item.ttl is not None:
        head["ttl"] = item.ttl
    if item.content_type is not None:
        head["content_type"] = item.content_type
    if item.meta:
        head["meta"] = dict(item.meta)
    if item.if_absent:
        head["if_none_match"] = True
    if item.if_match is not None:
        head["if_match"] = [item.if_match] if isinstance(item.if_match, str) else list(item.if_match)
    if item.parts:
        head["parts"] = [[part.name, part.dtype, list(part.shape)] for part in item.parts]
    return head


def _call(
    namespace: str,
    verb: str,
    body: Sequence[Buffer],
    parse: Any,
    *,
    lease: str | int | None = None,
    repeatable: bool = True,
) -> Call[Any]:
    target = namespace_target(namespace, verb) + query({"lease": lease})
    return Call("POST", target, parse, dict(_HEADERS), body, repeatable=repeatable)


def _objects(answer: Answer) -> Iterator[Any]:
    if answer.status != 200:
        raise problem_of_answer(answer)
    unpacker = Unpacker(answer.body)
    while not unpacker.at_end:
        try:
            yield unpacker.next()
        except Malformed as error:
            raise AnswerInvalid(f"the batch's answer: {error}") from None


def _document(answer: Answer) -> dict[str, Any]:
    found = list(_objects(answer))
    if len(found) != 1 or not isinstance(found[0], dict):
        raise AnswerInvalid("the answer is not one map")
    return found[0]


def _results(answer: Answer, count: int) -> list[dict[str, Any]]:
    found = list(_objects(answer))
    if len(found) != count + 1 or not all(isinstance(one, dict) for one in found) or found[-1].get("end") is not True:
        raise AnswerInvalid(f"{len(found) - 1} results for {count} entries")
    return found[:-1]


def _values(objects: Iterator[Any]) -> Iterator[GetResult]:
    for head in objects:
        if not isinstance(head, dict):
            raise AnswerInvalid("a value without a head")
        if head.get("end") is True:
            if next(objects, None) is not None:
                raise AnswerInvalid("something follows the end")
            return
        if head.get("status") != 200:
            problem = _problem(head)
            yield None if isinstance(problem, EntryNotFound) and not isinstance(problem, EntryCorrupt) else problem
            continue
        yield _value(head, objects)
    raise AnswerInvalid("the end of the answer is missing")


def _value(head: dict[str, Any], objects: Iterator[Any]) -> GetResult:
    size = head["size"]
    pieces: list[memoryview] = []
    left = size
    while left or not pieces:
        piece = next(objects, None)
        if isinstance(piece, dict):
            return _problem(piece)
        if not isinstance(piece, memoryview) or len(piece) > left:
            raise AnswerInvalid("the bytes of a value are not as many as were announced")
        pieces.append(piece)
        left -= len(piece)
    info = EntryInfo(
        head["etag"],
        size,
        head.get("content_type", ""),
        head.get("meta", {}),
        head.get("stored_at"),
        head.get("expires_at"),
        parts_of(head.get("parts", ())),
    )
    return Entry(info, pieces[0] if len(pieces) == 1 else b"".join(pieces))


def _put_result(result: dict[str, Any]) -> PutResult | Problem:
    if result["status"] in (200, 201, 204):
        return PutResult(result["etag"], result["status"] == 201, result.get("durability", ""))
    return _problem(result)


def _problem(result: dict[str, Any]) -> Problem:
    return problem_of(
        str(result.get("reason", "")), int(result.get("status", 0)), str(result.get("detail", "")), result
    )


def _bits(document: dict[str, Any], count: int) -> tuple[bool, ...]:
    bitmap = document["bitmap"]
    return tuple(bool(bitmap[index // 8] >> index % 8 & 1) for index in range(count))
