"""Slow and stalled clients: they get what is theirs, and hold nothing that others need."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.http.daemon import Daemon
from tests.http.raw_client import RawClient, head, request

BODY = hashlib.shake_128(b"slow").digest(14 << 20)


def test_l1_a_slow_reader_holds_no_buffer_and_gets_every_byte(daemon: Daemon, key: str) -> None:
    assert daemon.http.put(key, content=BODY).status_code == 201
    with RawClient(daemon.address, receive_buffer_bytes=4096) as client:
        client.send(request("GET", key))
        assert client.answer_head().status == 200
        received = client.read(1)
        # It has read a byte of fourteen million; nothing of the pool is held while it waits for the next second.
        daemon.wait_at_rest()
        assert daemon.http.get("/livez").status_code == 200
        received += client.read(len(BODY) - 1)
    assert received == BODY
    assert daemon.wait_at_rest()["capacity"]["slots"]["in_flight"] == 0
    daemon.http.delete(key)


def test_b1_a_slow_reader_gets_the_old_value_whole_while_it_is_replaced(daemon: Daemon, key: str) -> None:
    assert daemon.http.put(key, content=BODY).status_code == 201
    with RawClient(daemon.address, receive_buffer_bytes=4096) as client:
        client.send(request("GET", key))
        assert client.answer_head().status == 200
        for index in range(20):
            assert daemon.http.put(key, content=bytes([index]) * (1 << 20)).status_code == 204
        assert client.read(len(BODY)) == BODY
    daemon.http.delete(key)


def test_many_slow_readers_do_not_starve_the_others(daemon: Daemon, key: str) -> None:
    assert daemon.http.put(key, content=BODY).status_code == 201
    clients = [RawClient(daemon.address, receive_buffer_bytes=4096) for _ in range(50)]
    for client in clients:
        client.send(request("GET", key))
    for client in clients:
        assert client.answer_head().status == 200
    daemon.wait_at_rest()
    assert daemon.http.put(f"{key}-other", content=b"x").status_code == 201
    assert daemon.http.get(f"{key}-other").content == b"x"
    for client in clients:
        client.close()
    daemon.wait_at_rest()
    daemon.http.delete(key)


def test_a_stalled_reader_is_cut_off(impatient: Daemon, key: str) -> None:
    assert impatient.http.put(key, content=BODY).status_code == 201
    with RawClient(impatient.address, receive_buffer_bytes=4096) as client:
        client.send(request("GET", key))
        answer = client.answer_head()
        assert answer.status == 200
        impatient.wait_for_count("GET", 499, 1)
        impatient.wait_at_rest()
        assert len(client.read_to_end()) < len(BODY)
    impatient.http.delete(key)


def test_a_stalled_upload_is_answered_408_and_leaves_nothing(impatient: Daemon, key: str) -> None:
    for sent in (0, 1, 70_000):
        with RawClient(impatient.address) as client:
            client.send(head("PUT", key, [("Content-Length", "2000000")]) + bytes(sent))
            answer = client.answer()
            assert (answer.status, answer.code, answer.closes) == (408, "request_timeout", True)
            assert client.at_end()
    impatient.wait_at_rest()
    assert impatient.http.get(key).status_code == 404


def test_an_upload_that_trickles_is_answered_408(impatient: Daemon, key: str) -> None:
    """A byte now and then is no progress."""
    with RawClient(impatient.address) as client:
        client.send(head("PUT", key, [("Content-Length", "2000000")]))
        client.socket.settimeout(0.01)
        while True:
            try:
                client.send(b"x")
                if client.socket.recv(1, 2):  # MSG_PEEK
                    break
            except TimeoutError:
                continue
        client.socket.settimeout(60)
        assert client.answer().status == 408
    impatient.wait_at_rest()


def test_a_client_that_asks_and_never_reads_is_cut_off(impatient: Daemon, key: str) -> None:
    assert impatient.http.put(key, content=BODY[: 1 << 16]).status_code == 201
    files = impatient.open_files()
    with RawClient(impatient.address, receive_buffer_bytes=4096) as client:
        client.socket.setblocking(False)
        asked = request("GET", key) * 10_000
        while asked:
            try:
                asked = asked[client.socket.send(asked) :]
            except BlockingIOError:
                break
        impatient.wait_for_open_files(files)
    impatient.wait_at_rest()
    impatient.http.delete(key)


def test_an_idle_connection_is_closed_whatever_came_before(tmp_path: Path, key: str) -> None:
    """Also behind an answer that was taken late, and behind a body that came after its answer and nobody read."""
    body = BODY[: 15 << 17]
    with Daemon(tmp_path / "cache.img", "--keep-alive-seconds", "1") as daemon:
        idle, late, unread = RawClient(daemon.address), RawClient(daemon.address, 8192), RawClient(daemon.address)
        with idle, late, unread:
            assert idle.ask("PUT", key, body=body).status == 201
            late.send(request("GET", key) * 2)
            unread.send(head("GET", key, [("Content-Length", "1")]))
            assert unread.answer().body == body
            unread.send(b"x")
            assert [late.answer().body for _ in range(2)] == [body, body]
            assert [client.at_end() for client in (idle, late, unread)] == [True, True, True]
