"""What takes too long: clients that stall or leave an answer unread are cut off, idle connections are closed.

A sweep over all connections once a second, so that these times cost a request no timer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rawblockd.connection import Connection

SWEEP_SLACK_SECONDS = 2.0
"""Time the application has to answer a stalled client itself before its connection is cut."""


def sweep(connection: Connection, now: float) -> None:
    """End a connection whose client has stalled, or was idle, for too long. ``now`` is the loop's time."""
    limits = connection.limits
    unsent_bytes = connection.transport.get_write_buffer_size()
    if unsent_bytes == 0 or unsent_bytes != connection.unsent_bytes:
        connection.sent_at = now
    connection.unsent_bytes = unsent_bytes
    unread = now - connection.sent_at > limits.send_timeout_seconds + SWEEP_SLACK_SECONDS
    if unread or now - _silent_since(connection, now) > limits.body_timeout_seconds + SWEEP_SLACK_SECONDS:
        connection.transport.abort()
    elif connection.idle_since is None:
        if _has_nothing_to_do(connection):
            # What came behind the answer was the rest of a body that nobody read.
            connection.idle_since = now
    elif now - connection.idle_since > limits.keep_alive_seconds:
        connection.transport.close()


def _has_nothing_to_do(connection: Connection) -> bool:
    if connection.refusal is not None or connection.head_open or connection.is_busy or connection.pipeline:
        return False
    flow = connection.flow
    return not (flow.write_paused or flow.read_paused or connection.cycle.more_body)


def _silent_since(connection: Connection, now: float) -> float:
    """Since when the next move has been the client's; ``now`` while it isn't.

    A head counts from its beginning: dripping bytes does not prolong it. A body counts from its last piece. Between two
    requests a client may be idle.
    """
    if connection.idle_since is not None or connection.flow.read_paused or connection.refusal is not None:
        return now
    if connection.head_open:
        return connection.head_began_at
    return connection.heard_at if connection.cycle.more_body else now
