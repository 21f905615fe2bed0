"""The generated parts of ``docs/format.md``: what stands between ``<!-- table: … -->`` and ``<!-- end -->``.

``python -m tests.docs.format_tables`` writes them anew; a test compares them with the code.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import storage.format
from storage import namespace_settings
from storage.format import catalogue, checkpoint_copy, checksums, geometry, journal_block, page, record, row, superblock
from storage.format import slab_header as slab
from storage.format.catalogue import CatalogueRecord
from storage.format.layout import Layout
from storage.limits import CHUNK_BYTES, HEADER_MAX_BYTES, KEY_MAX_BYTES, METADATA_MAX_ITEMS, NAMESPACES_MAX
from storage.recovery.report import SkipReason

PAGE = Path(__file__).parents[2] / "docs" / "format.md"
PART = re.compile(r"(<!-- table: (?P<name>[^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)

_TYPE_NAMES = {
    int: "unsigned integer",
    str: "text",
    bytes: "bytes",
    bool: "boolean",
    dict[str, int]: "map of text to unsigned integer",
    dict[str, int | str]: "map of text to unsigned integer or text",
}


def format_modules() -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(storage.format.__path__):
        yield importlib.import_module(f"storage.format.{found.name}")


def layouts() -> dict[str, Layout]:
    """Every structure with a fixed layout, by its name."""
    return {
        value.name: value for module in format_modules() for value in vars(module).values() if isinstance(value, Layout)
    }


def catalogue_kinds() -> list[type[CatalogueRecord]]:
    """Every kind of catalogue record, ascending."""
    kinds = [value for value in vars(catalogue).values() if isinstance(value, type) and value is not CatalogueRecord]
    return sorted((kind for kind in kinds if issubclass(kind, CatalogueRecord)), key=lambda kind: kind.kind)


def layout_table(layout: Layout) -> str:
    lines = ["| offset | size | field | meaning |", "|---:|---:|---|---|"]
    lines += [f"| {offset} | {size} | `{name}` | {meaning} |" for offset, size, name, meaning in layout.table()]
    return "\n".join([*lines, f"| {layout.size_bytes} | | | end |"])


def enum_table(members: Any) -> str:
    lines = ["| value | name |", "|---:|---|"]
    return "\n".join(lines + [f"| {member.value} | {member.name.lower()} |" for member in members])


def catalogue_table() -> str:
    lines = ["| kind | record | fields behind the kind, in this order | means |", "|---:|---|---|---|"]
    for kind in catalogue_kinds():
        hints = get_type_hints(kind)
        described = ", ".join(f"`{item.name}` ({_TYPE_NAMES[hints[item.name]]})" for item in fields(kind))
        means = " ".join((kind.__doc__ or "").split())
        lines.append(f"| {kind.kind} | {kind.__name__.removesuffix('Record')} | {described} | {means} |")
    return "\n".join(lines)


def settings_table() -> str:
    kinds = {
        "quota_mode": "`soft`, `hard`",
        "default_durability": "`none`, `journal`, `flush`",
        "sliding_ttl": "1",
        "parts": "text; of each part name, dtype, sizes joined by `,`, default, joined by `:`; the parts joined by `;`",
        "on_missing": "`reject`, `default`",
        "importing": "1: what an import has gathered so far; wiped by the next start without an unknown loss",
    }
    kinds |= {name: f"{lowest} to {highest}" for name, (lowest, highest) in namespace_settings.RANGES.items()}
    lines = ["| code | setting | values |", "|---|---|---|"]
    return "\n".join(
        lines + [f"| `{code}` | `{name}` | {kinds[name]} |" for name, code in namespace_settings.CODES.items()]
    )


def constants_table() -> str:
    rows = [
        ("superblock magic", superblock.MAGIC.decode()),
        ("mark of an unfinished format", superblock.FORMATTING_MAGIC.decode()),
        ("copy header magic", checkpoint_copy.COPY_MAGIC.decode()),
        ("directory block magic", checkpoint_copy.DIRECTORY_MAGIC.decode()),
        ("catalogue block magic", checkpoint_copy.CATALOGUE_MAGIC.decode()),
        ("page magic", page.MAGIC.decode()),
        ("journal block magic", journal_block.MAGIC.decode()),
        ("slab header magic", slab.MAGIC.decode()),
        ("record header magic", record.MAGIC.decode()),
        ("smallest block", geometry.BLOCK_MIN_BYTES),
        ("largest block", geometry.BLOCK_MAX_BYTES),
        ("line of a page and of a journal block", geometry.LINE_BYTES),
        ("most slot classes", geometry.CLASSES_MAX),
        ("fewest slabs", geometry.SLABS_MIN),
        ("no slot class", geometry.NO_CLASS),
        ("payload under one checksum", CHUNK_BYTES),
        ("largest record header", HEADER_MAX_BYTES),
        ("longest key", KEY_MAX_BYTES),
        ("most items of metadata", METADATA_MAX_ITEMS),
        ("most namespaces", NAMESPACES_MAX),
        ("catalogue bytes reserved per slab", geometry.CATALOGUE_SLAB_BYTES),
        ("catalogue bytes reserved per namespace", geometry.CATALOGUE_NAMESPACE_BYTES),
        ("catalogue bytes reserved for the rest", geometry.CATALOGUE_STATE_BYTES),
        ("bytes of a keyed sum", checksums.KEYED_SUM_BYTES),
        ("bytes of a key digest", checksums.DIGEST_BYTES),
        ("bytes of the secret", checksums.SECRET_BYTES),
    ]
    lines = ["| constant | value |", "|---|---|"]
    return "\n".join(lines + [f"| {name} | `{value}` |" for name, value in rows])


def features_table() -> str:
    known = (
        ("compat", superblock.COMPAT_KNOWN),
        ("ro_compat", superblock.RO_COMPAT_KNOWN),
        ("incompat", superblock.INCOMPAT_KNOWN),
    )
    lines = ["| flags | bits in use |", "|---|---|"]
    return "\n".join(lines + [f"| `{name}` | {f'{bits:#x}' if bits else 'none'} |" for name, bits in known])


def tables() -> dict[str, str]:
    """Content by the name in the marker."""
    content = {name: layout_table(layout) for name, layout in layouts().items()}
    content["constants"] = constants_table()
    content["features"] = features_table()
    content["slot states"] = enum_table(row.SlotState)
    content["reasons of free rows"] = enum_table(row.FreeReason)
    content["reasons of quarantined rows"] = enum_table(row.QuarantineReason)
    content["catalogue records"] = catalogue_table()
    content["namespace settings"] = settings_table()
    content["skip reasons"] = ", ".join(f"`{reason.value}`" for reason in SkipReason)
    return content


def filled(text: str) -> str:
    """The page with its tables as the code has them. Raises KeyError for a marker nobody fills."""
    content = tables()
    return PART.sub(lambda match: f"{match[1]}\n{content[match['name']]}\n\n{match[3]}", text)


def marked(text: str) -> list[str]:
    """Names of the markers of a page, in their order."""
    return [match["name"] for match in PART.finditer(text)]


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
