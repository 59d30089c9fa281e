"""What is live: agents, manifests and the state of evaluations, in KV buckets."""

import math
from collections.abc import AsyncGenerator
from typing import TypeVar

import nats.js.errors
from pydantic import BaseModel

from bus.bucket import state_of, watch
from bus.connection import Bus
from bus.errors import BusNotReadyError, RefusedError, RevisionConflictError
from bus.keys import manifest_key, quote
from bus.streams import Bucket, bucket_stream, key_subject
from schemas.agents import AgentRegistered
from schemas.base import new_id
from schemas.codec import Envelope, decode, encode
from schemas.events import EvaluationState
from schemas.manifests import Kind, Manifest
from schemas.versions import parse_version

T = TypeVar("T", bound=BaseModel)

MANIFEST_BUCKETS: dict[Kind, Bucket] = {"model": "models", "framework": "frameworks", "dataset": "datasets"}
DELETION_STAYS_S = 60
"""How long the note that a key was deleted stays, for watchers to see."""
_NO_STREAM = 10059
_WRONG_SEQUENCE = (10071, 10164)


class Registry:
    """Reads and writes the buckets. Holds nothing, so any number may exist; for the bus's event loop.

    Every method waits out a server that restarts and ends in BusUnavailableError when it does not come back;
    BusNotReadyError when the buckets were never made; PayloadTooLargeError for an entry above the server's limit.
    Iterators never end by themselves; close them (`contextlib.aclosing`).
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def heartbeat(self, agent: AgentRegistered, lease_s: float) -> None:
        """Register the agent, or renew it, for `lease_s`, rounded up to the whole seconds that the server counts in."""
        headers = {"Nats-TTL": f"{max(1, math.ceil(lease_s))}s"}
        await self._put("predictors", quote(agent.agent_id), agent, headers)

    async def remove_agent(self, agent_id: str) -> None:
        """Take an agent out before its lease ends. One that is not there is no error."""
        await self._delete("predictors", quote(agent_id))

    async def agents(self) -> list[AgentRegistered]:
        """Return the agents whose lease holds, by id."""
        return _agents(await state_of(self._bus, "predictors"))

    async def put_manifest(self, kind: Kind, manifest: Manifest) -> bool:
        """Store a manifest under its name and version. Return False when just this was there already."""
        found = await self.get_manifest(kind, manifest.name, manifest.version)
        if found == manifest:
            return False
        await self._put(MANIFEST_BUCKETS[kind], manifest_key(manifest.name, manifest.version), manifest)
        return True

    async def get_manifest(self, kind: Kind, name: str, version: str) -> Manifest | None:
        """Return the manifest of exactly this name and version, or None."""
        found = await self._get(MANIFEST_BUCKETS[kind], manifest_key(name, version))
        return None if found is None else found[0].data  # type: ignore[return-value]

    async def manifests(self, kind: Kind) -> list[Manifest]:
        """Return every manifest of a kind, by name, oldest version first."""
        return _manifests(await state_of(self._bus, MANIFEST_BUCKETS[kind]))

    async def remove_manifest(self, kind: Kind, name: str, version: str) -> bool:
        """Delete a manifest. Return False when it was not there."""
        if await self.get_manifest(kind, name, version) is None:
            return False
        await self._delete(MANIFEST_BUCKETS[kind], manifest_key(name, version))
        return True

    async def create_evaluation(self, state: EvaluationState) -> bool:
        """Store the first state of an evaluation. Of all who try, exactly one gets True."""
        try:
            await self._put("evaluations", quote(state.evaluation_id), state, expected=0)
        except RevisionConflictError:
            return False
        return True

    async def get_evaluation(self, evaluation_id: str) -> tuple[EvaluationState, int] | None:
        """Return the state and its revision, or None."""
        found = await self._get("evaluations", quote(evaluation_id))
        return None if found is None else (found[0].data, found[1])  # type: ignore[return-value]

    async def update_evaluation(self, state: EvaluationState, revision: int) -> int:
        """Replace the state that has `revision` and return the new revision.

        Raises RevisionConflictError when the state was changed since `revision` was read.
        """
        return await self._put("evaluations", quote(state.evaluation_id), state, expected=revision)

    async def evaluations(self) -> list[EvaluationState]:
        """Return the state of every evaluation, oldest id first."""
        found = _of(await state_of(self._bus, "evaluations"), EvaluationState)
        return sorted(found, key=lambda state: state.evaluation_id)

    async def watch_evaluation(self, evaluation_id: str) -> AsyncGenerator[EvaluationState, None]:
        """Yield the state there is, if any, then each later one; of several at once only the last."""
        async for entries in watch(self._bus, "evaluations", quote(evaluation_id)):
            for state in _of(entries, EvaluationState):
                yield state

    async def watch_agents(self) -> AsyncGenerator[list[AgentRegistered], None]:
        """Yield all agents, now (perhaps none) and whenever one comes, goes, is renewed or loses its lease."""
        async for entries in watch(self._bus, "predictors"):
            yield _agents(entries)

    async def watch_manifests(self, kind: Kind) -> AsyncGenerator[list[Manifest], None]:
        """Yield all manifests of a kind, now (perhaps none) and after every change."""
        async for entries in watch(self._bus, MANIFEST_BUCKETS[kind]):
            yield _manifests(entries)

    async def _put(
        self,
        bucket: Bucket,
        key: str,
        data: BaseModel,
        headers: dict[str, str] | None = None,
        expected: int | None = None,
    ) -> int:
        """Store `data` and return its revision; with `expected`, only over that revision (0: over nothing)."""
        id_ = new_id()
        headers = dict(headers or {})
        if expected is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
        try:
            stored = await self._bus.store(key_subject(bucket, key), encode(data, id=id_), headers)
        except RefusedError as error:
            if error.code not in _WRONG_SEQUENCE:
                raise
            # It may be ours: stored, its acknowledgement lost with the connection, and sent again.
            found = await self._get(bucket, key)
            if found is not None and found[0].id == id_:
                return found[1]
            raise RevisionConflictError(f"{bucket} {key} was changed since revision {expected}") from error
        return int(stored.seq)

    async def _get(self, bucket: Bucket, key: str) -> tuple[Envelope[BaseModel], int] | None:
        subject = key_subject(bucket, key)
        try:
            found = await self._bus.retrying(
                lambda: self._bus.jetstream.get_last_msg(bucket_stream(bucket), subject), f"read {subject}"
            )
        except nats.js.errors.NotFoundError as error:
            if error.err_code == _NO_STREAM:
                raise BusNotReadyError(f"there is no bucket {bucket}: Bus.prepare makes it") from error
            return None
        # A deleted or expired key leaves a message without data until the marker goes.
        return (decode(found.data), found.seq or 0) if found.data else None

    async def _delete(self, bucket: Bucket, key: str) -> None:
        headers = {"KV-Operation": "PURGE", "Nats-Rollup": "sub", "Nats-TTL": f"{DELETION_STAYS_S}s"}
        await self._bus.store(key_subject(bucket, key), b"", headers)


def _of(entries: dict[str, BaseModel], kind: type[T]) -> list[T]:
    return [entry for entry in entries.values() if isinstance(entry, kind)]


def _agents(entries: dict[str, BaseModel]) -> list[AgentRegistered]:
    return sorted(_of(entries, AgentRegistered), key=lambda agent: agent.agent_id)


def _manifests(entries: dict[str, BaseModel]) -> list[Manifest]:
    found = [entry for entry in entries.values() if isinstance(entry, Manifest)]
    return sorted(found, key=lambda manifest: (manifest.name, parse_version(manifest.version)))
