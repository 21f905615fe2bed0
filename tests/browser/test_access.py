"""The page of a daemon with tokens: a browser asks for one, and the roles decide what it may do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from api.access.roles import Role
from tests.access.servers import Holder, write_tokens
from tests.browser.chromium import Page
from tests.browser.conftest import daemon_on
from tests.support.daemon_process import DaemonProcess

OPERATOR = Holder("operator", Role.OPERATOR)
READER = Holder("reader", Role.READER)
SUBMIT = "document.querySelector('form').requestSubmit(); null"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("guarded")
    tokens = write_tokens(folder / "tokens.toml", OPERATOR, READER)
    arguments = ("--create", "--size", "64MiB", "--token-file", str(tokens))
    with daemon_on(folder / "guarded.device", *arguments) as daemon:
        yield daemon


def address(daemon: DaemonProcess, holder: Holder, path: str = "/") -> str:
    return f"http://whoever:{holder.token}@127.0.0.1:{daemon.port}{path}"


def test_without_a_token_nothing_is_shown(page: Page, guarded: DaemonProcess) -> None:
    page.open(f"http://127.0.0.1:{guarded.port}/")
    assert "401" in page.complaint()
    assert page.evaluate("document.querySelector('h1')") is None
    page.complaints.clear()  # the icon is asked for too


def test_an_operator_looks_and_acts(page: Page, guarded: DaemonProcess) -> None:
    """The page renews itself and draws its charts with the password that the browser was given."""
    page.open(address(guarded, OPERATOR))
    assert page.text("h1") == "State: Ready"
    page.wait_for("document.querySelectorAll('.plot canvas').length === 3", "there are no charts")
    as_of = page.text(".taken time")
    page.wait_for(f"document.querySelector('.taken time').textContent !== '{as_of}'", "it is not renewed")
    page.load(lambda: page.click("#checkpoint"))
    page.load(lambda: page.click("button[type=submit]"))
    assert "Checkpoint written on request" in page.text("#result")


def test_a_reader_looks_and_may_not_act(page: Page, guarded: DaemonProcess) -> None:
    page.open(address(guarded, READER))
    assert page.text("h1") == "State: Ready"
    page.load(lambda: page.click("#checkpoint"))
    assert "403" in page.complaint()
    assert "forbidden" in page.text("body")
    page.complaints.clear()


def test_another_site_can_not_make_the_browser_act(page: Page, guarded: DaemonProcess) -> None:
    """The browser knows the password, so it is the daemon that refuses."""
    page.open(address(guarded, OPERATOR))
    before = guarded.log_text().count("checkpoint on request")
    page.open("data:text/html,<title>elsewhere</title>")
    page.load(
        lambda: page.evaluate(
            "document.body.innerHTML = '<form method=post action=\"" + f"http://127.0.0.1:{guarded.port}"
            "/operator/checkpoint\"></form>';" + SUBMIT
        )
    )
    assert "403" in page.complaint()
    assert guarded.log_text().count("checkpoint on request") == before
    page.complaints.clear()
