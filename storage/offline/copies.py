"""The checkpoint copies and the journal, each with a verdict, and how the copies differ page by page."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from storage.format.checkpoint_copy import CopyHeader
from storage.offline.journal import Chain, read_chain
from storage.offline.opening import OpenCache, opened
from storage.offline.pages import PageSpan, differing_rows, read_span, runs_of
from storage.recovery.copies import FoundCopy, read_copies
from storage.recovery.reading import BlockReader

DAMAGED_LISTED_MAX = 100
"""Damaged pages listed by number; the counts stay exact beyond it."""


def copies(path: str) -> dict[str, Any]:
    """Per copy what its header says, the journal's extent, and what differs between the copies.

    Raises as ``opened``, DeviceFailed.
    """
    with opened(path) as cache:
        found = read_copies(cache.reader, cache.geometry, cache.uuid)
        valid = sorted((copy for copy in found if copy.valid), key=lambda copy: -_header(copy).number)
        facts: dict[str, Any] = {
            "device": path,
            "held": cache.held,
            "copies": [_copy(copy, valid) for copy in found],
            "journal": _journal(read_chain(cache, valid)),
        }
        if valid:
            comparison = _compare(cache, valid)
            facts["pages"] = [page_facts.facts() for page_facts in comparison.values()]
            facts["damaged_pages"] = [page for page_facts in comparison.values() for page in page_facts.damaged]
        return facts


def _header(copy: FoundCopy) -> CopyHeader:
    assert copy.header is not None
    return copy.header


def _copy(copy: FoundCopy, valid: list[FoundCopy]) -> dict[str, Any]:
    header = copy.header
    facts: dict[str, Any] = {
        "copy": copy.copy,
        "verdict": copy.verdict,
        "newest": bool(valid) and copy is valid[0],
    }
    if header is not None:
        facts |= {
            "number": header.number,
            "seq": header.seq,
            "written_at": header.written_ms / 1000,
            "start_count": header.start_count,
            "entries": header.entries,
            "journal_block": header.journal_block,
            "tail": header.tail,
        }
    return facts


def _journal(chain: Chain) -> dict[str, Any]:
    found = chain.found
    return {
        "verdict": found.verdict(),
        "first_block": chain.headers[0].number if chain.headers else None,
        "last_block": found.last_block,
        "blocks": len(chain.headers),
        "rows": chain.rows,
        "missing_blocks": len(chain.missing),
        "flushed_through": found.flushed_through,
        "tail": found.tail,
        "complete_since": found.complete_since,
        "start_count": found.start_count,
    }


@dataclass(slots=True)
class CopyPages:
    """Counts of one copy's pages; those compared are against the newest valid copy. ``written`` are named pages."""

    copy: int
    newest: int
    written: int = 0
    damaged_count: int = 0
    same: int = 0
    differing: int = 0
    differing_rows: int = 0
    not_comparable: int = 0
    damaged: list[dict[str, Any]] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"copy": self.copy, "written": self.written, "damaged": self.damaged_count}
        if self.copy != self.newest:
            facts |= {
                "compared_with": self.newest,
                "same": self.same,
                "differing": self.differing,
                "differing_rows": self.differing_rows,
                "not_comparable": self.not_comparable,
            }
        return facts

    def judge(self, copy: FoundCopy, span: PageSpan) -> None:
        """Count the pages of a span that the copy's directory names."""
        assert copy.directory is not None
        for page, reason in zip(span.pages, span.reasons, strict=True):
            if not copy.directory["seq"][page]:
                continue
            self.written += 1
            if reason:
                self.damaged_count += 1
                if len(self.damaged) < DAMAGED_LISTED_MAX:
                    self.damaged.append({"copy": self.copy, "page": page, "reason": reason})

    def compare(self, newest: PageSpan, own: PageSpan) -> None:
        """Compare the pages both copies have as named; a page only one of them has can't be compared."""
        both = [position for position in own.good if not newest.reasons[position]]
        self.not_comparable += len(own.pages) - len(both)
        if both:
            counts = differing_rows(newest, own, both)
            self.same += int((counts == 0).sum())
            self.differing += int((counts > 0).sum())
            self.differing_rows += int(counts.sum())


def _compare(cache: OpenCache, valid: list[FoundCopy]) -> dict[int, CopyPages]:
    """Read every page that any of the copies names, from all of them."""
    geometry, newest = cache.geometry, valid[0]
    results = {copy.copy: CopyPages(copy.copy, newest.copy) for copy in valid}
    named = np.zeros(geometry.pages, dtype=bool)
    for copy in valid:
        assert copy.directory is not None
        named |= copy.directory["seq"] > 0
    with contextlib.ExitStack() as stack:
        readers = {}
        for copy in valid:
            readers[copy.copy] = BlockReader(cache.device, geometry.block_bytes)
            stack.callback(readers[copy.copy].close)
        for run in runs_of(np.flatnonzero(named), geometry):
            spans = {c.copy: read_span(readers[c.copy], geometry, cache.uuid, c, run) for c in valid}
            for copy in valid:
                results[copy.copy].judge(copy, spans[copy.copy])
                if copy is not newest:
                    results[copy.copy].compare(spans[newest.copy], spans[copy.copy])
            # The readers can't be closed while somebody looks into their buffers.
            spans.clear()
    return results
