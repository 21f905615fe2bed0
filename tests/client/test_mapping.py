"""A namespace as a ``MutableMapping``, compared with a dict; and one client in many threads."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from rawblockd_client import Client


def test_a_namespace_behaves_as_a_dict(client: Client, namespace: str) -> None:
    mapping, model = client.mapping(namespace), dict[bytes, bytes]()
    assert (len(mapping), list(mapping), b"key" in mapping) == (0, [], False)
    choose = random.Random(4)
    for step in range(200):
        key = b"key %d" % choose.randrange(20)
        action = choose.randrange(4)
        if action < 2:
            mapping[key] = model[key] = b"%d" % step
        elif action == 2:
            assert mapping.pop(key, None) == model.pop(key, None)
        else:
            assert mapping.get(key) == model.get(key)
            assert (key in mapping) == (key in model)
    assert dict(mapping) == model
    assert len(mapping) == len(model)
    mapping["text"] = b"is UTF-8"
    assert mapping[b"text"] == b"is UTF-8"
    with pytest.raises(KeyError):
        mapping["none"]
    with pytest.raises(KeyError):
        del mapping["none"]
    mapping.clear()
    assert len(mapping) == 0


def test_many_threads_share_a_client(client: Client, namespace: str) -> None:
    def work(number: int) -> bool:
        value = bytes([number]) * 10_000
        return all(
            client.put(namespace, f"{number}", value).etag and client.get(namespace, f"{number}") == value
            for _ in range(20)
        )

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(16)))
    assert len(client.mapping(namespace)) == 16
