"""The terminal view: a head, tabs, and the lines of one panel that can be scrolled."""

from __future__ import annotations

import time
from collections import deque
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Footer, Static, Tab, Tabs

from rawblockd.command_line.daemon_client import Target
from rawblockd.top.panels import PANELS, View, head
from rawblockd.top.watching import Answer, EventWatch, Happened, StatusWatch

EVENTS_KEPT = 500
DRAWN_AGAIN_SECONDS = 0.25
"""Events may come by the thousand: the screen is drawn this often at most."""


class TopApp(App[None]):
    """``rawblockd top``. It asks in threads of its own, so that it stays usable while the daemon is away."""

    TITLE = "rawblockd top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 2; padding: 0 1; text-style: bold; }
    #head.trouble { background: $error; color: $text; }
    #head.warning { background: $warning; color: $text; }
    #lines { padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("p", "pause", "Pause"),
        Binding("left", "turn(-1)", "Tabs", key_display="←/→", priority=True),
        Binding("right", "turn(1)", "Next tab", show=False, priority=True),
        Binding("tab", "turn(1)", "Next tab", show=False, priority=True),
        Binding("shift+tab", "turn(-1)", "Tab before", show=False, priority=True),
    ]

    class Answered(Message):
        def __init__(self, answer: Answer) -> None:
            super().__init__()
            self.answer = answer

    class Told(Message):
        def __init__(self, happened: Happened) -> None:
            super().__init__()
            self.happened = happened

    def __init__(self, target: Target, interval_seconds: float) -> None:
        super().__init__()
        self._url = target.url
        self._known: Answer | None = None
        self._newest: Answer | None = None
        self._events: deque[Happened] = deque(maxlen=EVENTS_KEPT)
        self._paused = False
        self._changed = True
        self._status_watch = StatusWatch(target, interval_seconds, self._tell_answer)
        self._event_watch = EventWatch(target, interval_seconds, self._tell_event)

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Tabs(*(Tab(name, id=name.lower()) for name in PANELS))
        with VerticalScroll(id="body"):
            yield Static(id="lines", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#body").focus()
        self._status_watch.start()
        self._event_watch.start()
        self.set_interval(DRAWN_AGAIN_SECONDS, self._draw_changes)
        self._draw()

    def on_unmount(self) -> None:
        self._status_watch.stop()
        self._event_watch.stop()

    def _tell_answer(self, answer: Answer) -> None:
        """On the other thread; nothing arrives any more once the screen is gone."""
        self.post_message(self.Answered(answer))

    def _tell_event(self, happened: Happened) -> None:
        self.post_message(self.Told(happened))

    # -- what comes in ---------------------------------------------------------------------------------------------

    def on_top_app_answered(self, message: Answered) -> None:
        if self._paused:
            return
        self._newest = message.answer
        if message.answer.status is not None:
            self._known = message.answer
        self._draw()

    def on_top_app_told(self, message: Told) -> None:
        if not self._paused and message.happened.kind != "position":
            self._events.append(message.happened)
            self._changed = True

    # -- keys ------------------------------------------------------------------------------------------------------

    def action_pause(self) -> None:
        """Keep what is on the screen; what happens meanwhile is not shown later."""
        self._paused = not self._paused
        self._draw()

    def action_turn(self, step: int) -> None:
        tabs = self.query_one(Tabs)
        if step > 0:
            tabs.action_next_tab()
        else:
            tabs.action_previous_tab()

    def on_tabs_tab_activated(self) -> None:
        self.query_one("#body", VerticalScroll).scroll_home(animate=False)
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    # -- drawing ---------------------------------------------------------------------------------------------------

    def _draw_changes(self) -> None:
        if self._changed:
            self._draw()

    def _draw(self) -> None:
        self._changed = False
        if not self.query("#head"):
            return  # the screen is being taken down; an answer was still on its way
        view = View(self._known, self._newest, self._events, self._url, self._paused, time.time())
        width = max(1, self.size.width - 2)
        top = self.query_one("#head", Static)
        top.update("\n".join(head(view, width)))
        top.set_class(self._newest is not None and bool(self._newest.trouble), "trouble")
        state = (self._newest.status or {}).get("state", "ready") if self._newest is not None else "ready"
        top.set_class(state != "ready", "warning")
        active = self.query_one(Tabs).active_tab
        name = str(active.label) if active is not None else next(iter(PANELS))
        self.query_one("#lines", Static).update("\n".join(PANELS[name](view, width)))
