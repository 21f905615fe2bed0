"""Calls about namespaces, leases and the daemon itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from rawblockd_client.codec import Malformed, Unpacker
from rawblockd_client.errors import AnswerInvalid
from rawblockd_client.exchange import MSGPACK, Answer, Call, namespace_target, problem_of_answer, query
from rawblockd_client.models import Document, ListedEntry, ListingPage
from rawblockd_client.problems import NamespaceNotFound


def namespaces_call() -> Call[list[Document]]:
    return Call("GET", "/v1/namespaces", lambda answer: list(_document(answer)["namespaces"]))


def namespace_call(namespace: str) -> Call[Document | None]:
    def parse(answer: Answer) -> Document | None:
        try:
            return _document(answer)
        except NamespaceNotFound:
            return None

    return Call("GET", _namespace(namespace), parse)


def set_namespace_call(namespace: str, settings: Mapping[str, Any]) -> Call[Document]:
    body = json.dumps(settings).encode()
    return Call("PUT", _namespace(namespace), _document, {"Content-Type": "application/json"}, [body])


def wipe_namespace_call(namespace: str) -> Call[Document | None]:
    def parse(answer: Answer) -> Document | None:
        try:
            return _document(answer)
        except NamespaceNotFound:
            return None

    return Call("DELETE", _namespace(namespace), parse)


def release_call(lease_id: str) -> Call[None]:
    def parse(answer: Answer) -> None:
        if answer.status != 204:
            raise problem_of_answer(answer)

    return Call("DELETE", f"/v1/leases/{quote(lease_id, safe='')}", parse)


def status_call() -> Call[Document]:
    return Call("GET", "/v1/status", _document)


def listing_call(namespace: str, *, prefix: bytes, cursor: str | None, limit: int) -> Call[ListingPage]:
    target = namespace_target(namespace) + query({"prefix": prefix or None, "cursor": cursor, "limit": limit})
    return Call("GET", target, _page, {"Accept": MSGPACK})


def _page(answer: Answer) -> ListingPage:
    if answer.status != 200:
        raise problem_of_answer(answer)
    try:
        document = Unpacker(answer.body).next()
    except Malformed as error:
        raise AnswerInvalid(f"the listing: {error}") from None
    entries = tuple(
        ListedEntry(
            bytes(item["key"]),
            item["etag"],
            item["size"],
            item["stored_at"],
            item["expires_at"],
            item["content_type"],
        )
        for item in document["entries"]
    )
    return ListingPage(entries, document["cursor"])


def _namespace(namespace: str) -> str:
    return f"/v1/namespaces/{quote(namespace, safe='')}"


def _document(answer: Answer) -> Document:
    if answer.status not in (200, 201):
        raise problem_of_answer(answer)
    found = answer.json()
    if not isinstance(found, dict):
        raise AnswerInvalid("the answer is no object")
    return found
