"""Reading a source in a thread of its own, so that who waits for its bytes can stop at any moment."""

import queue
import threading
import time
from collections.abc import Iterator

from predictors.data.meter import Meter
from predictors.data.sources import Source, Stream
from predictors.errors import AssetUnreachableError, PredictorError

DEPTH = 16
"""Chunks read ahead of the writer."""
POLL_S = 0.05
JOIN_S = 1.0


class ReadAhead:
    """One pass over a source. `head` has no chunks of its own: iterate the object.

    The thread ends with the source, or when `close` is called: a connection is shut down, and a driver that
    cannot be interrupted ends at its own timeout, its bytes unused; it is a daemon, so it holds up no exit.
    """

    def __init__(self, source: Source, offset: int, *, stall_s: float, meter: Meter) -> None:
        self._source = source
        self._stall_s = stall_s
        self._meter = meter
        self._queue: queue.Queue[Stream | bytes | PredictorError | None] = queue.Queue(DEPTH)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(offset,), name=f"fetch {source.address}", daemon=True)
        self._thread.start()

    def head(self) -> Stream:
        """Wait until the source is open. Raises what `Source.open` does, and CancelledError."""
        item = self._next()
        if not isinstance(item, Stream):
            raise AssetUnreachableError(f"{self._source.address}: ended before it began")
        return item

    def __iter__(self) -> Iterator[bytes]:
        """Yield the chunks after `head`. Raises what reading a Source does, and CancelledError."""
        while isinstance(chunk := self._next(), bytes):
            yield chunk

    def close(self) -> None:
        """Stop reading. Idempotent; blocks for a second at most."""
        self._stop.set()
        self._source.abort()
        self._thread.join(JOIN_S)

    def _next(self) -> Stream | bytes | None:
        """Return the next item, looking up from the wait for cancellations; a source that stalls is unreachable."""
        last = time.monotonic() + self._stall_s
        while True:
            self._meter.check()
            try:
                item = self._queue.get(timeout=POLL_S)
            except queue.Empty:
                if time.monotonic() > last:
                    problem = f"{self._source.address}: silent for {self._stall_s:g} s"
                    raise AssetUnreachableError(problem) from None
                continue
            if isinstance(item, PredictorError):
                raise item
            return item

    def _run(self, offset: int) -> None:
        try:
            with self._source.open(offset) as stream:
                self._put(stream)
                for chunk in stream.chunks:
                    if not self._put(chunk):
                        return
            self._put(None)
        except PredictorError as error:
            self._put(error)
        except Exception as error:  # noqa: BLE001 - the thread's end must reach the reader, whatever it was
            self._put(AssetUnreachableError(f"{self._source.address}: {type(error).__name__}: {error}"))

    def _put(self, item: Stream | bytes | PredictorError | None) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=POLL_S)
                return True
            except queue.Full:
                continue
        return False
