"""The page in each state, as a person meets it: words, colours, small screens, no script, no sight."""

from __future__ import annotations

import pytest

from storage.status import Reason
from tests.browser.accessibility import faults
from tests.browser.chromium import Page
from tests.browser.conftest import ENTRIES, SKIPPED, STANDING, Serve

OUTLINE = "[...document.querySelectorAll('h1, h2, h3, caption, th')].map(e => e.textContent)"
COLOURS = ("color-contrast", "link-in-text-block")
"""The rules that another colour scheme can break."""
REAL = ["ready", "degraded", "partial"]
STATES = [*REAL, *STANDING]
PATHS = ["/skipped", "/operator/acknowledge", "/operator/retry", "/operator/checkpoint"]


@pytest.mark.parametrize(
    ("state", "word", "says"),
    [
        ("ready", "Ready", ["Nothing needs you.", "demo", "2.9 KiB", "passed"]),
        ("degraded", "Degraded", ["Corruption found", "1 slot quarantined.", "What to do:", "Retry…"]),
        ("partial", "Degraded", ["Partial recovery", f"{SKIPPED} entries skipped.", "What to do:"]),
        ("starting", "Starting", ["opening the device"]),
        ("recovering", "Recovering", ["41 %", "reading the slot table", "/dev/nvme1n1"]),
        ("read_only", "Read-only", ["Journal unavailable", "Device errors", "self test: write failed (EIO)."]),
        ("draining", "Stopping", ["The last requests are being finished."]),
        ("failed", "Failed", ["Its log says why."]),
    ],
)  # fmt: skip
def test_the_state_is_said_in_words(page: Page, serve: Serve, state: str, word: str, says: list[str]) -> None:
    page.open(serve(state))
    assert page.text("h1") == f"State: {word}"
    assert page.evaluate("document.title") == f"{word} · rawblockd"
    body = page.text("main")
    assert [text for text in says if text not in body] == []


def test_every_reason_has_its_words(page: Page, serve: Serve) -> None:
    page.open(serve("every_reason"))
    assert page.evaluate("document.querySelectorAll('.reasons-list li').length") == len(Reason)
    assert page.evaluate("document.querySelectorAll('.reasons-list .todo').length") == len(Reason)


def test_usage_is_shown_against_quotas_and_holds_with_their_holders(page: Page, serve: Serve) -> None:
    page.open(serve("crowded"))
    section = page.text("section[aria-labelledby=namespaces-title]")
    assert "The largest 12 of 31" in section
    assert "hard 40 of 50 80 % 80 MiB of a hard quota of 100 MiB 70 MiB" in section
    assert "over 40 150 % 90 MiB of a soft quota of 60 MiB" in section
    assert "the largest 8 of 11" in section
    assert "worker-11 lease in hard 11 44 KiB 1 min 30 s" in section


@pytest.mark.parametrize("state", STATES)
def test_axe_finds_no_fault(page: Page, serve: Serve, state: str) -> None:
    page.open(serve(state))
    assert faults(page) == []
    page.dress(dark=True)
    assert faults(page, *COLOURS) == []


@pytest.mark.parametrize("path", PATHS)
def test_axe_finds_no_fault_in_the_other_pages(page: Page, serve: Serve, path: str) -> None:
    page.open(serve("partial") + path)
    assert faults(page) == []
    page.dress(dark=True)
    assert faults(page, *COLOURS) == []


@pytest.mark.parametrize("state", ["partial", "every_reason"])
def test_axe_finds_no_fault_on_a_small_screen(page: Page, serve: Serve, state: str) -> None:
    page.dress(width=360, height=640, reduced_motion=True)
    page.open(serve(state))
    assert faults(page) == []


@pytest.mark.parametrize("path", ["/", *PATHS, "/docs"])
def test_nothing_is_wider_than_the_screen(page: Page, serve: Serve, path: str) -> None:
    page.open(serve("partial") + path)
    plots = page.evaluate("document.querySelectorAll('.plot').length")
    page.wait_for(f"document.querySelectorAll('.plot canvas').length === {plots}", "there are no charts")
    for width in (320, 360, 768):
        page.dress(width=width, height=640)
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_chart_not_yet_drawn_anew_does_not_hold_the_page_wide(page: Page, serve: Serve) -> None:
    page.open(serve("ready"))
    page.wait_for("document.querySelectorAll('.plot canvas').length === 3", "there are no charts")
    page.dress(width=320, height=640)
    page.evaluate("document.querySelectorAll('.plot .uplot').forEach(drawn => { drawn.style.width = '1000px' })")
    assert page.evaluate("document.documentElement.scrollWidth") == 320


def test_axe_finds_no_fault_in_the_reference(page: Page, serve: Serve) -> None:
    """It is long: one look, in the colours with less contrast."""
    page.dress(dark=True)
    page.open(serve("starting") + "/docs")
    assert faults(page) == []


@pytest.mark.parametrize("state", [*REAL, "recovering"])
def test_without_scripts_all_of_it_is_there(page: Page, serve: Serve, state: str) -> None:
    """What scripts add is charts that answer to the pointer: the curves themselves are in the page."""
    page.open(serve(state))
    with_scripts = page.evaluate(OUTLINE)
    page.without_scripts()
    page.open(serve(state))
    assert page.evaluate(OUTLINE) == with_scripts
    assert page.evaluate("document.querySelectorAll('canvas').length") == 0
    assert page.evaluate("document.querySelectorAll('.plot svg').length") == (0 if state == "recovering" else 3)
    assert page.evaluate("document.getElementById('reload').getAttribute('href')") == "/"


def test_the_skipped_entries_are_listed_in_pages(page: Page, serve: Serve) -> None:
    page.open(serve("partial"))
    assert page.evaluate("document.querySelectorAll('.skipped tbody tr').length") == 5
    assert page.text(".skipped caption") == f"The first 5 of {SKIPPED}"
    assert f"{ENTRIES - SKIPPED} recovered" in page.text("#partial")
    page.load(lambda: page.click("#partial a[href='/skipped']"))
    first = page.text(".skipped tbody tr:first-child")
    assert "checksum" in first
    assert "slab 0, slot 0" in first
    assert page.evaluate("document.querySelectorAll('.skipped tbody tr').length") == 50
    page.load(lambda: page.click("a[rel=next]"))
    assert page.evaluate("document.querySelectorAll('.skipped tbody tr').length") == SKIPPED - 50
    assert page.evaluate("document.querySelector('a[rel=next]')") is None
    page.load(lambda: page.click("a[rel=prev]"))
    assert page.text(".skipped tbody tr:first-child") == first


def test_the_command_for_an_older_checkpoint_names_the_device(page: Page, serve: Serve) -> None:
    page.open(serve("partial"))
    command = page.evaluate("document.querySelector('#adopt pre').textContent")
    assert command.startswith("rawblockd repair /")
    assert " --adopt " in command
