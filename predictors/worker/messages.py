"""What an agent and its worker process say to each other: msgpack frames over a socket pair.

A frame is four bytes of length, big endian, and a map `{kind, ...}`. A descriptor of its own, and not
stdout: frameworks write to stdout whenever they like.
"""

import socket
import struct
from asyncio import IncompleteReadError, StreamReader
from typing import Annotated, Any, Literal

import msgpack
from pydantic import Field, TypeAdapter, ValidationError

from predictors.errors import WorkerCrashedError
from schemas.base import Event
from schemas.events import Phase
from schemas.failure import Failure
from schemas.result import Accuracy, ColdStart, Latency, PipelineRecord, Throughput, Validity
from schemas.scenario import Threads
from schemas.system import SystemState

MAX_FRAME_BYTES = 64 * 2**20
"""Longer ones are a sign of a broken peer: rows come in chunks far below this."""

_LENGTH = struct.Struct(">I")


class Ready(Event):
    """The worker has imported the framework (or could not)."""

    kind: Literal["ready"] = "ready"
    version: str = ""
    build: dict[str, str] = {}
    formats: tuple[str, ...] = ()
    unavailable: str | None = None
    """Exactly what is missing for the device asked for."""


class Job(Event):
    """One task for the worker. All files are there, verified."""

    kind: Literal["job"] = "job"
    task: bytes
    """The envelope of TaskAssigned."""
    files: dict[str, str]
    """Local path by sha256, with `/` appended for an archive's directory."""
    trusted: bool
    """The operator trusts the model's author."""
    max_pixels: int
    scratch: str
    """A directory for spilled inputs and logs."""


class Progress(Event):
    """Where the worker is."""

    kind: Literal["progress"] = "progress"
    phase: Phase
    done: int = 0
    total: int = 0
    message: str = ""


class Rows(Event):
    """A chunk of predictions or queries, by column."""

    kind: Literal["rows"] = "rows"
    of: Literal["predictions", "queries"]
    columns: dict[str, list[Any]]


class Finished(Event):
    """What the worker found out; its rows were sent before."""

    kind: Literal["finished"] = "finished"
    accuracy: Accuracy | None = None
    latency: Latency | None = None
    throughput: Throughput | None = None
    cold_start: ColdStart
    pipeline: PipelineRecord
    threads: Threads
    options: dict[str, bool | int | float | str] = {}
    scenario: dict[str, Any]
    load_generator: str = ""
    validity: Validity
    state_before: SystemState
    state_after: SystemState
    phases_ms: dict[str, float]


class Failed(Event):
    """The task cannot be done; the worker is not to be used again."""

    kind: Literal["failed"] = "failed"
    failure: Failure


Message = Ready | Job | Progress | Rows | Finished | Failed

_ADAPTER: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])


def pack(message: Message) -> bytes:
    """Return `message` as one frame."""
    if isinstance(message, Rows):  # hundreds of thousands of plain values: nothing in them to convert
        body = bytes(msgpack.packb({"kind": "rows", "of": message.of, "columns": message.columns}))
    else:
        body = bytes(msgpack.packb(message.model_dump(mode="python", exclude_none=True)))
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> Message:
    """Return the message in a frame's body. Raises ValueError for anything else."""
    try:
        raw = msgpack.unpackb(body, raw=False, strict_map_key=False)
        if isinstance(raw, dict) and raw.get("kind") == "rows":
            return Rows.model_construct(of=raw["of"], columns=raw["columns"])
        return _ADAPTER.validate_python(raw)
    except (ValidationError, ValueError, KeyError, msgpack.exceptions.UnpackException) as error:
        raise ValueError(f"not a message: {error}") from error


class Channel:
    """The worker's end. Blocking; for one thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, message: Message) -> None:
        """Send; blocks while the agent does not read. Raises OSError when it is gone."""
        self._socket.sendall(pack(message))

    def receive(self) -> Message | None:
        """Return the next message, or None when the agent has closed its end."""
        head = self._read(_LENGTH.size)
        if head is None:
            return None
        body = self._read(_LENGTH.unpack(head)[0])
        return None if body is None else unpack(body)

    def _read(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(min(count - len(parts), 2**20))
            if not part:
                return None
            parts += part
        return bytes(parts)


async def receive_frame(reader: StreamReader) -> Message | None:
    """Return the worker's next message, or None when it has closed its end.

    Raises WorkerCrashedError for bytes that are no message: the process is beyond trust.
    """
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > MAX_FRAME_BYTES:
            raise WorkerCrashedError(f"the worker sent a frame of {length} bytes", hint="this is a fault in the worker")
        return unpack(await reader.readexactly(length))
    except (IncompleteReadError, ConnectionError):
        return None
    except ValueError as error:
        raise WorkerCrashedError("the worker sent something that is no message", detail=str(error)) from error
