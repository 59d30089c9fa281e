"""Dead letters: a message that cannot be used, kept whole with the reason, for a person to look at."""

import time

from nats.aio.msg import Msg

from bus import subjects
from bus.connection import Bus
from bus.errors import PayloadTooLargeError
from schemas.codec import encode
from schemas.dead import DeadLetter

MAX_REASON = 4000
"""Characters."""
_MARGIN = 1024


async def bury(bus: Bus, message: Msg, reason: str) -> None:
    """Store a dead letter for `message` and return when the server has it. Raises BusUnavailableError.

    A payload that leaves no room for the letter's own fields is cut, and the reason says so. Burying a message twice
    within the deduplication window leaves one letter.
    """
    meta = message.metadata
    letter = DeadLetter(
        stream=meta.stream,
        subject=message.subject,
        consumer=meta.consumer,
        sequence=meta.sequence.stream,
        deliveries=meta.num_delivered,
        reason=reason[:MAX_REASON],
        payload=bytes(message.data),
        headers=dict(message.headers or {}),
        time_ns=time.time_ns(),
    )
    subject = subjects.dead(meta.stream)
    id_ = f"dead-{meta.stream}-{meta.consumer}-{meta.sequence.stream}-{int(meta.timestamp.timestamp() * 1e6)}"
    headers = {"Nats-Msg-Id": id_}
    encoded = encode(letter, id=id_)
    try:
        bus.check_size(subject, encoded, headers)
    except PayloadTooLargeError as error:
        encoded = encode(_cut(letter, error.size - error.limit + _MARGIN), id=id_)
    await bus.store(subject, encoded, headers)


def _cut(letter: DeadLetter, excess: int) -> DeadLetter:
    """Return the letter, smaller by at least `excess` bytes."""
    kept = max(len(letter.payload) - excess, 0)
    size = len(letter.payload)
    return letter.model_copy(
        update={
            "payload": letter.payload[:kept],
            "headers": letter.headers if kept else {},
            "reason": f"{letter.reason} (kept are the first {kept} of {size} bytes: more does not fit)",
        }
    )
