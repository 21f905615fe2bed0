"""Commits of imports as tasks of their own: a client that leaves ends none, and may ask later what came of it."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TypeVar

from api.engine_face import EngineFace
from api.limits import IMPORT_OUTCOMES_MAX
from api.restore_models import ImportDocument, ImportOutcome, ImportProblem
from storage.errors import FlushFailed, RawblockdError
from storage.imports.errors import ImportBusy, ImportNotFound
from storage.imports.session import ImportPolicy, ImportState, ImportView

Found = TypeVar("Found")

log = logging.getLogger("rawblockd.http")


@dataclass(frozen=True, slots=True)
class _Ended:
    """``error`` if it is published and yet something failed: it may not survive power loss."""

    document: ImportDocument
    error: RawblockdError | None = None


@dataclass(frozen=True, slots=True)
class _Running:
    view: ImportView
    """As it was when the commit began."""
    policy: ImportPolicy
    task: asyncio.Task[ImportOutcome]


class ImportCommits:
    """The engine forgets an import when it is committed; what came of it is remembered here, of the last ones."""

    def __init__(self, engine: EngineFace) -> None:
        self._engine = engine
        self._running: dict[str, _Running] = {}
        self._ended: OrderedDict[str, _Ended] = OrderedDict()
        self._problems: OrderedDict[str, ImportProblem] = OrderedDict()

    async def commit(self, import_id: str, policy: ImportPolicy, wait_seconds: float) -> ImportOutcome | None:
        """Commit, or join a commit under way; None if it takes longer than ``wait_seconds``.

        Raises ImportNotFound, ImportBusy, and what the engine refuses a commit with.
        """
        ended = self._ended.get(import_id)
        if ended is not None:
            if ended.error is not None:
                raise ended.error
            return ended.document.outcome
        running = self._running.get(import_id)
        if running is None:
            running = self._begin(self._engine.import_view(import_id), policy)
        elif running.policy is not policy:
            raise ImportBusy(f"it is being committed with policy {running.policy}")
        done, _ = await asyncio.wait({running.task}, timeout=wait_seconds)
        return running.task.result() if done else None

    def document(self, import_id: str) -> ImportDocument:
        """An import, also one that was committed lately. Raises ImportNotFound."""
        ended = self._ended.get(import_id)
        if ended is not None:
            return ended.document
        running = self._running.get(import_id)
        try:
            view = self._engine.import_view(import_id)
        except ImportNotFound:
            if running is None:
                raise
            # The engine is done with it, and its outcome on the way here.
            view = replace(running.view, state=ImportState.COMMITTING, committed_ratio=1.0)
        return ImportDocument.of(view, problem=self._problems.get(import_id))

    def documents(self) -> list[ImportDocument]:
        """All that are not committed yet."""
        return [ImportDocument.of(view, problem=self._problems.get(view.import_id)) for view in self._engine.imports()]

    def _begin(self, view: ImportView, policy: ImportPolicy) -> _Running:
        self._problems.pop(view.import_id, None)
        task = asyncio.get_running_loop().create_task(self._run(view, policy))
        task.add_done_callback(_note_mistake)
        running = self._running[view.import_id] = _Running(view, policy, task)
        return running

    async def _run(self, view: ImportView, policy: ImportPolicy) -> ImportOutcome:
        try:
            result = await self._engine.commit_import(view.import_id, policy)
        except RawblockdError as error:
            self._note_failure(view, error)
            raise
        finally:
            del self._running[view.import_id]
        outcome = ImportOutcome.of(policy, result)
        _remember(self._ended, view.import_id, _Ended(ImportDocument.of(_as_ended(view), outcome)))
        return outcome

    def _note_failure(self, view: ImportView, error: RawblockdError) -> None:
        problem = ImportProblem.of(error)
        if isinstance(error, FlushFailed):
            document = ImportDocument.of(_as_ended(view), problem=problem)
            _remember(self._ended, view.import_id, _Ended(document, error))
        elif not isinstance(error, ImportNotFound):
            _remember(self._problems, view.import_id, problem)


def _as_ended(view: ImportView) -> ImportView:
    return replace(view, state=ImportState.COMMITTED, held_bytes=0, expires_in_seconds=0.0, committed_ratio=1.0)


def _remember(memory: OrderedDict[str, Found], import_id: str, found: Found) -> None:
    memory[import_id] = found
    while len(memory) > IMPORT_OUTCOMES_MAX:
        memory.popitem(last=False)


def _note_mistake(task: asyncio.Task[ImportOutcome]) -> None:
    """Nobody may wait for the task any more: what it raised is looked at here."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, RawblockdError):
        log.error("the commit of an import failed", exc_info=error)
