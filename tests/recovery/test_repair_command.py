"""``rawblockd repair``: the dry run reports and writes nothing, ``--write`` does what a start would do (R5, D6)."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import storage.offline.repair
from rawblockd.command_line import build_application
from rawblockd.command_line.output import CommandFailed
from storage.errors import DeviceInUse
from storage.recovery.errors import InvalidRowsFound, TooMuchSkipped
from tests.recovery.checks import start
from tests.recovery.expectations import Expected
from tests.recovery.test_damage_matrix_pages import settled_before
from tests.recovery.test_ways_out import many_skipped
from tests.recovery.world import World
from tests.support.device_holders import held_elsewhere
from tests.support.engines import check_accounts, peek
from tests.support.simulated_device import Image
from tests.support.victim import Victim


@contextmanager
def on_disk(image: Image, folder: Path) -> Iterator[Path]:
    """The device's content as a file, deleted afterwards."""
    path = folder / "device"
    with path.open("wb") as file:
        for begin in range(0, image.size_bytes, 1 << 20):
            file.write(image.read(begin, min(1 << 20, image.size_bytes - begin)))
    yield path
    path.unlink()


def image_of(path: Path) -> Image:
    content = path.read_bytes()
    return Image(len(content), {n: content[n * 4096 : n * 4096 + 4096] for n in range(len(content) // 4096)})


def repair(path: Path, *arguments: str, exit_code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(build_application(["repair"]), ["repair", str(path), "--json", *arguments])
    if isinstance(result.exception, CommandFailed):
        assert result.exception.exit_code == exit_code, str(result.exception)
        return {}
    assert result.exit_code == exit_code, result.output
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


async def served(world: World, path: Path, expected: Expected) -> None:
    rig = await start(world, Victim(image_of(path), world.superblock))
    assert not rig.engine.status().partial_recovery
    for key, value in expected.values(world).items():
        assert await peek(rig.engine, key) == value, key
    check_accounts(rig.engine)
    await rig.stop()


@pytest.fixture
def now(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's clock is the world's."""
    whole = storage.offline.repair.repair
    monkeypatch.setattr(storage.offline.repair, "repair", functools.partial(whole, clock=world.clock))


@pytest.mark.usefixtures("now")
class TestRepair:
    def test_a_sound_device_is_clean_and_nothing_is_written(self, world: World, tmp_path: Path) -> None:
        """Exit code 0; byte-identical afterwards."""
        with on_disk(world.image, tmp_path) as path:
            report = repair(path)
            assert report["verdict"] == "clean"
            assert report["recovered"] == len(world.values)
            assert report["expired"] == len(world.expired)
            assert not report["written"]
            assert image_of(path) == world.image

    async def test_what_can_be_repaired_is_repaired_on_request(self, world: World, tmp_path: Path) -> None:
        """R1: dry run 0 and unchanged; written, the next start finds nothing to repair any more."""
        victim = world.victim()
        victim.flip(victim.page_offset(world.newest, 1) + 40)
        with on_disk(victim.image, tmp_path) as path:
            report = repair(path)
            assert report["verdict"] == "repairable"
            assert report["repaired"] == {"older_copy": 63}
            assert image_of(path) == victim.image
            assert await _in_thread(path, "--write") == {**report, "verdict": "repaired", "written": True}
            assert (await _in_thread(path))["verdict"] == "clean"
            await served(world, path, Expected())

    async def test_damage_that_stays_ends_with_3_and_waits_for_an_operator(self, world: World, tmp_path: Path) -> None:
        """R4, R5: written or not; --write records the partial state and writes no checkpoint."""
        victim, expected = many_skipped(world, 20)
        with on_disk(victim.image, tmp_path) as path:
            report = repair(path, exit_code=3)
            assert report["verdict"] == "partial"
            assert report["skipped"] == {r: c for r, c in expected.by_reason().items() if c}
            assert len(report["entries"]) == 20
            for _ in range(2):
                again = await _in_thread(path, "--write", exit_code=3)
                assert again["skipped"] == report["skipped"]
                assert again["repaired"] == report["repaired"]
                assert [c["seq"] for c in again["copies"]] == [world.seqs[c] for c in range(3)]

    def test_what_a_start_refuses_is_refused_unless_the_loss_is_accepted(self, world: World, tmp_path: Path) -> None:
        """R6: exit code 31; the device is unchanged, with --write too."""
        victim, expected = many_skipped(world, 70)
        with on_disk(victim.image, tmp_path) as path:
            for arguments in ([], ["--write"]):
                repair(path, *arguments, exit_code=TooMuchSkipped.exit_code)
                assert image_of(path) == victim.image
            report = repair(path, "--accept-loss", exit_code=3)
            assert sum(report["skipped"].values()) == 70 == len(expected.skipped)

    def test_rows_written_wrong_are_refused_with_their_own_code(self, world: World, tmp_path: Path) -> None:
        """R6: exit code 32, whatever is accepted."""
        victim = world.victim()
        for row_id in (settled_before(world, 1) + settled_before(world, 0))[:65]:
            victim.write_row_wrong(world.newest, row_id, victim.row_with(world.raws[row_id], reason=5))
        with on_disk(victim.image, tmp_path) as path:
            for arguments in ([], ["--accept-loss"], ["--write", "--accept-loss"]):
                repair(path, *arguments, exit_code=InvalidRowsFound.exit_code)
            assert image_of(path) == victim.image

    def test_d6_a_held_device_is_looked_at_but_not_written(self, world: World, tmp_path: Path) -> None:
        """D6: the dry run says that it is held; --write is refused."""
        with on_disk(world.image, tmp_path) as path, held_elsewhere(path):
            assert repair(path)["held"] is True
            repair(path, "--write", exit_code=DeviceInUse.exit_code)

    def test_the_report_for_people_says_what_to_do_next(self, world: World, tmp_path: Path) -> None:
        with on_disk(world.image, tmp_path) as path:
            result = CliRunner().invoke(build_application(["repair"]), ["repair", str(path)])
            assert result.exit_code == 0
            assert result.stdout.splitlines()[-1] == "nothing to repair"

    # -- adopt ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("position", [0, 1, 2])
    async def test_r5_each_copy_can_be_adopted_and_then_is_the_newest(
        self, world: World, tmp_path: Path, position: int
    ) -> None:
        """R5: with the journal since it, every copy is the same point in time; a dry run writes nothing."""
        seq = world.seqs[world.copies[position]]
        with on_disk(world.image, tmp_path) as path:
            report = repair(path, "--adopt", str(seq))
            assert report["recovered"] == len(world.values)
            assert image_of(path) == world.image
            written = await _in_thread(path, "--adopt", str(seq), "--write")
            assert (written["verdict"], written["adopted_seq"]) == ("adopted", seq)
            after = await _in_thread(path)
            assert after["verdict"] == "clean"
            assert max(c["seq"] for c in after["copies"]) > max(world.seqs.values())
            await served(world, path, Expected())

    async def test_r5_what_no_record_proves_is_skipped_and_accepted(self, world: World, tmp_path: Path) -> None:
        """R5: rows are proven one by one; written, their slots are free again and nothing stays partial."""
        victim = world.victim()
        rows = settled_before(world, 1)[::7]
        for row_id in rows:
            victim.flip(world.offsets[row_id] + 30)
        seq = str(world.seqs[world.copies[1]])
        expected = Expected(dict.fromkeys(rows))  # type: ignore[arg-type]
        with on_disk(victim.image, tmp_path) as path:
            report = repair(path, "--adopt", seq, exit_code=3)
            assert report["skipped"] == {"header_mismatch": len(rows)}
            assert report["verdict"] == "partial"
            await _in_thread(path, "--adopt", seq, "--write")
            assert (await _in_thread(path))["skipped"] == {}
            await served(world, path, expected)

    def test_r5_a_seq_no_copy_has_is_refused_with_those_there_are(self, world: World, tmp_path: Path) -> None:
        with on_disk(world.image, tmp_path) as path:
            result = CliRunner().invoke(build_application(["repair"]), ["repair", str(path), "--adopt", "5"])
            assert isinstance(result.exception, CommandFailed)
            assert result.exception.exit_code == 2
            for seq in world.seqs.values():
                assert str(seq) in str(result.exception)
            assert image_of(path) == world.image


async def _in_thread(path: Path, *arguments: str, exit_code: int = 0) -> dict[str, Any]:
    """The command runs a loop of its own."""
    return await asyncio.to_thread(repair, path, *arguments, exit_code=exit_code)
