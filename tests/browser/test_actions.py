"""What an operator does on the page, on real daemons whose device is damaged: it happens once it was confirmed (R5)."""

from __future__ import annotations

from pathlib import Path

from tests.browser.chromium import Page
from tests.browser.conftest import SKIPPED, Serve, daemon_on, url_of
from tests.browser.devices import damaged_device
from tests.support.daemon_process import DaemonProcess

FOCUSED = "document.activeElement.id || document.activeElement.textContent"


def tab_to(page: Page, wanted: str) -> None:
    """Press Tab until something has the focus, by its id or its text."""
    for _ in range(60):
        page.press("Tab")
        if page.evaluate(FOCUSED) == wanted:
            return
    raise AssertionError(f"Tab does not reach {wanted}")


def test_r5_acknowledge_ends_partial_recovery(page: Page, partial: DaemonProcess) -> None:
    page.open(url_of(partial))
    page.load(lambda: page.click("#acknowledge"))
    assert f"{SKIPPED} skipped entries are given up for good." in page.text("main")
    assert partial.status()["partial_recovery"], "asking is not doing"
    page.load(lambda: page.click("button[type=submit]"))
    assert page.text("h1") == "State: Ready"
    assert f"skipped entries given up {SKIPPED}" in page.text("#result")
    assert page.evaluate("document.activeElement.id") == "result"
    status = partial.status()
    assert (status["state"], status["partial_recovery"], status["skipped_entries"]) == ("ready", False, 0)
    assert status["recovery"]["acknowledged_at"] is not None
    assert "Loss acknowledged" in page.text(".log")
    assert partial.wait_logged("loss acknowledged")["skipped"] == SKIPPED


def test_r5_retry_brings_back_what_can_be_read_again(page: Page, tmp_path: Path) -> None:
    device = tmp_path / "mended.device"
    damaged = damaged_device(device, entries=20, skipped=3)
    with daemon_on(device) as daemon:
        damaged.mend_records()
        page.open(url_of(daemon))
        page.load(lambda: page.click("#retry"))
        assert daemon.status()["skipped_entries"] == 3
        page.load(lambda: page.click("button[type=submit]"))
        assert "restored 3, superseded 0, still skipped 0" in page.text("#result")
        assert page.text("h1") == "State: Ready"
        status = daemon.status()
        assert (status["state"], status["capacity"]["slots"]["live"]) == ("ready", 20)
        assert daemon.wait_logged("repair retried")["restored"] == 3


def test_by_keyboard_alone(page: Page, partial: DaemonProcess) -> None:
    """The skip link comes first, then the pages, then the ways out."""
    page.open(url_of(partial))
    page.press("Tab")
    assert page.evaluate(FOCUSED) == "Skip to the content"
    page.press("Enter")
    assert page.evaluate(FOCUSED) == "main"
    tab_to(page, "acknowledge")
    page.load(lambda: page.press("Enter"))
    tab_to(page, "Acknowledge the loss")
    page.load(lambda: page.press("Enter"))
    assert page.text("h1") == "State: Ready"
    assert not partial.status()["partial_recovery"]


def test_without_scripts(page: Page, partial: DaemonProcess) -> None:
    page.without_scripts()
    page.open(url_of(partial))
    page.load(lambda: page.click("#acknowledge"))
    page.load(lambda: page.click("button[type=submit]"))
    assert page.text("h1") == "State: Ready"
    assert "Loss acknowledged" in page.text("#result")
    page.load(lambda: page.click("#checkpoint"))
    page.load(lambda: page.click("button[type=submit]"))
    assert "Checkpoint written on request" in page.text("#result")


def test_nothing_is_acknowledged_that_was_not_shown(page: Page, partial: DaemonProcess) -> None:
    """A page that was left open: meanwhile somebody else acknowledged."""
    page.open(url_of(partial) + "/operator/acknowledge")
    assert partial.request("POST", "/v1/recovery/acknowledge")[0] == 200
    page.load(lambda: page.click("button[type=submit]"))
    assert "The situation has changed since you were asked." in page.text("main")
    assert "There is nothing to acknowledge" in page.text("main")
    assert page.evaluate("document.querySelector('form')") is None


def test_cancelling_does_nothing(page: Page, serve: Serve) -> None:
    page.open(serve("partial") + "/operator/acknowledge")
    page.load(lambda: page.click("form a"))
    assert page.text("h1") == "State: Degraded"
    assert f"{SKIPPED} entries skipped." in page.text("#state")


def test_what_the_daemon_refuses_is_said(page: Page, shared: DaemonProcess) -> None:
    """A form that somebody else was quicker with: there is nothing to retry any more."""
    page.open(url_of(shared) + "/operator/checkpoint")
    page.evaluate("document.querySelector('form').action = '/operator/retry'; null")
    page.load(lambda: page.click("button[type=submit]"))
    assert "Retry refused: There is no partial recovery" in page.text("#result")
    assert page.evaluate("document.querySelector('#result').className") == "notice bad"
    assert page.text("h1") == "State: Ready"
