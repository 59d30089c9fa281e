"""The two kinds of schema: what people write (strict) and what parts tell each other (lenient)."""

import secrets
import time
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

IDENTIFIER_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"

Identifier = Annotated[str, StringConstraints(pattern=IDENTIFIER_PATTERN)]
"""An id that is also a NATS token, a KV key and a part of a URL."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$")]
"""The name of a model, a framework or a data set: lower case."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Request(BaseModel):
    """What a person writes: requests, manifests, settings. An unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Event(BaseModel):
    """What parts tell each other. Unknown fields are ignored, so that a newer sender is understood."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


def new_id(now_ms: int | None = None) -> str:
    """Return a fresh id of 32 hex digits that sorts by creation time (layout of UUID version 7)."""
    milliseconds = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    return f"{milliseconds:012x}7{secrets.randbits(12):03x}{0x8 | secrets.randbits(2):x}{secrets.randbits(60):015x}"


def check_same_length(batch: BaseModel, columns: tuple[str, ...]) -> None:
    """Raise ValueError unless all `columns` of a columnar batch are equally long."""
    lengths = {name: len(getattr(batch, name)) for name in columns}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns differ in length: {lengths}")
