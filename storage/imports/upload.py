"""A part on its way in: keys with their rows, checked as they come and kept in a spool."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from storage.errors import PartsInvalid
from storage.format.geometry import Geometry
from storage.identity import Identity
from storage.imports.errors import ImportBusy, ImportRefused, ImportTooLarge
from storage.imports.key_lists import repeated
from storage.imports.session import EXAMPLES, ImportSession, Received
from storage.imports.sessions import Sessions
from storage.imports.spool import Spool
from storage.keys import check_key
from storage.limits import IMPORT_KEY_BYTES_MAX, IMPORT_KEYS_MAX, TRANSFER_MAX_BYTES
from storage.write_path import WritePath

SPOOL_SHARE = 256
"""A slot of a spool is at most this part of the device."""


class Upload:
    """A part on its way in. Exactly one of ``end`` and ``abort`` ends it."""

    def __init__(self, sessions: Sessions, identity: Identity, session: ImportSession, received: Received) -> None:
        self._sessions = sessions
        self._identity = identity
        self._session = session
        self._received = received

    async def add(self, keys: Sequence[bytes], rows: bytes | memoryview) -> None:
        """Append keys with their rows, as many bytes as the schema says. Raises PartsInvalid, KeyInvalid,
        ImportTooLarge, ImportNotFound, and what reserving a slot raises."""
        received, session = self._received, self._session
        self._sessions.use(session)
        row_bytes = received.spec.part.size_bytes
        if len(rows) != row_bytes * len(keys):
            why = f"{len(keys)} keys with {len(rows)} bytes of rows of {row_bytes} bytes"
            raise PartsInvalid(why, part=received.spec.name)
        _check_room(session, keys)
        for key in keys:
            check_key(key)
            received.digests += self._identity.digest(session.digest_id, key)
            received.key_bytes += len(key)
        received.keys += keys
        await received.spool.append(memoryview(rows))

    async def end(self) -> int:
        """All of the part is here; how many keys. Raises ImportRefused for keys that came twice, ImportNotFound,
        WriteFailed."""
        received = self._received
        await received.spool.flush()
        twice = await asyncio.to_thread(repeated, received.listed())
        self._sessions.use(self._session)
        if len(twice):
            examples = [received.keys[position] for position in twice[:EXAMPLES].tolist()]
            self.abort()
            raise ImportRefused(
                f"part {received.spec.name!r} has {len(twice)} keys twice, such as {examples}",
                part=received.spec.name,
                repeated=len(twice),
            )
        received.complete = True
        self._session.receiving = ""
        return len(received.keys)

    def abort(self) -> None:
        """Forget what came of the part. Does nothing after ``end``."""
        received, session = self._received, self._session
        if received.complete:
            return
        received.spool.close()
        if session.parts.get(received.spec.name) is received:
            del session.parts[received.spec.name]
            session.receiving = ""


def receive_part(session: ImportSession, name: str, geometry: Geometry, write_path: WritePath) -> Received:
    """The session is about to receive a part. Raises PartsInvalid, ImportBusy, ValueTooLarge."""
    spec = next((spec for spec in session.specs if spec.name == name), None)
    if spec is None:
        raise PartsInvalid(f"part {name[:64]!r} is not in the schema", part=name[:64])
    session.check_idle()
    if name in session.parts:
        raise ImportBusy(f"part {name!r} is here already")
    area_bytes = min(TRANSFER_MAX_BYTES, geometry.slabs * geometry.slot_area_bytes // SPOOL_SHARE)
    slot_class = geometry.class_for(max(spec.part.size_bytes, area_bytes))
    if slot_class < 0:
        slot_class = len(geometry.class_bytes) - 1
    received = Received(spec, Spool(write_path, slot_class, spec.part.size_bytes))
    session.parts[name] = received
    session.receiving = name
    return received


def _check_room(session: ImportSession, keys: Sequence[bytes]) -> None:
    """Raises ImportTooLarge."""
    parts = session.parts.values()
    if sum(len(received.keys) for received in parts) + len(keys) > IMPORT_KEYS_MAX:
        raise ImportTooLarge(f"the keys of all parts together are up to {IMPORT_KEYS_MAX}")
    if sum(received.key_bytes for received in parts) + sum(map(len, keys)) > IMPORT_KEY_BYTES_MAX:
        raise ImportTooLarge(f"the keys of all parts together are up to {IMPORT_KEY_BYTES_MAX} bytes")
