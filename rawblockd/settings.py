"""The daemon's settings: their names, defaults and ranges. Where they come from is ``settings_sources``.

Every field is a flag of ``serve`` (``--max-connections``), an environment variable
(``RAWBLOCKD_MAX_CONNECTIONS``) and a key of the TOML file (``max_connections``).
"""

from __future__ import annotations

import enum
import re
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from api.doors.selection import ALLOWED as DOORS_ALLOWED
from api.doors.selection import parse_doors
from rawblockd.sizes import parse_size
from storage.entries import Durability
from storage.options import AdmissionPolicy, EngineOptions, EvictionPolicy

ENVIRONMENT_PREFIX = "RAWBLOCKD_"


class LogLevel(enum.StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(enum.StrEnum):
    CONSOLE = "console"
    JSON = "json"


class IoEngine(enum.StrEnum):
    AUTO = "auto"
    URING = "uring"
    THREADS = "threads"


def _no_boolean(value: object) -> object:
    # bool is an int to Python: "port = true" in a file would pass for port 1.
    if isinstance(value, bool):
        raise ValueError("a number, not true or false")
    return value


def _not_empty(value: str) -> str:
    if not value or "\0" in value:
        raise ValueError("a text that is not empty")
    return value


Whole = Annotated[int, BeforeValidator(_no_boolean)]
Number = Annotated[float, BeforeValidator(_no_boolean), Field(allow_inf_nan=False)]
Size = Annotated[int, BeforeValidator(parse_size)]


def _file_mode(value: object) -> object:
    # In TOML a mode may be written 0o660, which is a number.
    text = f"{value:04o}" if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else value
    if not isinstance(text, str) or re.fullmatch(r"0?[0-7]{3}", text) is None:
        raise ValueError("three octal digits")
    return text


def _host_names(value: str) -> str:
    names = [name.strip().lower().rstrip(".") for name in value.split(",")]
    if not all(re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", name) for name in names):
        raise ValueError("host names")
    return ",".join(names)


def _doors(value: str) -> str:
    parse_doors(value)
    return value


Doors = Annotated[str, BeforeValidator(lambda value: _doors(value) if isinstance(value, str) else value)]
FileMode = Annotated[str, BeforeValidator(_file_mode)]
HostNames = Annotated[str, BeforeValidator(lambda value: _host_names(value) if isinstance(value, str) else value)]
Text = Annotated[str, BeforeValidator(lambda value: _not_empty(value) if isinstance(value, str) else value)]

_ENGINE = EngineOptions()


class Settings(BaseSettings):
    """One consistent set of settings. Times are seconds, sizes bytes."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, env_prefix=ENVIRONMENT_PREFIX)

    device: Text | None = Field(None, description="Block device or preallocated file that holds the cache.")
    create: bool = Field(False, description="Make and format the file if it is missing; needs `size`.")
    size: Size | None = Field(None, ge=1 << 20, description="Size of the file that `create` makes.")
    smallest_slot: Size | None = Field(
        None,
        ge=4096,
        le=1 << 26,
        description="Smallest slot of the file that `create` makes; by default from its size.",
    )
    host: Text = Field("127.0.0.1", description="Address to listen on.")
    port: Whole = Field(8790, ge=0, le=65535, description="TCP port to listen on; 0 takes a free one and logs it.")
    uds: Text | None = Field(
        None, description="Path of a Unix socket to listen on instead of `host` and `port`; with `tcp`, beside them."
    )
    tcp: bool | None = Field(
        None, description="Whether to listen on `host` and `port`; by default that is so unless `uds` is set."
    )
    uds_mode: FileMode = Field(
        "0660",
        description="File mode of the Unix sockets: who may write may connect.",
        json_schema_extra={"allowed": "a file mode of three octal digits, as 0660"},
    )
    uds_group: Text | None = Field(None, description="Group of the Unix sockets, by name or number.")
    admin_host: Text = Field("127.0.0.1", description="Address of the listener for operators.")
    admin_port: Whole | None = Field(
        None,
        ge=0,
        le=65535,
        description="TCP port of a listener for operators, which then serves all control routes and the metrics in "
        "place of the main one; 0 takes a free one and logs it.",
    )
    admin_uds: Text | None = Field(None, description="Path of a Unix socket for operators, as `admin_port`.")

    token_file: Text | None = Field(
        None, description="File with the access tokens; read again at SIGHUP. Without it, whoever connects may do all."
    )
    allow_open_access: bool = Field(
        False, description="Listen on an address that others can reach although there are no tokens."
    )
    metrics_open: bool = Field(False, description="Serve `/metrics` without a token although there are tokens.")
    allowed_hosts: HostNames | None = Field(
        None,
        description="Names by which the daemon is known, with commas between; requests that name another are refused.",
        json_schema_extra={"allowed": "host names with commas between"},
    )
    tls_certificate: Text | None = Field(
        None, description="PEM file with the certificate chain: TCP listeners then speak TLS. Read again at SIGHUP."
    )
    tls_key: Text | None = Field(
        None, description="PEM file with the key of `tls_certificate`; by default it is in the same file."
    )
    tls_client_ca: Text | None = Field(
        None, description="PEM file of authorities: TLS clients must have a certificate of one of them."
    )

    log_level: LogLevel = Field(LogLevel.INFO, description="Least severe level that is logged; read again at SIGHUP.")
    log_format: LogFormat = Field(LogFormat.CONSOLE, description="Lines for people, or one JSON object a line.")

    io_engine: IoEngine = Field(IoEngine.AUTO, description="How device I/O runs; `auto` takes io_uring where it works.")
    allow_buffered_io: bool = Field(False, description="Go on without O_DIRECT where it is refused.")
    buffer_bytes: Size = Field(
        _ENGINE.buffer_bytes,
        ge=16 << 20,
        le=1 << 40,
        description="Memory for values between requests and device. What a client has yet to read is copied beside it, "
        "at most 3 MiB for each connection, 6 MiB of a batch in JSON.",
    )
    wait_timeout_seconds: Number = Field(
        _ENGINE.wait_timeout_seconds,
        ge=0,
        le=600,
        description="How long a request waits for a buffer, a slot or the journal before 503.",
    )
    eviction: EvictionPolicy = Field(_ENGINE.eviction, description="Which entries give way when the device is full.")
    admission: AdmissionPolicy = Field(
        _ENGINE.admission,
        description="Which new keys a full device takes: all, or those that are put for the second time.",
    )
    write_budget_bytes_per_second: Size = Field(
        _ENGINE.write_budget_bytes_per_second,
        ge=0,
        le=1 << 40,
        description="What puts may write to the device in a second, to spare it; 0 sets no limit.",
    )
    default_durability: Durability = Field(
        Durability.JOURNAL, description="Level at which a mutation is acknowledged when the client names none."
    )
    checkpoint_interval_seconds: Number = Field(
        _ENGINE.checkpoint_interval_seconds,
        ge=1,
        le=86400,
        description="Age at which the newest checkpoint is renewed.",
    )
    flush_interval_seconds: Number = Field(
        _ENGINE.flush_interval_seconds,
        ge=0.01,
        le=60,
        description="How long a written journal block may stay unflushed: what a power loss can take.",
    )
    expiry_interval_seconds: Number = Field(
        _ENGINE.expiry_interval_seconds, ge=0.05, le=3600, description="How often expired entries are looked for."
    )

    event_buffer_bytes: Size = Field(
        _ENGINE.event_buffer_bytes,
        ge=64 << 10,
        le=1 << 40,
        description="Memory for the last events, from which slow clients and those that come back are served.",
    )
    keys_in_memory: bool = Field(
        False, description="Keep the keys of entries in memory, about 300 B each, so that listings need not read them."
    )
    scrub_bytes_per_second: Size = Field(
        _ENGINE.scrub_bytes_per_second,
        ge=0,
        le=1 << 40,
        description="Rate of background verification of everything on the device; 0 turns it off.",
    )

    max_skipped_ratio: Number = Field(
        _ENGINE.max_skipped_ratio,
        ge=0,
        le=1,
        description="Share of damaged entries above which the start is refused (with `max_skipped_floor`).",
    )
    max_skipped_floor: Whole = Field(
        _ENGINE.max_skipped_floor,
        ge=0,
        le=1 << 40,
        description="Number of damaged entries up to which the start is never refused.",
    )
    accept_loss: bool = Field(False, description="Start although more is damaged than the two settings above allow.")

    doors: Doors | None = Field(
        None,
        description="Build caches to serve, each below its own path with its own namespace (see `build-caches.md`).",
        json_schema_extra={"allowed": DOORS_ALLOWED},
    )

    body_timeout_seconds: Number = Field(
        30.0, ge=0.1, le=3600, description="Longest silence of a client that sends a request."
    )
    send_timeout_seconds: Number = Field(
        30.0, ge=0.1, le=3600, description="Longest time a client may take to accept a piece of the answer."
    )
    keep_alive_seconds: Whole = Field(
        75, ge=1, le=3600, description="How long a connection may stay idle between two requests."
    )
    max_connections: Whole = Field(
        1024, ge=1, le=65536, description="Connections served at once; one more is answered 503."
    )
    drain_timeout_seconds: Number = Field(
        30.0, ge=0, le=3600, description="How long requests may go on after SIGTERM before they are cut off."
    )

    @model_validator(mode="after")
    def _create_needs_size(self) -> Settings:
        if self.create and self.size is None:
            raise ValueError("create needs size: how large is the file to be?")
        return self

    @model_validator(mode="after")
    def _key_needs_certificate(self) -> Settings:
        for name in ("tls_key", "tls_client_ca"):
            if getattr(self, name) is not None and self.tls_certificate is None:
                raise ValueError(f"{name} needs tls_certificate: which certificate is it to go with?")
        return self

    def engine_options(self) -> EngineOptions:
        return EngineOptions(
            checkpoint_interval_seconds=self.checkpoint_interval_seconds,
            flush_interval_seconds=self.flush_interval_seconds,
            expiry_interval_seconds=self.expiry_interval_seconds,
            eviction=self.eviction,
            admission=self.admission,
            write_budget_bytes_per_second=self.write_budget_bytes_per_second,
            buffer_bytes=self.buffer_bytes,
            wait_timeout_seconds=self.wait_timeout_seconds,
            max_skipped_ratio=self.max_skipped_ratio,
            max_skipped_floor=self.max_skipped_floor,
            accept_loss=self.accept_loss,
            scrub_bytes_per_second=self.scrub_bytes_per_second,
            keys_in_memory=self.keys_in_memory,
            event_buffer_bytes=self.event_buffer_bytes,
        )
