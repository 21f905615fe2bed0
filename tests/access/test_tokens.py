"""Tokens, roles, scopes and rates, without a server."""

from __future__ import annotations

import ast
import base64
import hmac
import inspect
import os
from pathlib import Path

import pytest

from api.access import EVERYBODY, Credentials, Role, require, require_device, tokens
from api.access.authorization import FIELD_MAX_BYTES, presented_token
from api.access.credentials import NOBODY, STRANGER
from api.access.gate import Gate, Place
from api.access.rate import Bucket
from api.access.roles import PATTERNS_MAX, Scope
from api.access.token_file import TOKENS_MAX, parse_tokens, read_token_file, token_line
from api.access.tokens import Token, TokenTable, digest_of, make_token
from api.errors import Forbidden, RateLimited, TokenFileInvalid, Unauthenticated

SECRET = "rbd_" + "Zz09-_" * 7 + "A"
"""As long as a made one, but the same in every process: it is in the names of tests."""
DIGEST = digest_of(SECRET.encode()).hex()


def line(name: str = "ci", **words: str) -> str:
    parts = {"sha256": f'"{DIGEST}"', "role": '"writer"', **words}
    return f"{name} = {{ " + ", ".join(f"{word} = {value}" for word, value in parts.items()) + " }\n"


# Finding a token


def test_a_token_is_found_by_its_digest_and_no_other_is() -> None:
    table = parse_tokens(line().encode())
    assert table.find(SECRET.encode()).name == "ci"
    for other in (b"", SECRET.encode()[:-1], SECRET.encode() + b"x", make_token().encode(), DIGEST.encode()):
        assert table.find(other) is STRANGER


def test_tokens_are_256_random_bits() -> None:
    made = {make_token() for _ in range(1000)}
    assert len(made) == 1000
    assert all(len(base64.urlsafe_b64decode(token.removeprefix("rbd_") + "=")) == 32 for token in made)


def test_a_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a digest that agrees in the bytes that choose the bucket."""
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    digest = digest_of(SECRET.encode())
    near = bytes([*digest[:-1], digest[-1] ^ 1])
    credentials = Credentials("near", Role.READER)
    assert TokenTable([Token(near, credentials)]).find(SECRET.encode()) is STRANGER
    assert compared == [(near, digest)]
    assert TokenTable([Token(near, credentials), Token(digest, credentials)]).find(SECRET.encode()) is credentials


def test_no_other_comparison_of_digests_exists() -> None:
    """In the module that finds tokens nothing is compared with ``==`` or ``in``, and nothing but digests is a key."""
    tree = ast.parse(inspect.getsource(tokens))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]


# The Authorization field


@pytest.mark.parametrize(
    ("field", "token"),
    [
        (b"Bearer abc", b"abc"),
        (b"bearer   abc ", b"abc"),
        (b"Basic " + base64.b64encode(b"any:abc"), b"abc"),
        (b"BASIC " + base64.b64encode(b":a:b"), b"a:b"),
        (b"Basic " + base64.b64encode(b"nocolon"), None),
        (b"Basic !!!", None),
        (b"Basic", None),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"Digest abc", None),
        (b"abc", None),
        (b"", None),
        (b"Bearer " + b"a" * FIELD_MAX_BYTES, None),
    ],
)
def test_the_token_in_an_authorization_field(field: bytes, token: bytes | None) -> None:
    assert presented_token(field) == token


# Decisions


def credentials(role: Role, *namespaces: str) -> Credentials:
    return Credentials("test", role, Scope(namespaces or None))


@pytest.mark.parametrize("holds", Role)
@pytest.mark.parametrize("takes", Role)
def test_a_role_includes_those_below(holds: Role, takes: Role) -> None:
    if holds >= takes:
        require(credentials(holds), takes, "a")
        require_device(credentials(holds), takes)
    else:
        with pytest.raises(Forbidden) as refused:
            require(credentials(holds), takes, "a")
        assert refused.value.fields == {"role": takes.word, "namespace": "a"}
        with pytest.raises(Forbidden):
            require_device(credentials(holds), takes)


@pytest.mark.parametrize(
    ("patterns", "inside", "outside"),
    [
        (["a"], ["a"], ["", "A", "aa", "b", "a*"]),
        (["a*"], ["a", "ab", "a.b-c_d"], ["", "A", "ba"]),
        (["a", "b-*"], ["a", "b-", "b-1"], ["ab", "b", "c"]),
    ],
)
def test_a_scope_is_names_and_prefixes(patterns: list[str], inside: list[str], outside: list[str]) -> None:
    scope = Scope(patterns)
    assert [name for name in inside + outside if name in scope] == inside
    assert not scope.everything


@pytest.mark.parametrize("pattern", ["", "*", "a**", "*a", "a*b", "a/b", "a b", "ä", "a" * 129])
def test_what_is_no_scope(pattern: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        Scope([pattern])


def test_a_scope_is_bounded() -> None:
    with pytest.raises(ValueError, match="at most"):
        Scope([f"n{number}" for number in range(PATTERNS_MAX + 1)])


def test_a_limited_token_is_no_token_for_the_whole_device() -> None:
    limited = credentials(Role.OPERATOR, "a*")
    require(limited, Role.OPERATOR, "ab")
    with pytest.raises(Forbidden):
        require_device(limited, Role.READER)
    with pytest.raises(Forbidden):
        require(limited, Role.READER, "b")


def test_without_a_known_token_nothing_passes() -> None:
    for nobody in (NOBODY, STRANGER):
        with pytest.raises(Unauthenticated):
            require(nobody, Role.READER, "a")
        with pytest.raises(Unauthenticated):
            require_device(nobody, Role.READER)
        assert not nobody.may(Role.READER, "a")


def test_without_tokens_everybody_passes() -> None:
    require(EVERYBODY, Role.OPERATOR, "a")
    require_device(EVERYBODY, Role.OPERATOR)
    assert Gate().admit("GET", {b"authorization": b"Bearer x"}, Place()) is EVERYBODY


# The rate


def test_a_bucket_gives_its_rate_and_no_more() -> None:
    bucket = Bucket(2.0)
    assert [bucket.take(10.0) for _ in range(3)] == [0, 0, 1]
    assert bucket.take(10.5) == 0
    assert bucket.take(10.5) == 1
    assert [bucket.take(1000.0) for _ in range(3)] == [0, 0, 1], "a long pause saves up no more than a second's worth"


def test_a_slow_bucket_says_how_long_to_wait() -> None:
    bucket = Bucket(0.1)
    assert bucket.take(0.0) == 0
    assert bucket.take(0.0) == 10
    assert bucket.take(9.0) == 1
    assert bucket.take(10.5) == 0


def test_the_rate_of_one_token_is_no_other_tokens() -> None:
    other = make_token()
    text = line("slow", requests_per_second="0.001") + line("fast", sha256=f'"{digest_of(other.encode()).hex()}"')
    gate = Gate(parse_tokens(text.encode()))
    slow = {b"authorization": b"Bearer " + SECRET.encode()}
    assert gate.admit("GET", slow, Place()).name == "slow"
    with pytest.raises(RateLimited) as refused:
        gate.admit("GET", slow, Place())
    assert refused.value.retry_after_seconds > 900
    assert gate.admit("GET", {b"authorization": b"Bearer " + other.encode()}, Place()).name == "fast"


# The file


def test_a_made_line_is_read_back() -> None:
    made = token_line("ci", bytes.fromhex(DIGEST), Role.WRITER, ["a", "b-*"], 2.5)
    found = parse_tokens(made.encode()).find(SECRET.encode())
    assert (found.name, found.role) == ("ci", Role.WRITER)
    assert "b-1" in found.scope and "c" not in found.scope
    assert found.bucket is not None and found.bucket.rate == 2.5


@pytest.mark.parametrize(
    "text",
    [
        line(role='"admin"'),
        line(role="3"),
        line(role='"Writer"'),
        line(sha256=f'"{SECRET}"'),
        line(sha256=f'"{DIGEST.upper()}"'),
        line(sha256="1"),
        line(namespaces="[]"),
        line(namespaces='"a"'),
        line(namespaces='["a", 1]'),
        line(namespaces='["*"]'),
        line(requests_per_second="0"),
        line(requests_per_second="true"),
        line(requests_per_second="inf"),
        line(requests_per_second="nan"),
        line(roles='"reader"'),
        line('"a b"'),
        line(f'"{SECRET}x{SECRET}"'),
        line("a") + line("b"),
        line("a") + line("a"),
        "ci = 1\n",
        f'ci = {{ role = "reader", {SECRET} = 1 }}\n',
        f"{SECRET}\n",
        "[[token]]\n",
        "ci = {",
        f'ci = {{ sha256 = "{DIGEST}" }}\n',
        "\n".join(f"n{number} = 1" for number in range(TOKENS_MAX + 1)),
    ],
)
def test_a_bad_file_is_refused_in_words_that_give_nothing_away(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(TokenFileInvalid) as refused:
        read_token_file(str(path))
    said = f"{refused.value.detail}{refused.value.fields}{refused.value.__cause__}"
    assert SECRET not in said and SECRET.lower() not in said and DIGEST not in said
    assert str(path) in said


def test_an_empty_file_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.touch(0o600)
    gate = Gate(read_token_file(str(path)))
    with pytest.raises(Unauthenticated):
        require(gate.admit("GET", {}, Place()), Role.READER, "a")


@pytest.mark.parametrize(
    ("mode", "is_good"), [(0o600, True), (0o644, True), (0o400, True), (0o660, False), (0o602, False)]
)
def test_a_file_that_others_can_write_to_is_refused(mode: int, is_good: bool, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(line())
    path.chmod(mode)
    if is_good:
        assert read_token_file(str(path)).count == 1
    else:
        with pytest.raises(TokenFileInvalid, match="go-w"):
            read_token_file(str(path))


def test_what_is_no_file_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    with pytest.raises(TokenFileInvalid, match="No such file"):
        read_token_file(str(path))
    with pytest.raises(TokenFileInvalid):
        read_token_file(str(tmp_path))
    path.write_bytes(b"\xff\xfe")
    path.chmod(0o600)
    with pytest.raises(TokenFileInvalid, match="UTF-8"):
        read_token_file(str(path))
    path.write_bytes(b"#" * (1 << 20) + b"#")
    with pytest.raises(TokenFileInvalid, match="1 MiB"):
        read_token_file(str(path))
    if os.geteuid() == 0:
        path.write_text(line())
        os.chown(path, 12345, 0)
        with pytest.raises(TokenFileInvalid, match="12345"):
            read_token_file(str(path))
