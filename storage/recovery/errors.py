"""Why a start is refused."""

from __future__ import annotations

from storage.errors import RawblockdError


class RecoveryRefused(RawblockdError):
    code = "recovery_refused"
    sentence = "The start was refused; the device is unchanged."
    http_status = 503
    exit_code = 30
    restart_helps = False


class TooMuchSkipped(RecoveryRefused):
    code = "too_much_skipped"
    sentence = "More entries are damaged than max_skipped_ratio and max_skipped_floor allow."
    exit_code = 31


class InvalidRowsFound(RecoveryRefused):
    code = "invalid_rows"
    sentence = "Rows were written wrong (their page's checksum is right): this points to a bug, not to the device."
    exit_code = 32
