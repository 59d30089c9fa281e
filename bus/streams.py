"""Definitions of the streams and of the KV buckets.

A bucket is a stream too (`KV_<bucket>`, subjects `$KV.<bucket>.<key>`), defined here as any NATS client defines it:
https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-8.md
"""

import logging
from typing import Literal

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from bus import subjects
from bus.errors import BusNotReadyError
from schemas.settings import Settings

log = logging.getLogger(__name__)

EVALUATIONS = "EVALUATIONS"
TASKS = "TASKS"
EVENTS = "EVENTS"
DEAD = "DEAD"

Bucket = Literal["predictors", "models", "frameworks", "datasets", "evaluations"]
BUCKETS: tuple[Bucket, ...] = ("predictors", "models", "frameworks", "datasets", "evaluations")

MARKER_TTL_S = 60.0
"""How long the server's own note that a lease ended stays, for watchers to see."""
EVENTS_SHARE = 0.75
"""Of the server's disk. Beyond it the oldest events go, so that requests and tasks always find room."""
DEAD_SHARE = 0.05

_STREAM_EXISTS = 10058
_NO_STORAGE = 10047
_STORAGE_HINT = (
    ": its JetStream storage is smaller than MLMODELSCOPE_BUS_MAX_FILE_BYTES; set that to what the server has"
)


def bucket_stream(bucket: Bucket) -> str:
    """Return the name of the stream behind a bucket."""
    return f"KV_{bucket}"


def key_subject(bucket: Bucket, key: str) -> str:
    """Return the subject under which a quoted key, or a wildcard, is stored."""
    return f"$KV.{bucket}.{key}"


def definitions(settings: Settings) -> list[StreamConfig]:
    """Return every stream and every bucket's stream."""
    return [*_queues(settings), *_kept(settings), *(_bucket(name) for name in BUCKETS)]


async def define(jetstream: JetStreamContext, config: StreamConfig) -> None:
    """Create a stream, or make the one there is so. Raises BusNotReadyError when the server refuses.

    A change that the server refuses for want of storage is logged, and the stream stays as it was.
    """
    try:
        try:
            await jetstream.add_stream(config)
        except nats.js.errors.APIError as error:
            # A stream that is there, and reserves much, is refused for want of room before it is found to be there.
            if error.err_code not in (_STREAM_EXISTS, _NO_STORAGE):
                raise
            await _update(jetstream, config, error)
    except nats.js.errors.ServiceUnavailableError:
        raise  # transient: the caller asks again
    except nats.js.errors.APIError as error:
        hint = "" if error.err_code != _NO_STORAGE else _STORAGE_HINT
        raise BusNotReadyError(f"the server refuses stream {config.name}: {error.description}{hint}") from error


async def _update(jetstream: JetStreamContext, config: StreamConfig, refusal: nats.js.errors.APIError) -> None:
    """Make a stream that is there as `config` says. Raises `refusal` when it is not there after all."""
    try:
        await jetstream.update_stream(config)
    except nats.js.errors.NotFoundError:
        raise refusal from None
    except nats.js.errors.ServerError as error:
        if error.err_code != _NO_STORAGE:
            raise
        # The server's limit was lowered below what its streams reserve: it keeps to it, and takes no change to any.
        log.warning(
            "stream %s stays as it was: the server's storage limit is below what its streams reserve", config.name
        )


def _queues(settings: Settings) -> list[StreamConfig]:
    """Return the work queues: what is acknowledged leaves."""
    window_s = settings.deduplication_window_s
    return [
        StreamConfig(
            name=EVALUATIONS,
            description="Requests, each taken by one scheduler",
            subjects=[subjects.evaluation_requested(), subjects.cancellation_requested()],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            duplicate_window=window_s,
        ),
        StreamConfig(
            name=TASKS,
            description="Tasks, each taken by one agent",
            subjects=[subjects.all_tasks()],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            duplicate_window=window_s,
        ),
    ]


def _kept(settings: Settings) -> list[StreamConfig]:
    """Return the streams that keep what they have until it is old, or until there is too much of it."""
    window_s = settings.deduplication_window_s
    return [
        StreamConfig(
            name=EVENTS,
            description="What happened to every evaluation",
            subjects=[subjects.all_events()],
            retention=RetentionPolicy.LIMITS,
            discard=DiscardPolicy.OLD,
            storage=StorageType.FILE,
            duplicate_window=min(window_s, settings.events_max_age_s),
            max_age=settings.events_max_age_s,
            max_bytes=int(settings.bus_max_file_bytes * EVENTS_SHARE),
            allow_direct=True,
        ),
        StreamConfig(
            name=DEAD,
            description="Messages that could not be used, with the reason",
            subjects=[subjects.all_dead()],
            retention=RetentionPolicy.LIMITS,
            discard=DiscardPolicy.OLD,
            storage=StorageType.FILE,
            duplicate_window=window_s,
            max_bytes=int(settings.bus_max_file_bytes * DEAD_SHARE),
            allow_direct=True,
        ),
    ]


def _bucket(name: Bucket) -> StreamConfig:
    leased = name == "predictors"
    return StreamConfig(
        name=bucket_stream(name),
        subjects=[key_subject(name, ">")],
        storage=StorageType.FILE,
        max_msgs_per_subject=1,
        discard=DiscardPolicy.NEW,
        allow_rollup_hdrs=True,
        allow_direct=True,
        deny_delete=True,
        duplicate_window=120.0,
        allow_msg_ttl=True,
        subject_delete_marker_ttl=MARKER_TTL_S if leased else None,
    )
