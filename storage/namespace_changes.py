"""Making, setting and wiping namespaces, each by one durable record, and freeing what a wipe left behind.

A wipe is acknowledged when its record is durable: from then on no row of the namespace's id is anybody's entry, and the
name can be used again, under another id. The rows themselves are freed behind it, some at a time.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from storage.commit import Commit
from storage.errors import (
    Busy,
    JournalUnavailable,
    NamespaceNotFound,
    NamespacesFull,
    NamespaceWiped,
    QuotaExceeded,
    SchemaConflict,
)
from storage.format.catalogue import encode_record
from storage.format.row import FreeReason, Rows, SlotState
from storage.index import Index
from storage.journal import Unit
from storage.limits import NAMESPACES_WIPED_MAX, SCHEMAS_MAX_BYTES
from storage.namespace_settings import DEFAULT_SETTINGS, NamespaceSettings, check_settings
from storage.namespaces import Namespace, NamespaceView, check_name, namespace_record
from storage.table_walk import PAGES_AT_ONCE, page_runs, row_ids_where
from storage.turns import Turns
from storage.waiting import wait_all

FREED_AT_ONCE = 128
"""Rows of wiped namespaces freed between two turns of the loop: some 3 ms."""
LOOK_AGAIN_SECONDS = 0.05
"""How soon rows are looked at again that could not be freed because something of their key was queued."""


def _check_schema_change(before: NamespaceSettings, after: NamespaceSettings) -> None:
    """Another schema takes the next version, so that nobody replaces one that he never saw. Raises SchemaConflict."""
    due = before.schema_version + (before.parts != after.parts or before.on_missing is not after.on_missing)
    if after.schema_version != due:
        why = f"schema_version is {before.schema_version}; with these parts it must be {due}"
        raise SchemaConflict(why, schema_version=before.schema_version)


def check_gathered(gathered: Namespace, replaced: Namespace) -> None:
    """Whether what an import gathered is of the schema that the namespace has now. Raises SchemaConflict."""
    if gathered.settings.parts != replaced.settings.parts:
        why = "the schema is another one than when the import began"
        raise SchemaConflict(why, schema_version=replaced.settings.schema_version)


class NamespaceChanges:
    def __init__(self, index: Index, commit: Commit) -> None:
        self._index = index
        self._commit = commit
        self._creating: dict[str, asyncio.Future[int]] = {}
        self._ids_under_way = 0
        """Ids drawn whose record is not durable yet."""
        self._freeing: asyncio.Task[None] | None = None
        self._dead_from: dict[int, int] = {}
        """Page at which the last search for rows to free ended, by slot class."""

    # -- making ---------------------------------------------------------------------------------------------------

    async def find_or_create(self, name: str) -> int:
        """The id of a namespace, created durably if it is new.

        Raises NamespaceInvalid, NamespacesFull, JournalUnavailable.
        """
        while True:
            known = self._index.namespaces.by_name.get(name)
            if known is None:
                return await self._create(name, DEFAULT_SETTINGS)
            wiping = self._commit.wiping(known.namespace_id)
            if wiping is None:
                return known.namespace_id
            assert wiping.done is not None
            await asyncio.wait([wiping.done])

    async def _create(self, name: str, settings: NamespaceSettings) -> int:
        """Make a namespace; who asks at the same time shares it, with the settings of who asked first."""
        check_name(name)
        creating = self._creating.get(name)
        if creating is None:
            creating = asyncio.ensure_future(self._make(name, settings))
            self._creating[name] = creating
            creating.add_done_callback(lambda future: self._created(name, future))
        return await asyncio.shield(creating)

    async def _make(self, name: str, settings: NamespaceSettings) -> int:
        self._commit.journal.check_available()
        namespace_id = self._index.namespaces.draw_id(self._ids_under_way)
        self._ids_under_way += 1
        try:
            unit = self._commit.name_namespace(namespace_id, name, settings)
            assert unit.done is not None
            await unit.done
        finally:
            self._ids_under_way -= 1
        return namespace_id

    def _created(self, name: str, future: asyncio.Future[int]) -> None:
        del self._creating[name]
        if not future.cancelled():
            future.exception()  # whoever waited has it; nobody waiting is no error

    async def begin_import(self, name: str, settings: NamespaceSettings) -> Namespace:
        """A namespace without a name, durably; it is wiped by the next start unless it is bound before.

        Raises NamespacesFull, JournalUnavailable, Busy.
        """
        self._check_wiped()
        # The quota is the name's: it decides when the name is given.
        unbounded = replace(settings, quota_bytes=None, quota_entries=None, importing=True)
        namespace_id = await self._make(name, unbounded)
        return self._index.namespaces.by_id[namespace_id]

    async def bind(self, namespace: Namespace) -> None:
        """Give what an import gathered its name, in place of what had it, by one durable record.

        All of it is flushed before, so that after a power loss, too, the record is there with every entry or not at
        all. Raises QuotaExceeded, SchemaConflict, NamespaceWiped, JournalUnavailable, and FlushFailed of the flush
        before: then nothing has changed; the namespace still is ``importing``. Raises FlushFailed of the flush behind
        it, too.
        """
        await self._commit.journal.flush()
        replaced = self._index.namespaces.by_name.get(namespace.name)
        if replaced is None or self._commit.wiping(replaced.namespace_id) is not None:
            raise NamespaceWiped(namespace.name)
        check_gathered(namespace, replaced)
        bound = replace(replaced.settings, importing=False)
        candidate = Namespace(namespace.namespace_id, namespace.name, bound)
        if any(candidate.over(namespace.joined_entries, namespace.joined_bytes)):
            raise QuotaExceeded(f"{namespace.entries} entries in {namespace.used_bytes} bytes of slots")
        await wait_all([self._commit.bind_import(namespace, bound, replaced)])
        self.free_soon()
        await self._commit.journal.flush()

    async def drop_import(self, namespace: Namespace) -> None:
        """Wipe what an import gathered, unless it was committed. Raises JournalUnavailable."""
        namespace_id = namespace.namespace_id
        if namespace_id in self._index.namespaces.by_id and namespace.settings.importing:
            await wait_all([self._commit.wiping(namespace_id) or self._commit.wipe(namespace_id)])
            self.free_soon()

    # -- settings -------------------------------------------------------------------------------------------------

    async def set(self, name: str, settings: NamespaceSettings) -> tuple[NamespaceView, bool]:
        """Give a namespace these settings, making it if it is new; its view, and whether it is new.

        If a quota was lowered, entries above it are gone when this returns, but for those that are held. Raises
        ParameterInvalid, NamespaceInvalid, NamespacesFull, JournalUnavailable.
        """
        check_settings(settings)
        check_name(name)
        self._check_catalogue_room(name, settings)
        created = name not in self._index.namespaces.by_name and name not in self._creating
        while True:
            namespace = await self._named(name, settings)
            if namespace.settings == settings:
                break
            _check_schema_change(namespace.settings, settings)
            unit = self._commit.name_namespace(namespace.namespace_id, name, settings)
            await wait_all([unit])
            self._commit.quotas.forget(namespace.namespace_id)
        await self._trim(namespace)
        if namespace.queued_entries or namespace.queued_bytes:
            await self._commit.journal.join(Unit(privileged=True))  # what others queued is durable then, too
        return namespace.view(), created

    async def _trim(self, namespace: Namespace) -> None:
        """Let entries above a quota that was lowered go, some at a time."""
        passed: int | None = 0
        while passed is not None and any(namespace.over()):
            await self._commit.quotas.prepare(namespace)
            units, passed = self._commit.trim(namespace, passed)
            await wait_all(units)
            await asyncio.sleep(0)

    def _check_catalogue_room(self, name: str, settings: NamespaceSettings) -> None:
        """Schemas take more of the catalogue than the share of one namespace: all together must stay within theirs.

        Raises NamespacesFull.
        """
        if not settings.parts:
            return
        others = [n for n in self._index.namespaces.by_id.values() if n.settings.parts and n.name != name]
        candidate = Namespace(1, name, settings)
        taken = sum(len(encode_record(namespace_record(namespace))) for namespace in (*others, candidate))
        if taken > SCHEMAS_MAX_BYTES:
            raise NamespacesFull(f"schemas take up to {SCHEMAS_MAX_BYTES} bytes of the catalogue")

    async def _named(self, name: str, settings: NamespaceSettings) -> Namespace:
        """The namespace of a name, which nobody wipes at this moment."""
        while True:
            known = self._index.namespaces.by_name.get(name)
            if known is None:
                await self._create(name, settings)
            elif (wiping := self._commit.wiping(known.namespace_id)) is None:
                return known
            else:
                assert wiping.done is not None
                await asyncio.wait([wiping.done])

    # -- wiping ---------------------------------------------------------------------------------------------------

    async def wipe(self, name: str) -> NamespaceView:
        """End a namespace with all its entries, durably; what it was. Raises NamespaceInvalid, NamespaceNotFound,
        JournalUnavailable, Busy."""
        namespace = self._index.namespaces.by_name.get(name)
        if namespace is None:
            check_name(name)
            raise NamespaceNotFound(name)
        self._check_wiped()
        view = namespace.view()
        unit = self._commit.wiping(namespace.namespace_id) or self._commit.wipe(namespace.namespace_id)
        await wait_all([unit])
        self.free_soon()
        return view

    def _check_wiped(self) -> None:
        """Raises Busy."""
        if len(self._index.namespaces.wiped) >= NAMESPACES_WIPED_MAX:
            raise Busy(f"{NAMESPACES_WIPED_MAX} wiped namespaces are remembered until the next checkpoint")

    def free_soon(self) -> None:
        """Free the rows of wiped namespaces in the background, if there are any."""
        if self._freeing is None and self._index.namespaces.dying:
            self._freeing = asyncio.get_running_loop().create_task(self._free_dying())
            self._freeing.add_done_callback(self._freed)

    def _freed(self, task: asyncio.Task[None]) -> None:
        self._freeing = None
        if not task.cancelled():
            task.result()

    async def _free_dying(self) -> None:
        table, namespaces = self._index.table, self._index.namespaces
        turns = Turns(PAGES_AT_ONCE)
        while namespaces.dying and not self._commit.journal.unavailable:
            for pages in page_runs(table):
                await self._free(row_ids_where(table, pages, self._are_dead).tolist())
                await turns.after(pages[1] - pages[0])
                if not namespaces.dying:
                    return
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def rows_to_free(self, slot_class: int, wanted: int) -> list[int]:
        """Up to ``wanted`` rows of a slot class whose namespace was wiped. The search goes on where the last one ended,
        and begins anew when nothing is left behind that."""
        if not self._index.namespaces.dying_slots(slot_class):
            return []
        cursor = self._dead_from.pop(slot_class, 0)
        found = await self._search_dead(slot_class, wanted, cursor)
        return found if found or not cursor else await self._search_dead(slot_class, wanted, 0)

    async def _search_dead(self, slot_class: int, wanted: int, first_page: int) -> list[int]:
        found: list[int] = []
        turns = Turns(PAGES_AT_ONCE)
        for pages in page_runs(self._index.table, slot_class):
            if pages[0] >= first_page:
                found += row_ids_where(self._index.table, pages, self._are_dead)[: wanted - len(found)].tolist()
                if len(found) >= wanted:
                    self._dead_from[slot_class] = pages[0]
                    break
                await turns.after(pages[1] - pages[0])
        return found

    def _are_dead(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Live rows of namespaces that were wiped."""
        dead = np.isin(rows["namespace_id"], list(self._index.namespaces.dying))
        dead &= rows["state"] == SlotState.LIVE
        return dead

    async def _free(self, row_ids: list[int]) -> None:
        for begin in range(0, len(row_ids), FREED_AT_ONCE):
            units: list[Unit] = []
            for row_id in row_ids[begin : begin + FREED_AT_ONCE]:
                if self._commit.journal.unavailable:
                    return
                row = self._index.table.row(row_id)
                if row.namespace_id not in self._index.namespaces.dying:
                    continue  # freed by others since it was found, and perhaps somebody else's by now
                try:
                    unit = self._commit.free(row_id, row.seq, FreeReason.WIPED)
                except JournalUnavailable:
                    break  # clients' rows fill its queue
                if unit is not None:
                    units.append(unit)
            dones = [unit.done for unit in units]
            if dones:
                await asyncio.wait(dones)

    async def close(self) -> None:
        """End what runs in the background; a later start goes on with it."""
        if self._freeing is not None:
            self._freeing.cancel()
            await asyncio.wait([self._freeing])
