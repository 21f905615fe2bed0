"""Settings: precedence, unknown names, ranges, and what the errors say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rawblockd.settings import LogLevel, Settings
from rawblockd.settings_sources import load_settings
from rawblockd.settings_texts import allowed_text, default_text
from rawblockd.sizes import parse_size, rounded_size_text, size_text
from storage.entries import Durability
from storage.errors import SettingsInvalid
from storage.options import EngineOptions


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("RAWBLOCKD_"):
            monkeypatch.delenv(name)


def refused(flags: dict[str, Any], config: str | None = None) -> SettingsInvalid:
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(flags, config)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.detail
    return caught.value


def toml(folder: Path, text: str) -> str:
    path = folder / "rawblockd.toml"
    path.write_text(text)
    return str(path)


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = toml(tmp_path, 'port = 1\nmax_connections = 2\nhost = "::1"\n')
    monkeypatch.setenv("RAWBLOCKD_PORT", "3")
    monkeypatch.setenv("RAWBLOCKD_MAX_CONNECTIONS", "4")
    settings = load_settings({"port": "5", "uds": None}, config)
    assert (settings.port, settings.max_connections, settings.host) == (5, 4, "::1")
    assert settings.log_level is LogLevel.INFO
    assert settings.uds is None


def test_config_file_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWBLOCKD_CONFIG", toml(tmp_path, "port = 7"))
    assert load_settings({}).port == 7
    assert load_settings({}, toml(tmp_path, "port = 8")).port == 8


@pytest.mark.parametrize("variable", ["RAWBLOCKD_PROT", "rawblockd_prot", "RAWBLOCKD_"])
def test_unknown_name_in_the_environment_is_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "8790")
    assert variable in refused({}).detail


def test_url_of_the_client_commands_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWBLOCKD_URL", "http://127.0.0.1:8790")
    assert load_settings({}).port == 8790


@pytest.mark.parametrize("text", ["prot = 1", "[server]\nport = 1"])
def test_unknown_name_in_the_file_is_named(text: str, tmp_path: Path) -> None:
    config = toml(tmp_path, text)
    error = refused({}, config)
    assert config in error.detail
    assert error.fields["settings"][0] in text


def test_unknown_flag_is_named() -> None:
    with pytest.raises(SettingsInvalid, match="prot"):
        load_settings({"prot": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 65536),
        ("port", -1),
        ("port", True),
        ("port", 1.5),
        ("max_skipped_ratio", 1.01),
        ("max_skipped_ratio", "nan"),
        ("max_skipped_ratio", False),
        ("checkpoint_interval_seconds", "inf"),
        ("drain_timeout_seconds", -1),
        ("buffer_bytes", "1KiB"),
        ("buffer_bytes", "1GB"),
        ("buffer_bytes", True),
        ("size", 1.5),
        ("smallest_slot", "-4KiB"),
        ("log_level", "loud"),
        ("io_engine", ""),
        ("create", "perhaps"),
        ("device", ""),
        ("device", 5),
        ("uds", "a\0b"),
    ],
)
def test_a_wrong_value_is_answered_with_name_value_source_and_what_is_allowed(name: str, value: object) -> None:
    detail = refused({name: value}).detail
    assert detail.startswith(f"{name} is {value!r} (flag --{name.replace('_', '-')}); allowed: ")
    assert detail.endswith(allowed_text(name))


def test_every_wrong_value_is_told_at_once_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = toml(tmp_path, 'log_format = "xml"')
    monkeypatch.setenv("RAWBLOCKD_HOST", "")
    error = refused({"port": "http"}, config)
    assert set(error.fields["settings"]) == {"port", "host", "log_format"}
    assert "(flag --port)" in error.detail
    assert "(environment RAWBLOCKD_HOST)" in error.detail
    assert f"(file {config})" in error.detail


def test_create_needs_size(tmp_path: Path) -> None:
    assert "size" in refused({"create": True}).detail
    assert load_settings({"create": True, "size": "64 MiB"}).size == 64 << 20
    assert load_settings({"create": False}, toml(tmp_path, "create = true")).create is False


@pytest.mark.parametrize("text", ["port = ", "port = 1\nport = 2", "\xff"])
def test_a_file_that_is_no_toml(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(text.encode("latin-1"))
    assert str(path) in refused({}, str(path)).detail


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    assert "No such file" in refused({}, str(tmp_path / "none.toml")).detail


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    assert "larger than" in refused({}, toml(tmp_path, "#" * (1 << 20) + "\n")).detail


def test_defaults_are_the_engines() -> None:
    assert Settings().engine_options() == EngineOptions()
    assert Settings().default_durability is Durability.JOURNAL


def test_every_default_is_allowed_by_its_own_text() -> None:
    for name in Settings.model_fields:
        assert allowed_text(name)
        if default_text(name):
            assert getattr(load_settings({name: default_text(name), "size": "1GiB"}), name) == getattr(
                Settings(), name
            ) or (name == "size")


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("4096B", 4096),
        ("4KiB", 4096),
        ("64 MiB", 64 << 20),
        (" 1GiB ", 1 << 30),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes(text: object, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes
    assert parse_size(size_text(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "1G", "1GB", "1gib", "0x10", "1.5GiB", "1  KiB", "-1", -1, True, None, 1.0, "9" * 19 + "TiB", "٣"]
)
def test_no_sizes(text: object) -> None:
    with pytest.raises(ValueError, match="KiB"):
        parse_size(text)


def test_sizes_for_people() -> None:
    assert [rounded_size_text(size) for size in (0, 1023, 1536, 3 << 30)] == ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]
