"""The msgpack envelope in which everything travels, and the registry of what may be in it.

`{id, type, version, time, trace, data}`: `time` is nanoseconds since the epoch, `trace` is a W3C
traceparent or nil, and `data` is the model registered under `(type, version)`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgpack
from pydantic import BaseModel, ValidationError

from schemas.base import Event, new_id
from schemas.errors import SchemaError, UndecodableError

T = TypeVar("T", bound=BaseModel)

_BY_KEY: dict[tuple[str, int], type[BaseModel]] = {}
_BY_MODEL: dict[type[BaseModel], tuple[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Envelope(Generic[T]):
    """One decoded message."""

    id: str
    type: str
    version: int
    time_ns: int
    trace: str | None
    data: T


def register(type_: str, version: int = 1) -> Callable[[type[T]], type[T]]:
    """Class decorator: `data` of `(type_, version)` is this model. Each pair is taken once."""

    def add(model: type[T]) -> type[T]:
        if (type_, version) in _BY_KEY:
            raise SchemaError(f"{type_} version {version} is registered twice")
        _BY_KEY[type_, version] = model
        _BY_MODEL[model] = (type_, version)
        return model

    return add


def registered() -> dict[tuple[str, int], type[BaseModel]]:
    """Return every registered model by `(type, version)`."""
    return dict(_BY_KEY)


def type_of(model: type[BaseModel] | BaseModel) -> str:
    """Return the type name under which a model is registered."""
    cls = model if isinstance(model, type) else type(model)
    try:
        return _BY_MODEL[cls][0]
    except KeyError:
        raise SchemaError(f"{cls.__name__} is not registered with the codec") from None


def encode(data: BaseModel, *, id: str | None = None, trace: str | None = None, time_ns: int | None = None) -> bytes:
    """Return the envelope of `data` as msgpack. `id` defaults to a fresh one, `time_ns` to now."""
    type_ = type_of(data)
    return bytes(
        msgpack.packb(
            {
                "id": id or new_id(),
                "type": type_,
                "version": _BY_MODEL[type(data)][1],
                "time": time.time_ns() if time_ns is None else time_ns,
                "trace": trace,
                "data": data.model_dump(mode="python", exclude_none=True),
            },
            default=_plain,
        )
    )


def decode(payload: bytes) -> Envelope[BaseModel]:
    """Return the message in `payload`.

    Raises UndecodableError, with the reason, for anything that is not an envelope of a registered
    type and version with valid data.
    """
    try:
        raw = msgpack.unpackb(payload, raw=False, strict_map_key=False)
    except Exception as error:  # msgpack raises its own types, ValueError, UnicodeDecodeError, TypeError...
        raise UndecodableError(f"not msgpack: {error}") from error
    if not isinstance(raw, dict):
        raise UndecodableError(f"an envelope is a map, this is {type(raw).__name__}")
    key = (raw.get("type"), raw.get("version"))
    model = _BY_KEY.get(key) if isinstance(key[0], str) and isinstance(key[1], int) else None  # type: ignore[arg-type]
    if model is None:
        raise UndecodableError(f"unknown message type {key[0]!r} version {key[1]!r}")
    if not isinstance(raw.get("id"), str) or not isinstance(raw.get("time"), int):
        raise UndecodableError("an envelope has a string 'id' and an integer 'time' in nanoseconds")
    trace = raw.get("trace")
    if trace is not None and not isinstance(trace, str):
        raise UndecodableError("'trace' is a W3C traceparent string or nil")
    lenient = issubclass(model, Event)
    try:
        # The override reaches nested models too: a strict request inside an event is read leniently.
        data = model.model_validate(raw.get("data"), extra="ignore" if lenient else None)
    except ValidationError as error:
        raise UndecodableError(f"{key[0]} version {key[1]}: {explain(error)}") from error
    return Envelope(raw["id"], str(key[0]), int(raw["version"]), raw["time"], trace, data)


def explain(error: ValidationError) -> str:
    """Return a pydantic error as one line: `field.path: what is wrong; ...`."""
    parts = []
    for item in error.errors(include_url=False, include_input=False):
        where = ".".join(str(step) for step in item["loc"]) or "message"
        parts.append(f"{where}: {item['msg'].removeprefix('Value error, ')}")
    return "; ".join(parts)


def _plain(value: object) -> object:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} does not travel")
