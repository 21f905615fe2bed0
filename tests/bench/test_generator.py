"""The load generator counts what was answered, and notices what should not have been."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.service.generator.compiling import compiled
from bench.service.generator.running import Generator, LoadFailed, Requests, checked, understood, write_canned
from bench.service.limit import measure_limit
from bench.service.server import http_requests
from bench.service.work import Work
from tests.bench.toy_server import ToyServer

KEYS = 40
SIZE = 20_000


def requests(toy: ToyServer, operation: str, *options: str, place: str = "kept") -> Requests:
    work = Work("get" if operation == "get" else "put", SIZE)
    return http_requests(work, KEYS, f"/{place}/{{key}}", host=toy.address).with_options(*options)


def put_all(generator: Generator, toy: ToyServer) -> None:
    load = generator.run(toy.address, requests(toy, "put", "--sequence"), connections=3, count=KEYS)
    assert checked(load).writes.count == KEYS


def test_each_key_is_put_once_and_got_as_it_was(generator: Generator, toy: ToyServer) -> None:
    put_all(generator, toy)
    assert toy.requests == KEYS
    assert sorted(toy.values) == [f"{key:08x}" for key in range(KEYS)]
    assert {len(value) for value in toy.values.values()} == {SIZE}
    load = checked(
        generator.run(toy.address, requests(toy, "get", "--sequence", "--verify"), connections=3, count=KEYS)
    )
    assert load.reads.count == load.ok == load.values == load.total_requests == KEYS
    assert load.bytes_in > KEYS * SIZE
    assert 0 < load.reads.p50 <= load.reads.p99


@pytest.mark.parametrize("place", ["kept", "chunked"])
@pytest.mark.parametrize("options", [(), ("--copy",)])
def test_bodies_are_passed_over_in_every_form(
    generator: Generator, toy: ToyServer, place: str, options: tuple[str, ...]
) -> None:
    put_all(generator, toy)
    load = generator.run(toy.address, requests(toy, "get", *options, place=place), connections=4, count=200)
    assert checked(load).ok == 200
    assert load.bytes_in > 200 * SIZE


@pytest.mark.parametrize("place", ["kept", "chunked"])
def test_other_bytes_are_noticed(generator: Generator, toy: ToyServer, place: str) -> None:
    put_all(generator, toy)
    value = bytearray(toy.values["00000007"])
    value[SIZE // 2] ^= 1
    toy.values["00000007"] = bytes(value)
    asked = requests(toy, "get", "--sequence", "--verify", place=place)
    load = generator.run(toy.address, asked, connections=2, count=KEYS)
    assert load.wrong == 1
    with pytest.raises(LoadFailed, match="1 wrong"):
        checked(load)


def test_a_value_that_is_too_short_is_noticed_without_looking_at_it(generator: Generator, toy: ToyServer) -> None:
    put_all(generator, toy)
    toy.values["00000003"] = toy.values["00000003"][:-1]
    load = generator.run(toy.address, requests(toy, "get", "--sequence"), connections=2, count=KEYS)
    assert load.wrong == 1


def test_misses_and_refusals_are_no_answers(generator: Generator, toy: ToyServer) -> None:
    put_all(generator, toy)
    del toy.values["00000001"]
    load = generator.run(toy.address, requests(toy, "get", "--sequence"), connections=2, count=KEYS)
    assert (load.ok, load.misses, load.failed) == (KEYS - 1, 1, 0)
    checked(load, misses_allowed=True)
    with pytest.raises(LoadFailed, match=f"^{KEYS - 1} right, 1 missed$"):
        checked(load)
    load = generator.run(toy.address, requests(toy, "get", place="broken"), connections=2, count=10)
    assert (load.ok, load.failed) == (0, 10)
    with pytest.raises(LoadFailed, match=r"HTTP/1\.1 500"):
        checked(load)


def test_mixed_work_is_counted_by_kind(generator: Generator, toy: ToyServer) -> None:
    put_all(generator, toy)
    mixed = http_requests(Work("mixed", SIZE), KEYS, "/kept/{key}", host=toy.address)
    load = checked(generator.run(toy.address, mixed, connections=4, count=400))
    assert load.reads.count + load.writes.count == 400
    # 80 of 100, drawn 400 times with a fixed seed.
    assert 280 < load.reads.count < 360


def test_canned_requests_are_sent_as_they_are(generator: Generator, toy: ToyServer, tmp_path: Path) -> None:
    bodies = [b"first", b"second", b"x" * 100_000]
    file = tmp_path / "requests"
    head = b"POST /batch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
    write_canned(file, (head % (len(body), body) for body in bodies))
    canned = Requests(canned=file, values=7, write="x", options=("--sequence",))
    load = checked(generator.run(toy.address, canned, connections=2, count=6))
    assert (load.ok, load.values) == (6, 42)
    assert sorted(toy.posted) == sorted(bodies * 2)


def test_a_window_begins_and_ends_when_told(generator: Generator, toy: ToyServer) -> None:
    put_all(generator, toy)
    before = toy.requests
    running = generator.start(toy.address, requests(toy, "get"), connections=2, seconds=60.0)
    try:
        toy.wait_for(before + 50)
        running.begin_window()
        toy.wait_for(before + 300)
        load = checked(running.end())
    finally:
        running.kill()
    assert 0 < load.ok < load.total_requests
    assert load.seconds < 60


def test_nobody_there(generator: Generator) -> None:
    work = http_requests(Work("get", SIZE), KEYS, "/{key}", host="x")
    with pytest.raises(LoadFailed, match="connect"):
        generator.run("127.0.0.1:1", work, connections=1, count=1)


def test_a_report_that_is_none() -> None:
    with pytest.raises(LoadFailed, match="no report"):
        understood("")


def test_it_is_measured_itself(generator: Generator, tmp_path: Path) -> None:
    limits = measure_limit(generator, tmp_path, (4096,), 0.1)
    assert [limit.operation for limit in limits] == ["get", "put"]
    assert all(limit.rate > 0 for limit in limits)


def test_a_program_is_compiled_anew_only_if_its_source_is_newer(tmp_path: Path) -> None:
    program = compiled("constant", tmp_path)
    made = program.stat().st_mtime_ns
    assert compiled("constant", tmp_path).stat().st_mtime_ns == made
