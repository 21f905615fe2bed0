"""B1 under slot reuse: readers of one key while its few slots are written again and again.

The device has as few slots as a device can have: four slabs, each one slot of the values' class. One client reads
without pause, one takes about a byte a second of an answer too large for any socket buffer, others put and delete the
same key and others, so that every slot changes hands while it is read.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rawblockd.torture.ledger import ABSENT, Ledger
from rawblockd.torture.load import Load, Mix, TortureFailed, check_found, exchange, path_of
from rawblockd.torture.values import NotThatValue
from rawblockd.torture.verification import check_accounting
from storage.formatting import format_device
from tests.support.daemon_process import DaemonProcess

MIB = 1 << 20
SLOTS = 4
KEYS = [f"value-{number}" for number in range(3)]
READ_KEY = KEYS[0]
VALUE_BYTES = (14 * MIB, 16 * MIB - 1)
SLOW_READS = 2
SLOW_BYTES = 5
PACE_SECONDS = 1.0
FAST_READS_MIN = 20
SETTINGS = ("--buffer-bytes", "64MiB", "--wait-timeout-seconds", "1")


@dataclass
class Readers:
    """The two readers; what went wrong is in ``errors``."""

    port: int
    ledger: Ledger
    fast_reads: int = 0
    slow_reads: int = 0
    slow_misses: int = 0
    errors: list[Exception] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Until the slow reader has had its answers. Raises what either of them found."""
        fast = threading.Thread(target=self._guarded, args=(self._read_fast,))
        fast.start()
        self._guarded(self._read_slowly)
        self.ended.set()
        fast.join()
        if self.errors:
            raise self.errors[0]

    def _guarded(self, read: object) -> None:
        assert callable(read)
        try:
            read()
        except (TortureFailed, NotThatValue, OSError, http.client.HTTPException) as error:
            self.errors.append(error)
            self.ended.set()

    def _read_fast(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        while not self.ended.is_set() or (self.fast_reads < FAST_READS_MIN and not self.errors):
            reading = self.ledger.begin_read(READ_KEY)
            code, value = exchange(connection, "GET", path_of(READ_KEY))
            self.ledger.end_read(reading)
            check_found(READ_KEY, code, value, reading.versions | {ABSENT}, self.ledger.history(READ_KEY))
            self.fast_reads += code == 200
        connection.close()

    def _read_slowly(self) -> None:
        while self.slow_reads < SLOW_READS and not self.ended.is_set():
            reading = self.ledger.begin_read(READ_KEY)
            code, value = self._slow_answer()
            self.ledger.end_read(reading)
            check_found(READ_KEY, code, value, reading.versions | {ABSENT}, self.ledger.history(READ_KEY))
            self.slow_reads += code == 200
            self.slow_misses += code != 200

    def _slow_answer(self) -> tuple[int, bytes]:
        """One answer whose first bytes are taken one by one, while the daemon can't send the rest."""
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(60)
            client.connect(("127.0.0.1", self.port))
            client.sendall(f"GET {path_of(READ_KEY)} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            data = bytearray(client.recv(16))
            if b" 200" in data:
                for _ in range(SLOW_BYTES):
                    time.sleep(PACE_SECONDS)  # the pace of the client, which nothing waits for
                    data += client.recv(1)
            # From here on as fast as it comes: with the small window the rest would take minutes.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * MIB)
            while part := client.recv(MIB):
                data += part
        head, _, value = bytes(data).partition(b"\r\n\r\n")
        return int(head.split()[1]), value


@pytest.mark.parametrize("io_engine", ["auto", "threads"])
def test_every_answer_is_one_whole_put_of_its_key(
    io_engine: str, device: Path, log: Path, told: Callable[[str], None]
) -> None:
    """B1, D4: a slot that a reader holds is not written, however slow the reader and however few the slots."""
    geometry = format_device(str(device), size_bytes=96 * MIB, slab_bytes=16 * MIB).geometry
    assert geometry.slabs == SLOTS
    assert geometry.class_for(VALUE_BYTES[0]) == geometry.class_for(VALUE_BYTES[1]) == len(geometry.class_bytes) - 1
    ledger = Ledger()
    mix = Mix(dict.fromkeys(KEYS, VALUE_BYTES), checkpoint_share=0.0, evicting=True)
    with DaemonProcess(log, "--device", str(device), "--io-engine", io_engine, *SETTINGS) as daemon:
        daemon.wait_ready()
        readers = Readers(daemon.port, ledger)
        load = Load(daemon.connect, ledger, mix, f"reuse/{io_engine}", connections=2)
        try:
            readers.run()
        finally:
            load.join(stop=True)
        check_accounting(daemon.wait_at_rest())
        assert daemon.stop() == 0
    puts = sum(count for name, count in ledger.counts.items() if name.startswith("put ") and "refused" not in name)
    told(
        f"reuse race, {io_engine}: {readers.fast_reads} fast and {readers.slow_reads} slow reads whole "
        f"({readers.slow_misses} slow misses), {dict(sorted(ledger.counts.items()))}"
    )
    assert puts > 10 * SLOTS, "every slot must have been used again"
