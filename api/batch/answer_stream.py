"""An answer that is sent as it comes into being, to a client that may take its time."""

from __future__ import annotations

from api.exchange import Body
from api.limits import BATCH_SEND_BYTES, PROMPT_SEND_SECONDS
from api.value_request import ValueRequest


class AnswerStream:
    """Collects bytes in ``pending``, and behind them pieces that are sent from where they lie (``add``); whoever writes
    there sends once ``is_full``.

    ``send_promptly`` comes back after a moment, taken or not, so that a slow client's wait can be spent without the
    buffers of what was read ahead for it. All methods raise ClientGone once the client has left or was cut off.
    """

    def __init__(self, request: ValueRequest, lines: bytes) -> None:
        self._exchange = request.exchange
        self._lines = lines
        self.pending = bytearray()
        self._pieces: list[Body] = []
        self._pieces_bytes = 0

    @property
    def size_bytes(self) -> int:
        """What was collected and is not sent yet."""
        return len(self.pending) + self._pieces_bytes

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= BATCH_SEND_BYTES

    def add(self, pieces: list[Body]) -> None:
        """Send these behind what is pending. They stay as they are until ``send_promptly``, ``keep`` or ``end`` was
        called; then nothing refers to them any more."""
        if self.pending:
            self._pieces.append(self.pending)
            self._pieces_bytes += len(self.pending)
            self.pending = bytearray()
        self._pieces += pieces
        self._pieces_bytes += sum(map(len, pieces))

    def keep(self) -> None:
        """Copy the pieces that were added: nothing refers to them any more, and they are sent with what follows."""
        self.pending = bytearray(b"".join((*self._pieces, self.pending)))
        self._pieces, self._pieces_bytes = [], 0

    async def send_promptly(self) -> bool:
        """Send what was collected. False if the client hasn't taken it yet: then ``sent`` must be awaited."""
        if not self._exchange.answered:
            self._exchange.begin(200, self._lines)
        self._push()
        return await self._exchange.drained(PROMPT_SEND_SECONDS)

    async def sent(self) -> None:
        """Wait until the client has taken what ``send_promptly`` began to send."""
        await self._exchange.drained()

    def end(self) -> None:
        """Send the rest and end the answer."""
        if not self._exchange.answered:
            self._exchange.begin(200, self._lines, length=self.size_bytes)
        self._push()
        self._exchange.end()

    def _push(self) -> None:
        pieces, self._pieces, self._pieces_bytes = self._pieces, [], 0
        self._exchange.push(*pieces, self.pending)
        self.pending.clear()
