"""``rawblockd format``: make a cache on a device, or in a file that is made for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rawblockd.command_line.output import JsonFlag, expected_errors, print_facts, print_json
from rawblockd.sizes import parse_size, rounded_size_text

if TYPE_CHECKING:
    from storage.formatting import Formatted


def register(application: typer.Typer) -> None:
    application.command("format")(format_command)


def format_command(
    device: Annotated[str, typer.Argument(help="Block device or file.")],
    size: Annotated[str | None, typer.Option(help="Size of a file that is made if it is missing: 1GiB.")] = None,
    smallest_slot: Annotated[
        str | None, typer.Option(help="Smallest slot; bounds the number of entries. By default from the size.")
    ] = None,
    slab_bytes: Annotated[
        str | None, typer.Option(help="Size of a slab, a power of two; the largest value is about as large.")
    ] = None,
    copies: Annotated[int, typer.Option(min=2, max=8, help="Checkpoint copies that rotate.")] = 3,
    force: Annotated[bool, typer.Option("--force", help="Destroy what is on the device.")] = False,
    allow_buffered_io: Annotated[
        bool, typer.Option("--allow-buffered-io", help="Go on without O_DIRECT where it is refused.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Make an empty cache. Anything that isn't blank is refused without --force."""
    with expected_errors(json):
        from storage.formatting import format_device

        formatted = format_device(
            device,
            size_bytes=size_option("size", size),
            smallest_slot_bytes=size_option("smallest-slot", smallest_slot),
            slab_bytes=size_option("slab-bytes", slab_bytes),
            copies=copies,
            force=force,
            allow_buffered=allow_buffered_io,
        )
    facts = summary(formatted)
    if json:
        print_json(facts)
    else:
        readable = {name: _readable(name, value) for name, value in facts.items()}
        print_facts(readable)


def size_option(name: str, text: str | None) -> int | None:
    """Bytes of a size flag. Raises SettingsInvalid in the words of the settings."""
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        from storage.errors import SettingsInvalid

        raise SettingsInvalid(f"{name} is {text!r} (flag --{name}); allowed: {error}", settings=[name]) from error


def summary(formatted: Formatted) -> dict[str, Any]:
    """What the operator should know before filling it (L1)."""
    import uuid

    from storage.offline.info import max_value_bytes

    geometry = formatted.geometry
    return {
        "device": formatted.path,
        "uuid": str(uuid.UUID(bytes=formatted.superblock.uuid)),
        "size_bytes": geometry.device_bytes,
        "block_bytes": geometry.block_bytes,
        "copies": geometry.copies,
        "slab_bytes": geometry.slab_bytes,
        "slabs": geometry.slabs,
        "smallest_slot_bytes": geometry.smallest_slot_bytes,
        "max_entries": geometry.max_entries,
        "max_value_bytes": max_value_bytes(geometry),
        "reserved_bytes": geometry.reserved_bytes,
        "memory_full_bytes": geometry.memory_full_bytes,
    }


def _readable(name: str, value: Any) -> Any:
    return f"{value} ({rounded_size_text(value)})" if name.endswith("_bytes") else value
