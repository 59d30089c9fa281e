"""What the store gives back a row at a time, and the cursors that say where a page ended."""

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import datetime

from schemas.base import Event
from services.errors import InvalidCursorError


class PredictionRow(Event):
    """What one task said of one item."""

    task_id: str
    attempt: int
    input_index: int
    input_id: str
    label: str
    classes: tuple[int, ...]
    scores: tuple[float, ...]
    names: tuple[str, ...]
    correct_top1: bool
    correct_top5: bool
    error: str
    """Why the item could not be read; empty: it could."""
    output_digest: str


class QueryRow(Event):
    """One query of a measurement."""

    task_id: str
    attempt: int
    warmup: bool
    query_index: int
    scheduled_ns: int
    issued_ns: int
    completed_ns: int
    items: int
    latency_ms: float
    """From when it was due to its answer."""


class ManifestRow(Event):
    """A manifest as it was last registered."""

    kind: str
    name: str
    version: str
    removed: bool
    """Taken out of the registry since."""
    registered: datetime
    digest: str
    user: str
    body: str
    """The manifest as JSON."""


def encode_cursor(*key: str | int) -> str:
    """Return a cursor for the page after the row with this key."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None, first: Sequence[str | int]) -> list[str | int]:
    """Return the key in `cursor`, or `first`, which comes before every row, when there is no cursor.

    Raises InvalidCursorError unless the key has the types of `first`.
    """
    if cursor is None:
        return list(first)
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError) as error:
        raise InvalidCursorError(f"{cursor!r} is not a cursor of this listing") from error
    if not isinstance(key, list) or [type(part) for part in key] != [type(part) for part in first]:
        raise InvalidCursorError(f"{cursor!r} is not a cursor of this listing")
    if any(isinstance(part, int) and not -(2**63) <= part < 2**63 for part in key):
        raise InvalidCursorError(f"{cursor!r} is not a cursor of this listing")
    return key
