"""Trace levels and spans."""

from collections.abc import Sequence
from enum import IntEnum

from pydantic import model_validator

from schemas.base import Event, Identifier, check_same_length
from schemas.codec import register


class TraceLevel(IntEnum):
    """How deep a trace goes. A span is kept when its level is at most the level asked for."""

    NONE = 0
    APPLICATION = 1
    MODEL = 2
    FRAMEWORK = 3
    ML_LIBRARY = 4
    SYSTEM_LIBRARY = 5
    HARDWARE = 6
    FULL = 7


class Span(Event):
    """One interval of work. Times are of the process's monotonic clock, placed by its one anchor."""

    trace_id: str
    """32 hex digits, as in W3C trace context."""
    span_id: str
    """16 hex digits."""
    parent_id: str | None = None
    evaluation_id: Identifier
    task_id: Identifier | None = None
    level: TraceLevel
    name: str
    start_ns: int
    """Nanoseconds since the epoch: the process's wall-clock anchor plus its monotonic clock."""
    duration_ns: int
    agent: str = ""
    process: int = 0
    thread: int = 0
    stream: int = 0
    simulated: bool = False
    attributes: dict[str, str] = {}


@register("spans_recorded")
class SpansRecorded(Event):
    """A batch of spans of one task, by column: entry i of every column is span i.

    Columns, because half a million spans a second pass through here: a model a span would not.
    """

    evaluation_id: Identifier
    task_id: Identifier | None = None
    attempt: int = 1
    agent: str = ""
    process: int = 0
    trace_id: tuple[str, ...]
    span_id: tuple[str, ...]
    parent_id: tuple[str, ...]
    """Empty string for a root."""
    level: tuple[int, ...]
    name: tuple[str, ...]
    start_ns: tuple[int, ...]
    duration_ns: tuple[int, ...]
    thread: tuple[int, ...]
    stream: tuple[int, ...]
    simulated: tuple[bool, ...]
    attributes: tuple[dict[str, str], ...]

    @model_validator(mode="after")
    def _same_length(self) -> "SpansRecorded":
        check_same_length(self, SPAN_COLUMNS)
        return self

    @classmethod
    def of(cls, spans: Sequence[Span], *, attempt: int = 1) -> "SpansRecorded":
        """Return one batch of `spans`, which are of one task, one agent and one process."""
        first = spans[0]
        columns = {name: tuple(getattr(span, name) for span in spans) for name in SPAN_COLUMNS}
        columns["parent_id"] = tuple(span.parent_id or "" for span in spans)
        return cls(
            evaluation_id=first.evaluation_id,
            task_id=first.task_id,
            attempt=attempt,
            agent=first.agent,
            process=first.process,
            **columns,
        )


SPAN_COLUMNS = (
    "trace_id",
    "span_id",
    "parent_id",
    "level",
    "name",
    "start_ns",
    "duration_ns",
    "thread",
    "stream",
    "simulated",
    "attributes",
)
