"""Batches of events into the store: retried while it is away, poison taken out, the rest inserted."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from bus.consumers import Received
from bus.errors import BusError
from schemas.base import new_id
from services.errors import StoreDataError, StoreError
from services.rows import TABLES, TableRows, count_rows, merged
from services.store import Store

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A message in hand and the rows it adds."""

    received: Received
    rows: TableRows


class StoppedError(Exception):
    """Asked to stop while the store was away: the messages in hand go back."""


class Inserter:
    """Inserts batches, one at a time. A batch is whole in the store when `insert` returns, poison left out."""

    def __init__(self, store: Store, stop: asyncio.Event) -> None:
        self._store = store
        self._stop = stop

    async def insert(self, batch: Sequence[Pending]) -> list[Pending]:
        """Insert all rows of `batch`, table by table, and return the messages that are in: all but poison.

        Poison is dead-lettered with the store's reason. While the store is away this tries for ever, each time
        under the same token, so that an insert which succeeded unheard is not done twice. Raises StoppedError
        when it is away and `stop` is set.
        """
        good = list(batch)
        for table in TABLES:
            refused = await self._insert_table(table, [item for item in good if table in item.rows])
            good = [item for item in good if item not in refused]
        return good

    async def _insert_table(self, table: str, items: list[Pending]) -> set[Pending]:
        """Return the messages whose rows the table does not take, found by halving."""
        if not items:
            return set()
        try:
            await self._insert_rows(table, items)
        except StoreDataError as error:
            if len(items) == 1:
                await bury(items[0].received, f"{table}: {error}")
                return set(items)
            middle = len(items) // 2
            first = await self._insert_table(table, items[:middle])
            return first | await self._insert_table(table, items[middle:])
        return set()

    async def _insert_rows(self, table: str, items: list[Pending]) -> None:
        token = new_id()
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await asyncio.to_thread(self._blocking_insert, table, items, token)
            except StoreDataError:
                raise
            except StoreError as error:
                # Also an error that is not transient (a wrong password, a dropped table): a person can put it
                # right, and until then nothing may be lost.
                waiting = sum(count_rows(item.rows) for item in items)
                log.warning("the store takes no rows, %d wait, next try in %.1f s: %s", waiting, pause_s, error)
            else:
                if pause_s > FIRST_PAUSE_S:
                    log.warning("the store takes rows again")
                return
            if await _set_within(self._stop, pause_s):
                raise StoppedError
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _blocking_insert(self, table: str, items: list[Pending], token: str) -> None:
        self._store.insert(table, merged([item.rows for item in items], table), token=token)


async def bury(received: Received, reason: str) -> None:
    """Dead-letter a message. With the bus away it stays in its stream and comes again."""
    log.error("message %d (%s) is put aside: %s", received.sequence, received.subject, reason)
    try:
        await received.dead_letter(reason)
    except BusError as error:
        log.warning("message %d could not be put aside and will come again: %s", received.sequence, error)


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
