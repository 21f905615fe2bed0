"""Every error the project raises on purpose, in one hierarchy.

::

    RawblockdError
    ├── SettingsInvalid                 a setting or an option is wrong
    │   └── TokenFileInvalid°           the file of access tokens can't be used
    ├── DeviceRefused                   the device may not be used as asked; nothing was written
    │   ├── DeviceMissing               the path does not exist or is no device
    │   ├── DeviceInUse                 another process holds it
    │   ├── ForeignContent              a foreign signature or other content
    │   ├── CachePresent                formatting would destroy a cache
    │   ├── NotFormatted                there is no cache on it
    │   ├── FormatUnsupported           a newer or unknown format or feature
    │   ├── LayoutMismatch              the superblock does not fit the device
    │   │   └── SuperblocksLost         neither superblock verifies
    │   ├── GeometryInvalid             the sizes asked for make no device
    │   │   └── BlocksTooLarge          its logical blocks are larger than ours
    │   └── DirectIoRefused             O_DIRECT is refused and buffered I/O was not allowed
    ├── DeviceFailed                    an operation of the device failed
    │   ├── ReadFailed
    │   ├── WriteFailed
    │   ├── FlushFailed
    │   └── DeviceGone                  the device disappeared or fails everywhere
    ├── RecoveryRefused°                the start was refused, the device is unchanged
    │   ├── TooMuchSkipped°             above max_skipped_ratio and max_skipped_floor
    │   └── InvalidRowsFound°           rows that were written wrong: a bug, not bit rot
    ├── DamageFound°                    the verdict of an offline check
    ├── RequestRefused                  the request itself can't be served
    │   ├── Unauthenticated° · Forbidden°
    │   ├── CrossSiteRefused° · HostNotAllowed°    what a browser may not do for a page of others
    │   ├── RateLimited°
    │   ├── KeyInvalid (BuildKeyInvalid°) · NamespaceInvalid · MetadataInvalid · ParameterInvalid
    │   ├── ContentRangeUnsupported° · LengthRequired° · LengthMismatch · DigestMismatch° · ValueTooLarge
    │   ├── MediaTypeUnsupported° · BodyInvalid° · BatchTooLarge°
    │   ├── SnapshotNotFound
    │   ├── ImportNotFound° · ImportBusy° · ImportRefused° · ImportTooLarge°
    │   ├── PartsInvalid · SchemaConflict · PartNotFound°
    │   ├── EntryNotFound
    │   │   └── EntryCorrupt            a miss because the entry failed verification
    │   ├── NamespaceNotFound · LeaseNotFound
    │   ├── PreconditionFailed · RangeUnsatisfiable°
    │   ├── AcknowledgeNothing · CheckpointFrozen
    │   └── Full · NamespacesFull · QuotaExceeded · SpaceHeld · NotAdmitted · WriteBudgetSpent · LeasesFull
    ├── Unavailable                     come back later
    │   ├── Starting · Draining · ReadOnly · Busy · JournalUnavailable · NamespaceWiped
    │   ├── TooManySubscribers
    │   └── EntryUnreadable             the slot can't be read
    └── AddressUnavailable° · DaemonUnreachable° · ExtraMissing° · DaemonRefused°      what ends a command

Those marked ° are written in the room that alone raises them: ``errors.py`` of ``api``, ``rawblockd``,
``storage/imports`` and ``storage/recovery``. The generated pages have all in the order drawn here.

Each class has a stable ``code`` (in problem answers, logs and ``--json`` output), one ``sentence``, the
``http_status`` it is answered with and the ``exit_code`` a command ends with; ``restart_helps`` says whether a
supervisor may try again after that code.
"""

from __future__ import annotations

from typing import Any, ClassVar


class RawblockdError(Exception):
    """Base of all errors raised on purpose.

    ``detail`` says what this case was about; ``fields`` are machine-readable facts of the case.
    """

    code: ClassVar[str] = "error"
    sentence: ClassVar[str] = "Something failed."
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    restart_helps: ClassVar[bool] = True
    """False: without a change by a person the next start ends in the same way."""

    def __init__(self, detail: str = "", **fields: Any) -> None:
        super().__init__(detail or self.sentence)
        self.detail = detail
        self.fields = fields


class SettingsInvalid(RawblockdError):
    code = "settings_invalid"
    sentence = "A setting or an option is unknown or has a value that is not allowed."
    exit_code = 2
    restart_helps = False


class DeviceRefused(RawblockdError):
    code = "device_refused"
    sentence = "The device can't be used as asked; nothing was written to it."
    exit_code = 10
    restart_helps = False


class DeviceMissing(DeviceRefused):
    code = "device_missing"
    sentence = "The path does not exist, or is neither a block device nor a regular file."
    exit_code = 10


class DeviceInUse(DeviceRefused):
    code = "device_in_use"
    sentence = "Another process holds the device."
    exit_code = 11
    restart_helps = True


class ForeignContent(DeviceRefused):
    code = "foreign_content"
    sentence = "The device holds something that is not a cache of ours."
    exit_code = 12


class CachePresent(DeviceRefused):
    code = "cache_present"
    sentence = "The device already holds a cache; formatting it would destroy the cache."
    exit_code = 13


class NotFormatted(DeviceRefused):
    code = "not_formatted"
    sentence = "The device holds no cache."
    exit_code = 14


class FormatUnsupported(DeviceRefused):
    code = "format_unsupported"
    sentence = "The device was written in a format or with a feature that this version does not know."
    exit_code = 15


class LayoutMismatch(DeviceRefused):
    code = "layout_mismatch"
    sentence = "The layout written on the device does not fit the device."
    exit_code = 16


class SuperblocksLost(LayoutMismatch):
    code = "superblocks_lost"
    sentence = "Both superblocks are damaged: the device can't be identified, and nothing on it can be trusted."
    exit_code = 19


class GeometryInvalid(DeviceRefused):
    code = "geometry_invalid"
    sentence = "The sizes asked for do not make a usable device."
    exit_code = 17


class BlocksTooLarge(GeometryInvalid):
    code = "blocks_too_large"
    sentence = "The device's logical blocks are larger than the 4096 bytes in which the daemon reads and writes."


class DirectIoRefused(DeviceRefused):
    code = "direct_io_refused"
    sentence = "The file system or device refuses O_DIRECT, and buffered I/O was not allowed."
    exit_code = 18


class DeviceFailed(RawblockdError):
    """An operation of the device failed. ``errno`` is the operating system's number, 0 for a short transfer."""

    code = "io_error"
    sentence = "The device failed an operation."
    http_status = 503
    exit_code = 20

    def __init__(self, detail: str = "", *, errno: int = 0, offset_bytes: int = -1, **fields: Any) -> None:
        super().__init__(detail, errno=errno, offset_bytes=offset_bytes, **fields)
        self.errno = errno
        self.offset_bytes = offset_bytes


class ReadFailed(DeviceFailed):
    code = "read_failed"
    sentence = "The device failed a read."


class WriteFailed(DeviceFailed):
    code = "write_failed"
    sentence = "The device failed a write."


class FlushFailed(DeviceFailed):
    code = "flush_failed"
    sentence = "The device failed a flush."


class DeviceGone(DeviceFailed):
    code = "device_gone"
    sentence = "The device disappeared or fails everywhere."
    exit_code = 21


class RequestRefused(RawblockdError):
    code = "request_refused"
    sentence = "The request can't be served."
    http_status = 400


class KeyInvalid(RequestRefused):
    code = "key_invalid"
    sentence = "A key has 1 to 1024 bytes after percent-decoding."


class NamespaceInvalid(RequestRefused):
    code = "namespace_invalid"
    sentence = "A namespace has 1 to 128 characters of A-Z a-z 0-9 . _ -"


class MetadataInvalid(RequestRefused):
    code = "metadata_invalid"
    sentence = "The metadata kept with a value is too large or is not valid text."


class ParameterInvalid(RequestRefused):
    code = "parameter_invalid"
    sentence = "A query parameter, a header or a field of the body is unknown or has a value that is not allowed."


class LengthMismatch(RequestRefused):
    code = "length_mismatch"
    sentence = "The body is not as long as it was declared."


class ValueTooLarge(RequestRefused):
    code = "value_too_large"
    sentence = "The value is larger than the largest slot of this device."
    http_status = 413


class SnapshotNotFound(RequestRefused):
    code = "snapshot_not_found"
    sentence = "There is no snapshot with this id; it may have expired."
    http_status = 404


class PartsInvalid(RequestRefused):
    """``fields["part"]`` names the part."""

    code = "parts_invalid"
    sentence = "The parts of the value are not what they are said to be, or not what the namespace's schema declares."
    http_status = 422


class SchemaConflict(RequestRefused):
    code = "schema_conflict"
    sentence = "A change of the parts of a schema takes the next schema version."
    http_status = 409


class EntryNotFound(RequestRefused):
    code = "not_found"
    sentence = "There is no entry under this key."
    http_status = 404


class EntryCorrupt(EntryNotFound):
    code = "corrupt"
    sentence = "The entry failed verification; it is a miss now and its slot is kept as evidence."


class NamespaceNotFound(RequestRefused):
    code = "namespace_not_found"
    sentence = "There is no namespace of this name."
    http_status = 404


class LeaseNotFound(RequestRefused):
    code = "lease_not_found"
    sentence = "There is no lease with this id; it may have expired."
    http_status = 404


class PreconditionFailed(RequestRefused):
    """``present_write_id`` is the write id of the entry that is there, 0 for none."""

    code = "precondition_failed"
    sentence = "A condition of the request does not hold."
    http_status = 412

    def __init__(self, detail: str = "", *, present_write_id: int = 0) -> None:
        super().__init__(detail)
        self.present_write_id = present_write_id


class AcknowledgeNothing(RequestRefused):
    code = "nothing_to_acknowledge"
    sentence = "There is no partial recovery, and no quarantined slot, to acknowledge or to retry."
    http_status = 409


class CheckpointFrozen(RequestRefused):
    code = "partial_recovery"
    sentence = "Checkpoints are frozen while partial recovery lasts: acknowledge it first."
    http_status = 409


class Full(RequestRefused):
    code = "full"
    sentence = "There is no room for the value and nothing may be evicted for it."
    http_status = 507


class NamespacesFull(RequestRefused):
    code = "namespaces_full"
    sentence = "The device holds as many namespaces as it can."
    http_status = 507


class QuotaExceeded(RequestRefused):
    code = "quota_exceeded"
    sentence = "The namespace has no room for the value within its quota."
    http_status = 507


class SpaceHeld(RequestRefused):
    """``fields["holder"]`` names who holds it."""

    code = "space_held"
    sentence = "What could make room for the value is held by leases or snapshots."
    http_status = 507


class NotAdmitted(RequestRefused):
    code = "not_admitted"
    sentence = "The device is full, and a key that is put for the first time is not worth an entry that it holds."
    http_status = 507


class WriteBudgetSpent(RequestRefused):
    """``retry_after_seconds`` is when the budget will have been filled up again."""

    code = "write_budget"
    sentence = "The bytes that may be written to the device in a second are spent."
    http_status = 429

    def __init__(self, detail: str = "", *, retry_after_seconds: int) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class LeasesFull(RequestRefused):
    code = "leases_full"
    sentence = "There are as many leases, or leased entries, as the daemon allows."
    http_status = 507


class Unavailable(RawblockdError):
    code = "unavailable"
    sentence = "The daemon can't serve this now."
    http_status = 503


class Starting(Unavailable):
    code = "recovering"
    sentence = "The daemon is still recovering its index."


class Draining(Unavailable):
    code = "draining"
    sentence = "The daemon is stopping."


class ReadOnly(Unavailable):
    code = "read_only"
    sentence = "The device fails writes; the daemon only reads."


class Busy(Unavailable):
    code = "busy"
    sentence = "A bounded resource stayed in use for too long."


class JournalUnavailable(Unavailable):
    code = "journal_unavailable"
    sentence = "The journal can't take rows now, so no mutation can be made durable."


class NamespaceWiped(Unavailable):
    code = "namespace_wiped"
    sentence = "The namespace was wiped while the request was under way; it can be made again at once."


class TooManySubscribers(Unavailable):
    code = "too_many_subscribers"
    sentence = "As many clients follow the event stream as the daemon allows."


class EntryUnreadable(Unavailable):
    code = "io_error"
    sentence = "The slot of this entry can't be read; it is kept as evidence."
