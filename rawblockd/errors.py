"""Errors of the process itself; the engine's are in ``storage.errors``, and so is the hierarchy's base."""

from __future__ import annotations

from storage.errors import RawblockdError


class AddressUnavailable(RawblockdError):
    code = "address_unavailable"
    sentence = "The address to listen on can't be used."
    exit_code = 4


class DaemonUnreachable(RawblockdError):
    code = "daemon_unreachable"
    sentence = "No daemon answers at this URL."
    exit_code = 5


class ExtraMissing(RawblockdError):
    code = "extra_missing"
    sentence = "A part of the program that is installed only on request is missing."
    exit_code = 7


class DaemonRefused(RawblockdError):
    """``fields`` hold the daemon's problem: ``problem_code`` and ``status``."""

    code = "daemon_refused"
    sentence = "The daemon refused the request."
    exit_code = 6


class DamageFound(RawblockdError):
    code = "damage_found"
    sentence = "The check found damage."
    exit_code = 3
