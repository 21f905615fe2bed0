"""The token file: TOML with one line a token, as ``rawblockd token`` prints it.

::

    ci = { sha256 = "…64 hex digits…", role = "writer", namespaces = ["ci", "build-*"], requests_per_second = 50 }

The name is what people call the holder; ``namespaces`` and ``requests_per_second`` may be missing. The checks are
strict: a mistyped word must not make a token stronger than it was meant. No message repeats what stands in the file but
names: where the digest belongs, somebody may have put the token.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from typing import Any

from api.access.credentials import Credentials
from api.access.rate import Bucket
from api.access.roles import ROLES, Role, Scope
from api.access.tokens import Token, TokenTable
from api.errors import TokenFileInvalid

FILE_MAX_BYTES = 1 << 20
TOKENS_MAX = 4096
RATE_MIN = 0.001
RATE_MAX = 1e6

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_WORDS = {"sha256", "role", "namespaces", "requests_per_second"}


def read_token_file(path: str) -> TokenTable:
    """The tokens of a file that nobody but its owner can write to; the owner is root or this process's user.

    Raises TokenFileInvalid. Who may read the file isn't looked at: a digest lets nobody in.
    """
    try:
        with open(path, "rb") as file:
            _refuse_writable_by_others(path, os.fstat(file.fileno()))
            raw = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise TokenFileInvalid(f"{path} can't be read: {error.strerror}", path=path) from error
    if len(raw) > FILE_MAX_BYTES:
        raise TokenFileInvalid(f"{path} is larger than 1 MiB", path=path)
    try:
        return parse_tokens(raw)
    except ValueError as error:
        raise TokenFileInvalid(f"{path}: {error}", path=path) from None


def _refuse_writable_by_others(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise TokenFileInvalid(f"{path} is no regular file", path=path)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise TokenFileInvalid(f"{path} can be written by others than its owner: chmod go-w", path=path)
    if found.st_uid not in (0, os.geteuid()):
        raise TokenFileInvalid(f"{path} belongs to user {found.st_uid}, neither root nor the daemon's", path=path)


def parse_tokens(raw: bytes) -> TokenTable:
    """The tokens of a file's content. Raises ValueError with a sentence that holds nothing secret."""
    try:
        lines = tomllib.loads(raw.decode())
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is not TOML ({_place_of(error)})") from None
    if len(lines) > TOKENS_MAX:
        raise ValueError(f"more than {TOKENS_MAX} tokens")
    tokens = [_token(name, entry) for name, entry in lines.items()]
    seen: dict[bytes, str] = {}
    for token in tokens:
        other = seen.setdefault(token.digest, token.credentials.name)
        if other != token.credentials.name:
            raise ValueError(f"{other} and {token.credentials.name} have the same token")
    return TokenTable(tokens)


def _place_of(error: tomllib.TOMLDecodeError) -> str:
    """Only where: the parser's text may quote the line."""
    found = re.search(r"\(at ([a-z0-9 ,]+)\)", str(error))
    return found[1] if found else "no place known"


def _token(name: str, entry: Any) -> Token:
    if _NAME.fullmatch(name) is None:
        raise ValueError("a token's name has 1 to 64 characters of A-Z a-z 0-9 _ -")
    if not isinstance(entry, dict):
        raise ValueError(f"{name} is no table: it has sha256 and role")
    for word in entry:
        if word not in _WORDS:
            # A word is the operator's own, but may be a token that slipped.
            raise ValueError(f"{name} has something that is none of {', '.join(sorted(_WORDS))}")
    digest = entry.get("sha256")
    if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
        raise ValueError(f"sha256 of {name} is not 64 hexadecimal digits in small letters")
    role = entry.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"role of {name} is none of {', '.join(ROLES)}")
    scope = _scope(name, entry.get("namespaces"))
    bucket = _bucket(name, entry.get("requests_per_second"))
    return Token(bytes.fromhex(digest), Credentials(name, ROLES[role], scope, bucket=bucket))


def _scope(name: str, patterns: Any) -> Scope:
    if patterns is None:
        return Scope()
    if not isinstance(patterns, list) or not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f"namespaces of {name} is no list of texts with at least one")
    try:
        return Scope(patterns)
    except ValueError as error:
        raise ValueError(f"namespaces of {name}: {error}") from None


def _bucket(name: str, rate: Any) -> Bucket | None:
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not RATE_MIN <= rate <= RATE_MAX:
        raise ValueError(f"requests_per_second of {name} is no number from {RATE_MIN} to {RATE_MAX:.0f}")
    return Bucket(float(rate))


def token_line(name: str, digest: bytes, role: Role, namespaces: list[str], rate: float | None) -> str:
    """The line of one token. Raises ValueError for what the file doesn't allow."""
    parts = [f'sha256 = "{digest.hex()}"', f'role = "{role.word}"']
    if namespaces:
        parts.append("namespaces = [" + ", ".join(f'"{pattern}"' for pattern in namespaces) + "]")
    if rate is not None:
        parts.append(f"requests_per_second = {rate:g}")
    line = f"{name} = {{ {', '.join(parts)} }}"
    if _NAME.fullmatch(name) is None:
        raise ValueError("a token's name has 1 to 64 characters of A-Z a-z 0-9 _ -")
    Scope(namespaces)
    parse_tokens(line.encode())
    return line
