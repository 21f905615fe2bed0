"""Whether a device carries a foreign signature: file system, partition table, LVM, swap, LUKS, RAID (D5).

By libblkid (util-linux), as ``mkfs`` tools do it: superblocks, also ones with a wrong checksum, and partition tables.
Two signatures at once (an ambivalent result) are foreign too. Our own superblock isn't known to libblkid; who calls
this looks for it first.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Final

from storage.device.probe import own_descriptor
from storage.errors import ForeignContent

_LIBRARY: Final = "libblkid.so.1"

# blkid.h
_SUBLKS_LABEL: Final = 1 << 1
_SUBLKS_TYPE: Final = 1 << 5
_SUBLKS_USAGE: Final = 1 << 7
_SUBLKS_MAGIC: Final = 1 << 9
_SUBLKS_BADCSUM: Final = 1 << 10
_PARTS_FORCE_GPT: Final = 1 << 1  # also without its protective MBR
_PARTS_MAGIC: Final = 1 << 3
_FOUND, _NOTHING, _AMBIVALENT = 0, 1, -2


def foreign_signature(path: str) -> str | None:
    """Name of the signature on the device in words ("ext4 file system", "gpt partition table"), None if there is none.

    Reads through a descriptor of its own. Raises ForeignContent when the content can't be identified (no libblkid, an
    unreadable device): then only ``format --force`` may go on; DeviceMissing, DeviceRefused when the path can't be
    opened.
    """
    with own_descriptor(path) as fd:
        if os.lseek(fd, 0, os.SEEK_END) == 0:
            return None
        return _probe(_load(path), fd, path)


def _load(path: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_LIBRARY, use_errno=True)
    except OSError as error:
        raise _unidentified(path, f"{_LIBRARY} (util-linux) can't be loaded: {error}") from error
    library.blkid_new_probe.restype = c_void_p
    library.blkid_free_probe.argtypes = [c_void_p]
    library.blkid_free_probe.restype = None
    library.blkid_probe_set_device.argtypes = [c_void_p, c_int, c_int64, c_int64]
    for name in ("superblocks", "partitions"):
        getattr(library, f"blkid_probe_enable_{name}").argtypes = [c_void_p, c_int]
        getattr(library, f"blkid_probe_set_{name}_flags").argtypes = [c_void_p, c_int]
    library.blkid_do_safeprobe.argtypes = [c_void_p]
    library.blkid_probe_lookup_value.argtypes = [
        c_void_p,
        c_char_p,
        ctypes.POINTER(c_char_p),
        ctypes.POINTER(c_size_t),
    ]
    return library


def _probe(library: ctypes.CDLL, fd: int, path: str) -> str | None:
    handle = library.blkid_new_probe()
    if not handle:
        raise _unidentified(path, "libblkid has no memory")
    try:
        if library.blkid_probe_set_device(handle, fd, 0, 0) != 0:
            raise _unidentified(path, f"libblkid: {os.strerror(ctypes.get_errno())}")
        library.blkid_probe_enable_superblocks(handle, 1)
        library.blkid_probe_set_superblocks_flags(
            handle, _SUBLKS_LABEL | _SUBLKS_TYPE | _SUBLKS_USAGE | _SUBLKS_MAGIC | _SUBLKS_BADCSUM
        )
        library.blkid_probe_enable_partitions(handle, 1)
        library.blkid_probe_set_partitions_flags(handle, _PARTS_MAGIC | _PARTS_FORCE_GPT)
        ctypes.set_errno(0)
        verdict = library.blkid_do_safeprobe(handle)
        if verdict == _NOTHING:
            return None
        if verdict == _AMBIVALENT:
            return "several signatures at once"
        if verdict != _FOUND:
            raise _unidentified(path, f"libblkid: {os.strerror(ctypes.get_errno())}")
        return _in_words(library, handle)
    finally:
        library.blkid_free_probe(handle)


def _in_words(library: ctypes.CDLL, handle: int) -> str:
    kind, usage = _value(library, handle, b"TYPE"), _value(library, handle, b"USAGE")
    table, label = _value(library, handle, b"PTTYPE"), _value(library, handle, b"LABEL")
    if kind is None:
        return f"{table or 'unknown'} partition table"
    what = {"filesystem": "file system", "crypto": "encrypted volume", "raid": "volume or RAID member"}
    words = f"{kind} {what.get(usage or '', usage or 'signature')}"
    if label:
        words += f" labelled {label!r}"
    return f"{words} and {table} partition table" if table else words


def _value(library: ctypes.CDLL, handle: int, name: bytes) -> str | None:
    data, length = c_char_p(), c_size_t()
    if library.blkid_probe_lookup_value(handle, name, ctypes.byref(data), ctypes.byref(length)) != 0:
        return None
    return data.value.decode("utf-8", "replace") if data.value else None


def _unidentified(path: str, reason: str) -> ForeignContent:
    return ForeignContent(f"{path}: the content can't be identified ({reason}); format it only with --force")
