"""The HTTP API over a real bus, a real scheduler, a real ingest and a real store."""

import asyncio
import contextlib
import json
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio.from_thread
import httpx
import pytest
from pydantic import BaseModel

from bus import subjects
from bus.connection import Bus
from bus.consumers import Consumer
from bus.registry import Registry
from bus.server import NatsServer
from bus.streams import TASKS
from mlmodelscope import Client, ScopeError, ServerUnreachableError
from schemas.agents import AgentRegistered, Hardware, Stack
from schemas.base import new_id
from schemas.errors import SettingsError
from schemas.events import PredictionsRecorded, QueriesRecorded, TaskCompleted, TaskFailed, TaskStarted
from schemas.failure import Failure
from schemas.result import Evaluation
from schemas.settings import Settings
from schemas.system import SystemDescribed
from schemas.tasks import TaskAssigned
from services import ingest
from services.api import service
from services.errors import ServiceError
from services.scheduler import service as scheduler
from services.store import Store, open_store
from tests.conftest import REPOSITORY
from tests.golden.examples import RECORD, SYSTEM

DEADLINE_S = 15.0
T = TypeVar("T")
STACK = Stack(architecture="amd64", device="cpu", framework="null", version="1.0.0")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
YAML = {"Content-Type": "application/yaml"}


def announced(settings: Settings) -> str:
    """Wait for the API to say where it listens."""
    deadline = time.monotonic() + DEADLINE_S
    path = settings.data_dir / "run" / "api.json"
    while not path.exists():
        assert time.monotonic() < deadline, "the API did not come up"
        time.sleep(0.01)
    return str(json.loads(path.read_text())["url"])


class Agent:
    """An agent as the bus sees one. It does what the test says."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def __aenter__(self) -> "Agent":
        self.bus = await Bus.connect(self._settings.bus_url, name="test-agent")
        await self.bus.prepare(self._settings)
        entry = AgentRegistered(
            agent_id="null-1",
            hostname="h",
            pid=1,
            stack=STACK,
            formats=("null",),
            hardware=Hardware(system_id=SYSTEM.system_id),
            started_ns=0,
            heartbeat_ns=0,
        )
        await Registry(self.bus).heartbeat(entry, 600)
        await self.bus.publish_event(SystemDescribed(agent_id="null-1", system=SYSTEM))
        self._tasks = Consumer(
            self.bus,
            stream=TASKS,
            durable=subjects.stack_consumer(STACK),
            filters=[subjects.task(STACK)],
            ack_wait_s=60,
            max_attempts=3,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()
        await self.bus.close()

    async def take(self) -> tuple[TaskAssigned, str | None]:
        """Take the next task and say that it is begun. Returns it with its trace context."""
        (received,) = await self._tasks.fetch(1, DEADLINE_S)
        assert received.envelope is not None
        task = received.envelope.data
        assert isinstance(task, TaskAssigned)
        await received.ack()
        await self.tell(
            TaskStarted(
                **self._of(task), agent_id="null-1", stack=STACK, system_id=SYSTEM.system_id, batch_size=1, time_ns=1
            )
        )
        return task, received.envelope.trace

    async def complete(self, task: TaskAssigned, items: int = 3) -> None:
        """Report predictions, queries and the record."""
        index = tuple(range(items))
        await self.tell(
            PredictionsRecorded(
                **self._of(task),
                input_index=index,
                input_id=tuple(f"i{i}" for i in index),
                label=tuple("0" for _ in index),
                classes=tuple((i % 2,) for i in index),
                scores=tuple((1.0,) for _ in index),
                names=tuple(("zero",) for _ in index),
                correct_top1=tuple(i % 2 == 0 for i in index),
                correct_top5=tuple(i % 2 == 0 for i in index),
                error=tuple("" for _ in index),
                output_digest=tuple("d" for _ in index),
            )
        )
        await self.tell(
            QueriesRecorded(
                **self._of(task),
                query_index=index,
                warmup=tuple(False for _ in index),
                scheduled_ns=index,
                issued_ns=index,
                completed_ns=tuple(i + 2_000_000 for i in index),
                items=tuple(1 for _ in index),
            )
        )
        await self.tell(
            TaskCompleted(
                **self._of(task), agent_id="null-1", system_id=SYSTEM.system_id, record=RECORD, time_ns=time.time_ns()
            )
        )

    async def fail(self, task: TaskAssigned) -> None:
        """Report that it failed."""
        failure = Failure(code="predictor_failed", message="it did")
        await self.tell(TaskFailed(**self._of(task), failure=failure, time_ns=time.time_ns()))

    async def tell(self, event: BaseModel) -> None:
        await self.bus.publish_event(event)

    @staticmethod
    def _of(task: TaskAssigned) -> dict[str, Any]:
        return {"evaluation_id": task.evaluation_id, "task_id": task.task_id, "attempt": 1}


@dataclass
class Stage:
    """Everything, and a way into its event loop."""

    settings: Settings
    http: httpx.Client
    server: NatsServer
    store: Store
    _agent: Agent
    _portal: anyio.from_thread.BlockingPortal

    def take(self) -> tuple[TaskAssigned, str | None]:
        return self.call(self._agent.take)

    def complete(self, task: TaskAssigned, items: int = 3) -> None:
        self.call(self._agent.complete, task, items)

    def fail(self, task: TaskAssigned) -> None:
        self.call(self._agent.fail, task)

    def call(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        return self._portal.call(work, *arguments)

    def ask(self, **fields: Any) -> str:
        """Ask for an evaluation and return its id."""
        answer = self.http.post("/api/v1/evaluations", json={"model": "null", "dataset": "digits", **fields})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["evaluation_id"])

    def until(self, evaluation_id: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the evaluation is so."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            answer = self.http.get(f"/api/v1/evaluations/{evaluation_id}")
            if answer.status_code == 200 and holds(answer.json()):
                return dict(answer.json())
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.02)

    def done(self, evaluation_id: str) -> dict[str, Any]:
        """Wait until the evaluation and its results are in the store."""

        def settled(found: dict[str, Any]) -> bool:
            return found["status"] == "completed" and all(task["accuracy"] for task in found["tasks"])

        return self.until(evaluation_id, settled)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One stack for the module, in an event loop of its own."""
    directory = tmp_path_factory.mktemp("api")
    with anyio.from_thread.start_blocking_portal() as portal, contextlib.ExitStack() as stack:
        server = stack.enter_context(portal.wrap_async_context_manager(NatsServer(directory / "nats")))
        settings = Settings(data_dir=directory, bus_url=server.url, api_port=0)
        store = open_store(settings)
        stack.callback(store.close)
        stop = portal.call(_event)
        services = [
            portal.start_task_soon(scheduler.run, settings, stop),
            portal.start_task_soon(ingest.run, settings, stop, store),
            portal.start_task_soon(service.run, settings, stop, store),
        ]
        agent = stack.enter_context(portal.wrap_async_context_manager(Agent(settings)))
        http = stack.enter_context(httpx.Client(base_url=announced(settings), trust_env=False, timeout=DEADLINE_S))
        found = Stage(settings, http, server, store, agent, portal)
        deadline = time.monotonic() + DEADLINE_S
        while not {"null", "digits-cnn"} <= {one["name"] for one in http.get("/api/v1/models").json()["items"]}:
            assert time.monotonic() < deadline, "the scheduler did not register the shipped models"
            time.sleep(0.02)
        yield found
        portal.call(_set, stop)
        for one in services:
            one.result(DEADLINE_S)


async def _event() -> asyncio.Event:
    return asyncio.Event()


async def _set(event: asyncio.Event) -> None:
    event.set()


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The body of an answer, which must be this problem."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = dict(answer.json())
    assert body["status"] == status
    assert body["code"] == code
    assert body["title"]
    assert body["detail"]
    return body


def sent(lines: Iterator[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The events of a text/event-stream: id, type, data."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield fields["id"], fields["event"], json.loads(fields["data"])
            fields = {}


def test_an_evaluation_from_request_to_result(stage: Stage) -> None:
    """Asked for over HTTP, done by an agent, read back: one JSON, the schema's own, accuracies at their place."""
    answer = stage.http.post(
        "/api/v1/evaluations",
        json={"model": "null ^1", "dataset": "digits", "batch_size": 8, "user": "ann"},
        headers={"traceparent": TRACE},
    )
    assert answer.status_code == 202
    identifier, links = answer.json()["evaluation_id"], answer.json()["links"]
    assert answer.headers["location"] == links["self"] == f"/api/v1/evaluations/{identifier}"
    pending = stage.http.get(links["self"]).json()
    assert (pending["status"], pending["model"]) == ("pending", "null")
    task, trace = stage.take()
    assert trace == TRACE
    assert task.request.batch_size == 8
    running = stage.until(identifier, lambda found: found["status"] == "running")
    assert running["model_version"] == task.model.version
    stage.complete(task)
    found = stage.done(identifier)
    assert found["tasks"][0]["accuracy"]["top1"]["value"] == 0.57
    assert found["tasks"][0]["record"]["pipeline"]["digest"] == RECORD.pipeline.digest
    assert found["request"]["user"] == "ann"
    assert Evaluation.model_validate(found).model_dump(mode="json") == found
    predictions = stage.http.get(links["predictions"]).json()
    assert [row["input_id"] for row in predictions["items"]] == ["i0", "i1", "i2"]
    wrong = stage.http.get(links["predictions"], params={"only_wrong": "true"}).json()["items"]
    assert [row["input_id"] for row in wrong] == ["i1"]
    assert [row["latency_ms"] for row in stage.http.get(links["queries"]).json()["items"]] == [2.0, 2.0, 2.0]
    assert stage.http.get(links["spans"]).json() == {"items": [], "next_cursor": None}


def test_pages_follow_each_other_without_gap_or_repetition(stage: Stage) -> None:
    """By cursor, for rows and for evaluations."""
    asked = [stage.ask(user="pager") for _ in range(3)]
    for _ in asked:
        task, _ = stage.take()
        stage.complete(task, items=5)
    for one in asked:
        stage.done(one)
    for path, total, size in (
        (f"/api/v1/evaluations/{asked[0]}/predictions", 5, 2),
        (f"/api/v1/evaluations/{asked[0]}/queries", 5, 2),
        ("/api/v1/evaluations?user=pager", 3, 1),
    ):
        seen, cursor = [], None
        while True:
            page = stage.http.get(
                path, params=httpx.URL(path).params.merge({"limit": size} | ({"cursor": cursor} if cursor else {}))
            )
            assert page.status_code == 200, page.text
            assert len(page.json()["items"]) <= size
            seen += page.json()["items"]
            cursor = page.json()["next_cursor"]
            if cursor is None:
                break
        assert len({json.dumps(one) for one in seen}) == len(seen) == total
    newest_first = [one["evaluation_id"] for one in stage.http.get("/api/v1/evaluations?user=pager").json()["items"]]
    assert newest_first == asked[::-1]
    problem(stage.http.get("/api/v1/evaluations?cursor=nonsense"), 422, "invalid_request")
    problem(stage.http.get("/api/v1/models?cursor=nonsense"), 422, "invalid_request")


def test_listing_by_constraints(stage: Stage) -> None:
    """Each filter alone; an unknown one, or a wrong value, is an error and not ignored."""
    identifier = stage.ask(user="lister")
    stage.complete(stage.take()[0])
    stage.done(identifier)
    for filters in ("model=null", "dataset=digits", "framework=null", "device=cpu", "status=completed"):
        found = stage.http.get(f"/api/v1/evaluations?user=lister&{filters}").json()["items"]
        assert [one["evaluation_id"] for one in found] == [identifier], filters
    for filters in ("model=other", "framework=pytorch", "device=gpu", "status=failed", "since=2100-01-01T00:00:00Z"):
        assert stage.http.get(f"/api/v1/evaluations?user=lister&{filters}").json()["items"] == [], filters
    body = problem(stage.http.get("/api/v1/evaluations?modell=null"), 422, "invalid_request")
    assert body["errors"] == [{"field": "modell", "message": "Extra inputs are not permitted"}]
    problem(stage.http.get("/api/v1/evaluations?limit=0"), 422, "invalid_request")
    problem(stage.http.get("/api/v1/evaluations?since=2026-01-01T00:00:00"), 422, "invalid_request")


def test_a_rejected_evaluation_says_why(stage: Stage) -> None:
    """The failure and the near misses are in the evaluation, as soon as it is rejected and for ever."""
    identifier = stage.ask(model="nul")
    found = stage.until(identifier, lambda found: found["status"] == "rejected" and found["failure"])
    assert found["failure"]["code"] == "unknown_model"
    assert "null" in found["failure"]["hint"]
    identifier = stage.ask(constraints={"device": "gpu"})
    found = stage.until(identifier, lambda found: found["status"] == "rejected" and found["near_misses"])
    assert found["near_misses"][0]["failed"] == [{"constraint": "device", "wanted": "gpu", "offered": "cpu"}]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"dataset": "digits"}, "model"),
        ({"model": "Null!", "dataset": "digits"}, "model.name"),
        ({"model": "null ^^1", "dataset": "digits"}, "model.version"),
        ({"model": "null", "dataset": "digits", "batch_size": 0}, "batch_size"),
        ({"model": "null", "dataset": "digits", "batchsize": 8}, "batchsize"),
        ({"model": "null", "dataset": "digits", "evaluation_id": "a b"}, "evaluation_id"),
    ],
)
def test_a_request_that_is_none_names_the_field(stage: Stage, body: dict[str, Any], field: str) -> None:
    """At once, with every wrong field, and nothing reaches the bus."""
    found = problem(stage.http.post("/api/v1/evaluations", json=body), 422, "invalid_request")
    assert [one["field"] for one in found["errors"]] == [field]


def test_bodies_that_are_none(stage: Stage) -> None:
    """No JSON, the wrong type, too large: each its own problem."""
    headers = {"Content-Type": "application/json"}
    problem(stage.http.post("/api/v1/evaluations", content=b"{", headers=headers), 422, "invalid_request")
    problem(stage.http.post("/api/v1/evaluations", content=b"{}"), 415, "unsupported_media_type")
    problem(
        stage.http.post("/api/v1/evaluations", content=b"{}", headers={"Content-Type": "text/plain"}),
        415,
        "unsupported_media_type",
    )
    large = b" " * (2 * 2**20 + 1)
    problem(stage.http.post("/api/v1/models", content=large, headers=YAML), 413, "payload_too_large")
    in_pieces = (large[i : i + 65536] for i in range(0, len(large), 65536))
    problem(stage.http.post("/api/v1/models", content=in_pieces, headers=YAML), 413, "payload_too_large")
    fits_http_not_the_bus = {"model": "null", "dataset": "digits", "user": "x" * 1_500_000}
    problem(stage.http.post("/api/v1/evaluations", json=fits_http_not_the_bus), 413, "payload_too_large")


def test_what_is_not_there(stage: Stage) -> None:
    """404 with a code that names the kind of thing, 405 for a method it has not; always problem+json."""
    absent = new_id()
    for path, code in (
        (f"/api/v1/evaluations/{absent}", "unknown_evaluation"),
        (f"/api/v1/evaluations/{absent}/predictions", "unknown_evaluation"),
        (f"/api/v1/evaluations/{absent}/events", "unknown_evaluation"),
        ("/api/v1/models/nope", "unknown_model"),
        ("/api/v1/models/null?version=^9", "unknown_model"),
        ("/api/v1/systems/nope", "unknown_system"),
        ("/api/v1/predictors/nope", "unknown_predictor"),
        ("/api/v1/nope", "not_found"),
    ):
        problem(stage.http.get(path), 404, code)
    problem(stage.http.post(f"/api/v1/evaluations/{absent}/cancel", json={}), 404, "unknown_evaluation")
    problem(stage.http.delete("/api/v1/models/null?version=9.9.9"), 404, "unknown_model")
    problem(stage.http.put("/api/v1/evaluations"), 405, "method_not_allowed")


def test_cancelling(stage: Stage) -> None:
    """A task never begun is cancelled at once; what has ended stays; the body may be left out."""
    identifier = stage.ask()
    task, _ = stage.take()
    waiting = stage.ask()
    assert stage.http.post(f"/api/v1/evaluations/{waiting}/cancel", json={"reason": "no"}).status_code == 202
    stage.until(waiting, lambda found: found["status"] == "cancelled")
    assert stage.take()[0].evaluation_id == waiting
    stage.complete(task)
    stage.done(identifier)
    answer = stage.http.post(f"/api/v1/evaluations/{identifier}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (202, "completed")
    problem(stage.http.post(f"/api/v1/evaluations/{identifier}/cancel", json={"reson": "x"}), 422, "invalid_request")


def test_events_from_the_first_to_the_final_one(stage: Stage) -> None:
    """Live as they happen, then the stream ends; again for a latecomer; from the middle after a broken connection."""
    identifier = stage.ask()
    task, _ = stage.take()
    url = f"/api/v1/evaluations/{identifier}/events"
    with stage.http.stream("GET", url) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = sent(response.iter_lines())
        assert [next(events)[1] for _ in range(2)] == ["evaluation_accepted", "task_started"]
        stage.complete(task)
        rest = list(events)
    assert [kind for _, kind, _ in rest] == [
        "predictions_recorded",
        "queries_recorded",
        "task_completed",
        "evaluation_completed",
    ]
    assert rest[-1][2]["status"] == "completed"
    with stage.http.stream("GET", url) as response:
        again = list(sent(response.iter_lines()))
    assert again[2:] == rest
    with stage.http.stream("GET", url, headers={"Last-Event-ID": again[3][0]}) as response:
        assert list(sent(response.iter_lines())) == again[4:]


def test_the_catalogue(stage: Stage) -> None:
    """Listed, filtered, one by name and range, added from YAML and JSON, and removed."""
    names = [one["name"] for one in stage.http.get("/api/v1/models").json()["items"]]
    assert names == sorted(names)
    for filters, inside, outside in (
        ("framework=pytorch", "digits-cnn", "null"),
        ("search=NO+network", "null", "squeezenet"),
        ("name=null", "null", "digits-cnn"),
        ("modality=image-classification", "digits-cnn", "-"),
    ):
        found = {one["name"] for one in stage.http.get(f"/api/v1/models?{filters}").json()["items"]}
        assert inside in found, filters
        assert outside not in found, filters
    assert stage.http.get("/api/v1/models?modality=raw-tensor").json()["items"] == []
    assert "digits" in [one["name"] for one in stage.http.get("/api/v1/datasets").json()["items"]]
    null = stage.http.get("/api/v1/models/null").json()
    for version in ("1.9.0", "1.10.0", "2.0.0-rc.1"):
        answer = stage.http.post("/api/v1/models", json={**null, "name": "mine", "version": version})
        assert answer.status_code == 201, answer.text
        assert stage.http.get(answer.headers["location"]).json() == answer.json()
    assert stage.http.post("/api/v1/models", json=answer.json()).status_code == 200
    assert stage.http.get("/api/v1/models/mine").json()["version"] == "1.10.0"
    assert stage.http.get("/api/v1/models/mine", params={"version": "<1.10"}).json()["version"] == "1.9.0"
    first = stage.http.get("/api/v1/models?name=mine&limit=2").json()
    assert [one["version"] for one in first["items"]] == ["2.0.0-rc.1", "1.10.0"]
    second = stage.http.get("/api/v1/models", params={"name": "mine", "limit": 2, "cursor": first["next_cursor"]})
    assert [one["version"] for one in second.json()["items"]] == ["1.9.0"]
    assert second.json()["next_cursor"] is None
    assert stage.http.delete("/api/v1/models/mine?version=1.10.0").status_code == 204
    assert stage.http.get("/api/v1/models/mine").json()["version"] == "1.9.0"
    problem(stage.http.delete("/api/v1/models/mine"), 422, "invalid_request")


def test_a_framework_from_yaml(stage: Stage) -> None:
    """YAML is what people write; several versions live side by side."""
    text = "name: pytorch\nversion: 2.13.0+cpu\npython:\n  requirements: [torch==2.13.0]\n"
    answer = stage.http.post("/api/v1/frameworks", content=text, headers=YAML)
    assert answer.status_code == 201, answer.text
    assert stage.http.get("/api/v1/frameworks/pytorch?version=^2.13").json()["version"] == "2.13.0+cpu"


def test_a_manifest_that_is_none_names_source_line_and_field(stage: Stage) -> None:
    """In the words of the parser, under the name that the sender gave the file."""
    text = "name: pytorch\nversion: 2.13.0\npyton:\n  requirements: []\n"
    answer = stage.http.post("/api/v1/frameworks?source=my.yml", content=text, headers=YAML)
    detail = problem(answer, 422, "manifest_invalid")["detail"]
    assert "my.yml:3: pyton: unknown field" in detail
    answer = stage.http.post("/api/v1/models", content="a: [", headers=YAML)
    assert "not YAML" in problem(answer, 422, "manifest_invalid")["detail"]
    answer = stage.http.post("/api/v1/models", content=b"\xff\xfe", headers=YAML)
    problem(answer, 422, "manifest_invalid")


def test_predictors_and_systems(stage: Stage) -> None:
    """Who is live, and on what machine."""
    (agent,) = stage.http.get("/api/v1/predictors").json()["items"]
    assert agent["stack"]["framework"] == "null"
    assert stage.http.get("/api/v1/predictors/null-1").json()["agent_id"] == "null-1"
    deadline = time.monotonic() + DEADLINE_S
    while not (systems := stage.http.get("/api/v1/systems").json()["items"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert systems == [SYSTEM.model_dump(mode="json")]
    assert stage.http.get(f"/api/v1/systems/{SYSTEM.system_id}").json() == systems[0]


def test_a_client_that_hangs_up_leaves_nothing_behind(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """A stream that is left in the middle ends quietly, its reader on the bus included."""
    identifier = stage.ask()
    task, _ = stage.take()
    for _ in range(5):
        with stage.http.stream("GET", f"/api/v1/evaluations/{identifier}/events") as answer:
            assert next(answer.iter_lines()).startswith("id:")
    deadline = time.monotonic() + DEADLINE_S
    while "mlms_api_requests_open 1.0" not in stage.http.get("/metrics").text:  # this one
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not [record for record in caplog.records if record.exc_info], caplog.text
    stage.fail(task)


def test_a_client_that_waits_is_done_in_time(stage: Stage) -> None:
    """Also while nothing at all happens to the evaluation."""
    identifier = stage.ask()
    task, _ = stage.take()
    began = time.monotonic()
    with Client(str(stage.http.base_url)) as client:
        with pytest.raises(ScopeError, match="not ended in time"):
            client.wait(identifier, timeout_s=0.5)
        assert time.monotonic() - began < 3
        stage.fail(task)
        assert client.wait(identifier).status == "failed"


def test_sql_reads_the_views(stage: Stage) -> None:
    """Columns and rows, parameters bound, numbers that JSON has not as null."""
    identifier = stage.ask()
    stage.complete(stage.take()[0])
    stage.done(identifier)
    query = "SELECT status, accuracy_top1, nan AS n FROM mlms_tasks WHERE evaluation_id = {id:String}; "
    answer = stage.http.post("/api/v1/sql", json={"query": query, "params": {"id": identifier}})
    assert answer.json() == {
        "columns": ["status", "accuracy_top1", "n"],
        "rows": [["completed", 0.57, None]],
        "truncated": False,
    }
    answer = stage.http.post("/api/v1/sql", json={"query": "SELECT number FROM numbers(20000) ORDER BY number DESC"})
    assert (len(answer.json()["rows"]), answer.json()["rows"][0], answer.json()["truncated"]) == (
        10_000,
        [19_999],
        True,
    )
    members = "WITH ['a', 'b'] AS some SELECT status IN ('a', 'completed'), 'b' IN some FROM mlms_tasks LIMIT 1"
    assert stage.http.post("/api/v1/sql", json={"query": members}).json()["rows"] == [[1, 1]]
    with_name = "WITH t AS (SELECT count() AS n FROM mlms_evaluations) SELECT n > 0 AS some FROM t"
    assert stage.http.post("/api/v1/sql", json={"query": with_name}).json()["rows"] == [[1]]


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE tasks",
        "SELECT 1; DROP TABLE tasks",
        "INSERT INTO tasks SELECT * FROM tasks",
        "WITH t AS (SELECT 1) INSERT INTO tasks SELECT * FROM t",
        "ALTER TABLE tasks DELETE WHERE 1",
        "SELECT 1 INTO OUTFILE '/tmp/leak'",
        "SELECT 1 FORMAT CSV",
        "SELECT 1 SETTINGS readonly = 0",
        "SELECT * FROM (SELECT 1 SETTINGS readonly = 0)",
        "SELECT * FROM tasks",
        "SELECT * FROM system.tables",
        "SELECT (SELECT count() FROM system.processes)",
        "SELECT 1 IN system.one",
        "SELECT (1, 'a', 'b', now64(3)) IN schema_migrations",
        "SELECT count() FROM mlms_tasks WHERE task_id NOT IN (['a']) OR evaluation_id NOT IN another_database.secrets",
        "SELECT groupArray(number) FROM numbers(20000000)",
        "SELECT file('/etc/hostname')",
        "SELECT arrayMap(file, ['/etc/hostname'])",
        "SELECT * FROM file('/etc/hostname', 'LineAsString')",
        "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
        "SELECT * FROM merge('default', '.*')",
        "SELECT * FROM remote('127.0.0.1', system.one)",
        "SELECT * FROM (EXPLAIN AST SELECT 1)",
        "SHOW TABLES",
        "SELEC 1",
        "SELECT no_such_column FROM mlms_tasks",
        "",
    ],
)
def test_sql_that_does_more_than_read_the_views_is_refused(stage: Stage, query: str) -> None:
    """Nothing written, no file and no network reached, no other table read."""
    problem(stage.http.post("/api/v1/sql", json={"query": query}), 422, "sql_refused")
    assert not Path("/tmp/leak").exists()
    assert stage.store.query("SELECT count() > 0 FROM tasks").rows


def test_the_openapi_document_is_what_is_served(stage: Stage) -> None:
    """Every path and method in it answers, every reference in it leads somewhere."""
    document = stage.http.get("/api/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    text = json.dumps(document)
    references = set(json.loads(f"[{','.join(_quoted(text))}]"))
    for reference in references:
        node: Any = document
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]
    assert "EvaluationRequested" in document["components"]["schemas"]
    operations = [op for path in document["paths"].values() for op in path.values()]
    assert len({one["operationId"] for one in operations}) == len(operations)
    for path, methods in document["paths"].items():
        for method in methods:
            if "events" in path:
                continue
            answer = stage.http.request(method, path.format_map(_Absent()))
            assert answer.status_code not in (405, 500), (method, path, answer.text)
            assert answer.status_code != 404 or answer.json()["code"] != "not_found", (method, path)


def test_the_documentation_names_every_route_and_no_other(stage: Stage) -> None:
    """docs/api.md and the OpenAPI document say the same."""
    text = (REPOSITORY / "docs" / "api.md").read_text()
    documented = set(re.findall(r"`(GET|POST|DELETE) ([/a-z0-9_{}.]+)`", text))
    paths = stage.http.get("/api/openapi.json").json()["paths"]
    served = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert documented == served | {("GET", "/api/openapi.json")}


class _Absent(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "absent"


def _quoted(text: str) -> Iterator[str]:
    for part in text.split('"$ref": ')[1:]:
        yield part.partition("}")[0].partition(",")[0]


def test_health_and_counters(stage: Stage) -> None:
    """Alive, ready with each part named, and counted by route, not by id."""
    assert stage.http.get("/healthz").json() == {"status": "ok"}
    assert stage.http.get("/readyz").json() == {"ready": True, "bus": "ok", "store": "ok"}
    stage.http.get(f"/api/v1/evaluations/{new_id()}")
    text = stage.http.get("/metrics").text
    assert 'mlms_api_requests_total{method="GET",route="/api/v1/evaluations/{evaluation_id}",status="404"}' in text
    assert "mlms_api_request_seconds_bucket" in text


def test_what_browsers_could_be_made_to_do(stage: Stage) -> None:
    """Another site's page may neither post here nor read from here under a name of its own."""
    body = {"model": "null", "dataset": "digits"}
    problem(
        stage.http.post("/api/v1/evaluations", json=body, headers={"Origin": "https://evil.example"}), 403, "forbidden"
    )
    problem(stage.http.get("/api/v1/models", headers={"Host": "evil.example"}), 403, "forbidden")
    port = stage.http.base_url.port
    assert stage.http.get("/api/v1/models", headers={"Host": f"localhost:{port}"}).status_code == 200
    assert "access-control-allow-origin" not in stage.http.get("/api/v1/models").headers


def test_a_token_is_wanted_when_one_is_set(stage: Stage, tmp_path: Path) -> None:
    """Under /api, on every route; health is for the supervisor, who has none."""
    settings = stage.settings.model_copy(update={"api_token": "secret", "data_dir": tmp_path})
    stop = stage.call(_event)
    running = stage._portal.start_task_soon(service.run, settings, stop, stage.store)
    with httpx.Client(base_url=announced(settings), trust_env=False) as http:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
            for path in ("/api/v1/models", "/api/openapi.json", "/api/v1/nope"):
                problem(http.get(path, headers=given), 401, "unauthorized")
        assert http.get("/api/v1/models", headers={"Authorization": "Bearer secret"}).status_code == 200
        assert http.get("/healthz").status_code == 200
    stage.call(_set, stop)
    running.result(DEADLINE_S)
    assert not (tmp_path / "run" / "api.json").exists()


def test_listening_beyond_loopback_wants_a_token(stage: Stage) -> None:
    """Refused at the start, with what to do; and a port that is taken is said so."""
    exposed = stage.settings.model_copy(update={"api_host": "0.0.0.0"})
    stop = stage.call(_event)
    with pytest.raises(SettingsError, match="MLMODELSCOPE_API_TOKEN"):
        stage.call(service.run, exposed, stop, stage.store)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = stage.settings.model_copy(update={"api_port": port})
        with pytest.raises(ServiceError, match=f"port {port} .* is taken"):
            stage.call(service.run, settings, stop, stage.store)


def test_with_the_store_away(stage: Stage, tmp_path: Path) -> None:
    """503 that says when to try again; what the bus knows is told all the same."""
    settings = stage.settings.model_copy(
        update={"clickhouse_url": "clickhouse://127.0.0.1:1/default", "data_dir": tmp_path}
    )
    away = open_store(settings)
    stop = stage.call(_event)
    running = stage._portal.start_task_soon(service.run, settings, stop, away)
    with httpx.Client(base_url=announced(settings), trust_env=False, timeout=DEADLINE_S) as http:
        answer = http.get("/api/v1/evaluations")
        problem(answer, 503, "store_unavailable")
        assert int(answer.headers["retry-after"]) > 0
        ready = http.get("/readyz")
        assert (ready.status_code, ready.json()["bus"]) == (503, "ok")
        assert ready.json()["store"] != "ok"
        identifier = str(
            http.post("/api/v1/evaluations", json={"model": "null", "dataset": "digits"}).json()["evaluation_id"]
        )
        task, _ = stage.take()
        assert http.get(f"/api/v1/evaluations/{identifier}").json()["tasks"][0]["framework"] == "null"
        assert http.get("/api/v1/models").status_code == 200
        with Client(str(http.base_url)) as client, pytest.raises(ServerUnreachableError, match="does not answer"):
            client.evaluations()  # nothing was wrong with the request: the command line exits with 4, not 2
        stage.fail(task)
    stage.call(_set, stop)
    running.result(DEADLINE_S)
    away.close()


def test_it_stops_in_time_with_a_stream_open_and_the_bus_down(stage: Stage, tmp_path: Path) -> None:
    """An event stream ends, the address file goes, all within five seconds."""

    async def scenario() -> float:
        async with NatsServer(tmp_path / "nats") as server:
            settings = stage.settings.model_copy(update={"bus_url": server.url, "data_dir": tmp_path})
            stop = asyncio.Event()
            running = asyncio.create_task(service.run(settings, stop, stage.store), name="api-under-test")
            url = await asyncio.to_thread(announced, settings)
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=DEADLINE_S) as http:
                answer = await http.post("/api/v1/evaluations", json={"model": "null", "dataset": "digits"})
                path = answer.json()["links"]["events"]
                async with http.stream("GET", path) as stream:
                    assert stream.status_code == 200
                    await server.stop()
                    began = time.monotonic()
                    stop.set()
                    with contextlib.suppress(httpx.RemoteProtocolError):
                        async for _ in stream.aiter_lines():
                            pass
                    await asyncio.wait_for(running, DEADLINE_S)
            return time.monotonic() - began

    assert stage.call(scenario) < 5.0
    assert not (tmp_path / "run" / "api.json").exists()


def test_it_survives_a_restart_of_the_bus(stage: Stage) -> None:
    """Not ready while the bus is away; then everything works as before."""
    stage.call(stage.server.stop)
    deadline = time.monotonic() + DEADLINE_S
    while (answer := stage.http.get("/readyz")).status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "no connection" in answer.json()["bus"]
    assert stage.http.get("/api/v1/evaluations").status_code == 200
    stage.call(stage.server.start)
    identifier = stage.ask()
    task, _ = stage.take()
    stage.complete(task)
    stage.done(identifier)
