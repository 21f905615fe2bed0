"""What scripts add: the page renews itself in place, and says so when it can't."""

from __future__ import annotations

import json
import re

from tests.browser.chromium import Page
from tests.browser.conftest import Serve, url_of
from tests.support.daemon_process import DaemonProcess

ENTRIES_SHOWN = "document.querySelector('.figures b').textContent"


def test_it_renews_itself_and_keeps_what_the_reader_did(page: Page, shared: DaemonProcess) -> None:
    """Focus and the nodes themselves stay; no other page is loaded."""
    page.open(url_of(shared))
    before = int(page.evaluate(ENTRIES_SHOWN))
    page.evaluate("document.getElementById('checkpoint').focus(); window.before = document.querySelector('h1'); null")
    assert shared.request("PUT", "/v1/kv/demo/renewed", b"x")[0] == 201
    page.wait_for(f"{ENTRIES_SHOWN} === '{before + 1}'", "the page does not renew itself")
    assert page.evaluate("document.activeElement.id") == "checkpoint"
    assert page.evaluate("window.before === document.querySelector('h1')")
    assert "demo/renewed" in page.text(".events").replace(" ", "")


def test_what_was_unfolded_stays_unfolded(page: Page, serve: Serve) -> None:
    page.open(serve("partial"))
    page.click("#adopt summary")
    as_of = page.text(".taken time")
    page.wait_for(f"document.querySelector('.taken time').textContent !== {json.dumps(as_of)}", "it is not renewed")
    assert page.evaluate("document.getElementById('adopt').open")


def test_a_change_of_state_is_told_to_those_who_do_not_see_it(page: Page, partial: DaemonProcess) -> None:
    page.open(url_of(partial))
    live = "document.querySelector('h1').closest('[aria-live=polite][aria-atomic=true]')"
    assert page.evaluate(f"{live} !== null")
    page.evaluate(
        f"window.told = []; new MutationObserver(() => window.told.push({live}.innerText))"
        f".observe({live}, {{subtree: true, childList: true, characterData: true}}); null"
    )
    assert partial.request("POST", "/v1/recovery/acknowledge")[0] == 200
    page.wait_for("window.told.length > 0", "nothing is told")
    page.wait_for("document.title === 'Ready · rawblockd'", "the title stays")
    assert "Ready" in page.evaluate("window.told[window.told.length - 1]")
    as_of = page.text(".taken time")
    told = page.evaluate("window.told.length")
    page.wait_for(f"document.querySelector('.taken time').textContent !== {json.dumps(as_of)}", "it is not renewed")
    assert page.evaluate("window.told.length") == told, "what stays the same is not told again"


def test_charts_show_the_traffic_and_say_it(page: Page, shared: DaemonProcess) -> None:
    """Curves are for the eye alone; the values stand beside them as text."""
    page.open(url_of(shared))
    page.wait_for("document.querySelectorAll('.plot canvas').length === 3", "there are no charts")
    assert shared.request("PUT", "/v1/kv/demo/k", b"x" * 100)[0] == 201
    for _ in range(20):
        assert shared.request("GET", "/v1/kv/demo/k")[0] == 200
    page.wait_for("document.querySelector('#chart-hits .now').innerText.startsWith('100')", "the hit ratio is not said")
    assert re.search(r"\d (µs|ms|s) 99th percentile", page.text("#chart-latency"))
    assert page.evaluate("[...document.querySelectorAll('.plot')].every(e => e.ariaHidden === 'true')")
    drawn = (
        "(() => { const c = document.querySelector('#plot-requests canvas');"
        " return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v > 0); })()"
    )
    assert page.evaluate(drawn)
    page.dress(dark=True, width=700)
    page.wait_for("document.querySelectorAll('.plot canvas').length === 3", "charts do not follow the colours")


def test_it_says_when_the_daemon_is_gone(page: Page, fresh: DaemonProcess) -> None:
    page.open(url_of(fresh))
    assert fresh.stop() == 0
    page.wait_for("!document.getElementById('connection').hidden", "it shows an old state as if it were new")
    assert re.fullmatch(r"The daemon does not answer. What you see is as of [\d:]+.", page.text("#connection"))
    assert page.complaints
    assert all(re.search("ERR_CONNECTION|Failed to fetch", complaint) for complaint in page.complaints)
    page.complaints.clear()


def test_only_the_daemon_is_asked(page: Page, shared: DaemonProcess) -> None:
    page.open(url_of(shared))
    page.wait_for("document.querySelectorAll('.plot canvas').length === 3", "there are no charts")
    page.open(url_of(shared) + "/docs")
    assert page.requests
    assert [url for url in page.requests if not url.startswith(url_of(shared) + "/")] == []


def test_what_others_wrote_is_text(page: Page, shared: DaemonProcess) -> None:
    """A key that imitates markup is shown, not carried out; the policy would not let it run either."""
    key = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E%3Cscript%3Ealert(2)%3C%2Fscript%3E"
    assert shared.request("PUT", f"/v1/kv/demo/{key}", b"x")[0] == 201
    page.open(url_of(shared))
    assert "%3Cimg" in page.text(".events")
    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))")
    assert "Content Security Policy" in page.complaint()
    assert page.evaluate("window.ran") is None
