"""What the import contracts can't say: the formats lean on a short list of modules, and on nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

FORMAT = Path(__file__).parents[2] / "storage" / "format"
ALLOWED = {
    "__future__", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "hmac", "math", "struct",
    "typing", "crc32c", "msgpack", "numpy",
    "storage.entries", "storage.errors", "storage.format", "storage.limits",
}  # fmt: skip


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def test_formats_know_only_bytes() -> None:
    files = list(FORMAT.glob("*.py"))
    assert files
    for path in files:
        for name in imported(path):
            parts = name.split(".")
            kept = ".".join(parts[:2]) if parts[0] == "storage" else parts[0]
            assert kept in ALLOWED, f"{path.name} imports {name}"
