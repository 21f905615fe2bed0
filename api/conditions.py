"""Conditional requests (RFC 9110, section 13).

For a read they're evaluated here against the entry that was opened. For a mutation they become ``Conditions``, which
the engine decides at the moment the mutation takes effect (D3).
"""

from __future__ import annotations

import enum
import re

from api.dates import parse_date
from api.limits import ETAGS_MAX
from storage.entries import UNCONDITIONAL, Conditions, EntryInfo
from storage.errors import ParameterInvalid

_TAG = re.compile(rb'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_OURS = re.compile(rb"[0-9a-f]{16}")
ANY = "*"
_QUOTED = re.compile(r'"([0-9a-f]{16})"')
_QUOTED_OURS = re.compile(rb'"([0-9a-f]{16})"')
_NOTHING: frozenset[int] = frozenset()


class Verdict(enum.Enum):
    PROCEED = enum.auto()
    NOT_MODIFIED = enum.auto()
    FAILED = enum.auto()


class TagList:
    """The value of ``If-Match`` or ``If-None-Match``: a star, or entity tags of which only ours can match."""

    __slots__ = ("any", "strong", "weak")

    def __init__(self, *, any_entry: bool, strong: frozenset[int], weak: frozenset[int]) -> None:
        self.any = any_entry
        self.strong = strong
        """Write ids of tags without ``W/``."""
        self.weak = weak
        """Write ids of tags with ``W/``: equal by the weak comparison alone (RFC 9110, 8.8.3.2)."""


def read_tags(text: bytes, name: str) -> TagList:
    """Parse a list of entity tags; empty elements are allowed, an empty list isn't. Raises ``ParameterInvalid``."""
    if text.strip(b" \t") == b"*":
        return TagList(any_entry=True, strong=frozenset(), weak=frozenset())
    strong: set[int] = set()
    weak: set[int] = set()
    at = count = 0
    separated = True
    while at < len(text):
        if text[at] in b" \t":
            at += 1
        elif text[at] == ord(","):
            separated = True
            at += 1
        else:
            match = _TAG.match(text, at)
            count += 1
            if match is None or not separated or count > ETAGS_MAX:
                raise ParameterInvalid(f"{name} is * or a list of up to {ETAGS_MAX} entity tags", parameter=name)
            if _OURS.fullmatch(match[2]):
                (weak if match[1] else strong).add(int(match[2], 16))
            separated = False
            at = match.end()
    if not count:
        raise ParameterInvalid(f"{name} is empty", parameter=name)
    return TagList(any_entry=False, strong=frozenset(strong), weak=frozenset(weak))


def evaluate_read(fields: dict[bytes, bytes], info: EntryInfo) -> Verdict:
    """Conditions of a GET or HEAD on an entry that exists, in the order of RFC 9110, 13.2.2."""
    if (text := fields.get(b"if-match")) is not None:
        tags = read_tags(text, "If-Match")
        if not tags.any and info.write_id not in tags.strong:
            return Verdict.FAILED
    elif (text := fields.get(b"if-unmodified-since")) is not None:
        moment = parse_date(text)
        if moment is not None and int(info.stored_at) > moment:
            return Verdict.FAILED
    if (text := fields.get(b"if-none-match")) is not None:
        tags = read_tags(text, "If-None-Match")
        if tags.any or info.write_id in tags.strong or info.write_id in tags.weak:
            return Verdict.NOT_MODIFIED
    elif (text := fields.get(b"if-modified-since")) is not None:
        moment = parse_date(text)
        if moment is not None and int(info.stored_at) <= moment:
            return Verdict.NOT_MODIFIED
    return Verdict.PROCEED


def maybe_known(fields: dict[bytes, bytes]) -> frozenset[int]:
    """Write ids that the client may have, by ``If-None-Match``: of such an entry no payload will be sent. It spares
    reads and decides nothing: that is ``evaluate_read``'s."""
    text = fields.get(b"if-none-match")
    return _NOTHING if text is None else frozenset(int(tag, 16) for tag in _QUOTED_OURS.findall(text))


def range_still_valid(fields: dict[bytes, bytes], info: EntryInfo) -> bool:
    """False if ``If-Range`` names another entry than the one opened, so that the whole value is sent (13.1.5)."""
    text = fields.get(b"if-range")
    if text is None:
        return True
    match = _TAG.fullmatch(text)
    if match is not None:
        return match[1] is None and match[2] == b"%016x" % info.write_id
    # A date is no strong validator: two puts may fall into one second.
    return False


def read_conditions(fields: dict[bytes, bytes]) -> Conditions:
    """Conditions of a PUT or DELETE. Raises ``ParameterInvalid`` for those that can't be decided by write id."""
    if_match = fields.get(b"if-match")
    if_none_match = fields.get(b"if-none-match")
    if b"if-unmodified-since" in fields:
        # Ignoring it would overwrite what the client meant to protect.
        raise ParameterInvalid("a mutation takes If-Match, not If-Unmodified-Since", parameter="If-Unmodified-Since")
    if if_match is None and if_none_match is None:
        return UNCONDITIONAL
    must_be_absent = False
    if if_none_match is not None:
        if not read_tags(if_none_match, "If-None-Match").any:
            raise ParameterInvalid("a mutation takes no If-None-Match but *", parameter="If-None-Match")
        must_be_absent = True
    if if_match is None:
        return Conditions(must_be_absent=must_be_absent)
    tags = read_tags(if_match, "If-Match")
    if tags.any:
        return Conditions(must_be_absent=must_be_absent, must_be_present=True)
    return Conditions(must_be_absent=must_be_absent, write_ids=tags.strong)


def conditions_of_tags(tags: list[str], *, must_be_absent: bool) -> Conditions:
    """``If-Match`` as a batch gives it: ETags as answers have them, or ``ANY``. A tag of others matches nothing."""
    if ANY in tags:
        return Conditions(must_be_absent=must_be_absent, must_be_present=True)
    ours = (_QUOTED.fullmatch(tag) for tag in tags)
    return Conditions(must_be_absent=must_be_absent, write_ids=frozenset(int(tag[1], 16) for tag in ours if tag))
