"""What becomes of a message that cannot be used."""

from schemas.base import Event
from schemas.codec import register


@register("dead_letter")
class DeadLetter(Event):
    """A message taken out of its stream, whole, with the reason."""

    stream: str
    subject: str
    consumer: str
    sequence: int
    deliveries: int
    reason: str
    payload: bytes
    headers: dict[str, str] = {}
    time_ns: int
