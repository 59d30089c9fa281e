"""Every setting of every part, typed, in one place. Read once where a process starts, and passed down.

From `MLMODELSCOPE_<NAME>` variables, over a TOML file of the same names in lower case, over the defaults.
"""

import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from schemas.base import Request
from schemas.codec import explain
from schemas.errors import SettingsError

PREFIX = "MLMODELSCOPE_"
CONFIG_VARIABLE = "MLMODELSCOPE_CONFIG"
"""Names the TOML file. The only prefixed variable that is not a setting."""


class Settings(Request):
    """What a process of the platform can be told."""

    data_dir: Path = Path.home() / ".local/share/mlmodelscope"
    """Where the stack keeps its state: `nats/`, `store/`, `run/`. One stack at a time may use it."""
    cache_dir: Path = Path.home() / ".cache/mlmodelscope"
    """Where agents keep verified assets, by content. Shared by all agents of a machine."""
    bus_url: str = "nats://127.0.0.1:4222"
    """The NATS server. Several, separated by commas, for a cluster."""
    bus_connect_timeout_s: float = Field(30.0, gt=0)
    """How long a process waits for the bus when it starts before it gives up with an error."""
    bus_max_memory_bytes: int = Field(256 * 2**20, gt=0)
    """JetStream memory of the embedded server."""
    bus_max_file_bytes: int = Field(10 * 2**30, gt=0)
    """JetStream disk of the embedded server."""
    deduplication_window_s: float = Field(120.0, gt=0)
    """How long the bus itself drops a message with an id it has seen."""
    events_max_age_s: float = Field(7 * 86_400.0, gt=0)
    """How long events are kept on the bus; in the store they are kept for ever."""
    api_host: str = "127.0.0.1"
    """Address the API listens on. Beyond loopback it wants a token."""
    api_port: int = Field(8265, ge=0, le=65_535)
    """Port the API listens on; 0: any free one."""
    api_url: str | None = None
    """Where clients find the API. None: where a stack in `data_dir` says it listens, or `api_host:api_port`."""
    api_token: str | None = None
    """Bearer token that every request must carry, when set."""
    clickhouse_url: str | None = None
    """`clickhouse://user:password@host:port/database`. None: the embedded engine in `data_dir/store`."""
    asset_mirror: str | None = None
    """Directory or URL with an `index.json` of sha256 to path, searched before any other address."""
    asset_max_bytes: int = Field(20 * 2**30, gt=0)
    """An asset larger than this is refused."""
    image_max_pixels: int = Field(100_000_000, gt=0)
    """An image with more pixels is not decoded."""
    trusted_authors: tuple[str, ...] = ()
    """Authors whose models may be unpickled."""
    task_ack_wait_s: float = Field(10.0, gt=0)
    """A task whose agent has been silent for this long goes to another agent."""
    task_max_attempts: int = Field(3, ge=1)
    """After so many deliveries a task has failed."""
    heartbeat_s: float = Field(1.0, gt=0)
    """How often an agent renews its registration."""
    lease_s: float = Field(5.0, gt=0)
    """An agent that has not been heard of for this long is gone."""
    machine_lock: Path = Path("/tmp/mlmodelscope-measurement.lock")
    """Held while a task runs: two measurements on one machine would measure each other."""
    worker_memory_bytes: int | None = Field(None, gt=0)
    """Limit on a worker's address space; None: the machine's own."""
    ingest_batch_rows: int = Field(20_000, ge=1)
    """Rows gathered before they are inserted."""
    ingest_batch_wait_s: float = Field(0.05, gt=0)
    """How long ingest waits for a batch to fill."""
    log_level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""

    @field_validator("api_token", "asset_mirror", "clickhouse_url", "api_url", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return value or None

    @field_validator("trusted_authors", mode="before")
    @classmethod
    def _separated(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [name.strip() for name in value.split(",") if name.strip()]
        return value


def load_settings(environ: Mapping[str, str], toml_text: str = "", **overrides: Any) -> Settings:
    """Return the settings that `environ`, the text of a TOML file and `overrides` (strongest) give.

    Raises SettingsError: an unknown name, a wrong value, text that is not TOML.
    """
    try:
        values: dict[str, Any] = tomllib.loads(toml_text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"the settings file is not TOML: {error}") from error
    known = Settings.model_fields
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name == CONFIG_VARIABLE:
            continue
        field = name.removeprefix(PREFIX).lower()
        if field not in known:
            near = difflib.get_close_matches(field, known, n=3)
            meant = f"; did you mean {' or '.join(PREFIX + n.upper() for n in near)}?" if near else ""
            raise SettingsError(f"{name} is not a setting{meant} `mlmodelscope schema settings` lists them all")
        values[field] = text
    values.update({name: value for name, value in overrides.items() if value is not None})
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(explain(error)) from error


def to_environ(settings: Settings) -> dict[str, str]:
    """Return the variables that give a child process the same settings."""
    found = {}
    for name, value in settings.model_dump(mode="json", exclude_none=True).items():
        text = ",".join(value) if isinstance(value, list) else value if isinstance(value, str) else json.dumps(value)
        found[PREFIX + name.upper()] = text
    return found
