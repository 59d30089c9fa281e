"""Results read back: what was told about an evaluation, in whatever order and however often, is what readers see."""

import itertools
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

from schemas.codec import Envelope, decode, encode
from schemas.evaluation import EvaluationRequested
from schemas.events import EvaluationCompleted, EvaluationRejected, ManifestRegistered, ManifestRemoved
from schemas.failure import Failure
from schemas.result import Evaluation, NearMiss, Unsatisfied
from schemas.settings import Settings
from schemas.system import Cpu, SystemDescribed, SystemDescription
from schemas.trace import Span, SpansRecorded, TraceLevel
from services import records
from services.errors import InvalidCursorError
from services.rows import TABLES, merged, rows_of
from services.store import Store, open_store
from tests import sample_events as sample
from tests.clickhouse_server import clickhouse_url


@pytest.fixture(scope="module", params=["embedded", "server"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A migrated store for the module: each test has evaluations, and a user, of its own."""
    directory: Path = tmp_path_factory.mktemp("records")
    if request.param == "embedded":
        opened = open_store(Settings(data_dir=directory))
        yield opened
        opened.close()
    else:
        with clickhouse_url(directory) as url:
            opened = open_store(Settings(clickhouse_url=url))
            yield opened
            opened.close()


def tell(store: Store, told: Sequence[BaseModel], *, at_once: bool = True) -> None:
    """Insert the rows of events, as ingest does: in one batch, or each in its own."""
    envelopes: list[Envelope[BaseModel]] = [decode(encode(event, time_ns=sample.START_NS)) for event in told]
    parts = [rows_of(envelope) for envelope in envelopes]
    for batch in [parts] if at_once else [[part] for part in parts]:
        for table in TABLES:
            if columns := merged(batch, table):
                store.insert(table, columns)


def found(store: Store, evaluation_id: str) -> Evaluation:
    evaluation = records.get_evaluation(store, evaluation_id)
    assert evaluation is not None
    return evaluation


def test_an_evaluation_comes_back_whole(store: Store) -> None:
    """Request, tasks and records are equal to what was told; figures stand at `tasks[].accuracy.top1.value`."""
    tell(store, sample.whole_evaluation("whole"))
    evaluation = found(store, "whole")
    assert evaluation.status == "completed"
    assert evaluation.request == sample.accepted("whole").request
    assert (evaluation.model, evaluation.model_version, evaluation.user) == ("digits-cnn", "1.0.0", "ada")
    assert evaluation.created == datetime.fromtimestamp(sample.START_NS // 10**9, UTC)
    assert evaluation.ended == evaluation.created + timedelta(seconds=10)
    assert [task.framework for task in evaluation.tasks] == ["onnxruntime", "pytorch"]
    for task in evaluation.tasks:
        assert (task.status, task.attempt, task.system_id, task.batch_size) == ("completed", 1, "machine-1", 8)
        assert task.record == sample.record()
        assert task.accuracy == sample.record().accuracy
        assert task.latency == sample.record().latency
        assert task.latency is not None
        assert task.latency.p99 is None
        assert task.started == evaluation.created + timedelta(seconds=1)
        assert task.ended == evaluation.created + timedelta(seconds=2)
    assert records.get_evaluation(store, "nobody-asked-for-this") is None


def test_the_same_told_again_in_any_order_changes_nothing(store: Store) -> None:
    """Delivery is at least once: three times over, shuffled, each event by itself, reads the same everywhere."""
    told = sample.whole_evaluation("again")
    tell(store, told)
    before = everything(store, "again")
    random.Random(1).shuffle(told)
    tell(store, told, at_once=False)
    tell(store, told)
    assert everything(store, "again") == before
    assert before["counts"] == {
        "mlms_evaluations": 1, "mlms_tasks": 2, "mlms_predictions": 40, "mlms_queries": 60, "mlms_spans": 20,
        "mlms_metrics": 8,
    }  # fmt: skip


def everything(store: Store, evaluation_id: str) -> dict[str, object]:
    """Return all that readers see of an evaluation."""
    views = ("mlms_evaluations", "mlms_tasks", "mlms_predictions", "mlms_queries", "mlms_spans", "mlms_metrics")
    bound = {"id": evaluation_id}
    sql = "SELECT count() AS n FROM {view} WHERE evaluation_id = {{id:String}}"
    return {
        "evaluation": records.get_evaluation(store, evaluation_id),
        "predictions": records.predictions(store, evaluation_id),
        "queries": records.queries(store, evaluation_id),
        "spans": records.spans(store, evaluation_id),
        "counts": {view: store.query(sql.format(view=view), bound).rows[0][0] for view in views},
    }


def test_status_follows_what_is_known(store: Store) -> None:
    """Pending when accepted, running when a task is, and whatever its end said, also with the end told first."""
    tell(store, [sample.accepted("steps")])
    evaluation = found(store, "steps")
    assert (evaluation.status, [task.status for task in evaluation.tasks]) == ("pending", ["assigned"] * 2)
    assert evaluation.ended is None
    tell(store, [sample.started("steps")])
    evaluation = found(store, "steps")
    assert (evaluation.status, [task.status for task in evaluation.tasks]) == ("running", ["running", "assigned"])
    ended = EvaluationCompleted(evaluation_id="end-first", status="failed", completed=0, failed=2, time_ns=5)
    tell(store, [ended])
    assert records.get_evaluation(store, "end-first") is None
    tell(store, [sample.accepted("end-first")])
    assert found(store, "end-first").status == "failed"


def test_readers_see_the_attempt_that_completed(store: Store) -> None:
    """A first attempt lost with its agent and a second that completed: predictions and figures are the second's."""
    told = [
        sample.accepted("retried"),
        sample.started("retried"),
        sample.predicted("retried", count=12),
        sample.queried("retried", count=7),
        sample.traced("retried", count=3),
        sample.started("retried", attempt=2),
    ]
    tell(store, told)
    task = found(store, "retried").tasks[0]
    assert (task.status, task.attempt, task.agent_id) == ("running", 2, "onnxruntime-2")
    assert records.predictions(store, "retried")[0] == []
    tell(store, [sample.predicted("retried", attempt=2), sample.traced("retried", attempt=2)])
    tell(store, [sample.completed("retried", attempt=2, top1=0.5)])
    task = found(store, "retried").tasks[0]
    assert (task.status, task.attempt) == ("completed", 2)
    assert task.accuracy is not None
    assert task.accuracy.top1.value == 0.5
    rows, _ = records.predictions(store, "retried")
    assert {row.output_digest for row in rows} == {f"{2:064x}"}
    assert len(rows) == 20
    assert records.queries(store, "retried")[0] == []
    assert {span.trace_id for span in records.spans(store, "retried")[0]} == {f"{2:032x}"}


def test_which_attempt_is_final(store: Store) -> None:
    """The first that completed, else the last that failed, else the last that began; in every order of telling."""
    for number, (events, status, final) in enumerate(
        [
            (["completed 1", "started 2"], "completed", 1),
            (["completed 1", "completed 2"], "completed", 1),
            (["failed 1", "completed 2"], "completed", 2),
            (["completed 1", "failed 2"], "completed", 1),
            (["failed 1", "failed 2"], "failed", 2),
            (["failed 1", "started 2"], "failed", 1),
            (["started 1", "started 2"], "running", 2),
            (["failed 0"], "failed", 0),
        ]
    ):
        for order, words in enumerate(itertools.permutations(events)):
            name = f"final-{number}-{order}"
            kinds = {"completed": sample.completed, "failed": sample.failed, "started": sample.started}
            told = [kinds[w.split()[0]](name, attempt=int(w.split()[1])) for w in words]  # type: ignore[operator]
            tell(store, [*told, sample.accepted(name)], at_once=False)
            task = found(store, name).tasks[0]
            assert (task.status, task.attempt) == (status, final), words
            assert (task.failure is None) == (status != "failed")
            assert (task.accuracy is None) == (status != "completed")


def test_a_failed_task_says_why(store: Store) -> None:
    """The failure comes back whole; a cancelled task is cancelled, not failed."""
    told = [sample.accepted("broken"), sample.started("broken"), sample.failed("broken")]
    tell(store, [*told, sample.failed("broken", "pytorch", code="cancelled")])
    first, second = found(store, "broken").tasks
    assert (first.status, first.failure) == ("failed", sample.failed("broken").failure)
    assert (second.status, second.attempt) == ("cancelled", 1)


def test_a_rejection_names_every_near_miss(store: Store) -> None:
    """What was not chosen and why, and the range that was asked for."""
    misses = (
        NearMiss(
            agent_id="a1",
            stack=sample.STACKS["pytorch"],
            failed=(Unsatisfied(constraint="gpu", wanted="H100", offered="none"),),
        ),
    )
    failure = Failure(code="no_predictor", message="no predictor has a GPU", hint="start an agent on a GPU machine")
    request = EvaluationRequested.model_validate({"evaluation_id": "no", "model": "x ^2", "dataset": "y"})
    tell(
        store,
        [EvaluationRejected(evaluation_id="no", request=request, failure=failure, near_misses=misses, time_ns=7)],
    )
    evaluation = found(store, "no")
    assert (evaluation.status, evaluation.failure, evaluation.near_misses) == ("rejected", failure, misses)
    assert (evaluation.model, evaluation.model_version, evaluation.tasks) == ("x", "^2", ())


def test_the_list_pages_through_everything_once(store: Store) -> None:
    """Newest first, no gap and no repetition, figures without the heavy record."""
    names = [f"page-{k:02}" for k in range(7)]
    for name in names:
        tell(store, [sample.accepted(name, user="pager"), sample.completed(name)])
        tell(store, [sample.accepted(name, user="pager")])
    seen: list[Evaluation] = []
    cursor = None
    while True:
        page, cursor = records.list_evaluations(store, user="pager", limit=3, cursor=cursor)
        seen += page
        if cursor is None:
            break
    assert [evaluation.evaluation_id for evaluation in seen] == names[::-1]
    for evaluation in seen:
        task = evaluation.tasks[0]
        assert task.record is None
        assert task.accuracy == sample.record().accuracy
        assert task.cold_start == sample.record().cold_start
    assert records.list_evaluations(store, user="nobody") == ([], None)


@pytest.mark.parametrize("window", [2, 10_000])
def test_the_list_filters(store: Store, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    """Each filter by itself and all together; statuses that are derived as well as those that are told.

    The same whether or not the newest rows, which are looked at first, fill the page.
    """
    monkeypatch.setattr(records, "WINDOW", window)
    user = "filter"
    for name, model in (("f-pending", "m1"), ("f-running", "m1"), ("f-completed", "m2"), ("f-partial", "m2")):
        tell(store, [sample.accepted(name, model=model, user=user)])
    tell(store, [sample.started("f-running"), sample.started("f-completed"), sample.started("f-partial")])
    for status in ("completed", "partial"):
        tell(
            store,
            [EvaluationCompleted.model_validate(
                {"evaluation_id": f"f-{status}", "status": status, "completed": 1, "failed": 1, "time_ns": 9}
            )],
        )  # fmt: skip

    def ids(**filters: object) -> list[str]:
        page, _ = records.list_evaluations(store, user=user, **filters)  # type: ignore[arg-type]
        assert all(evaluation.status == filters.get("status", evaluation.status) for evaluation in page)
        return [evaluation.evaluation_id for evaluation in page]

    assert ids() == ["f-running", "f-pending", "f-partial", "f-completed"]
    for status in ("pending", "running", "completed", "partial"):
        assert ids(status=status) == [f"f-{status}"]
    for status in ("failed", "cancelled", "rejected"):
        assert ids(status=status) == []
    assert ids(model="m1") == ["f-running", "f-pending"]
    assert len(ids(framework="pytorch", device="cpu", dataset="digits")) == 4
    assert ids(framework="mxnet") == ids(device="gpu") == ids(dataset="imagenet") == []
    moment = datetime.fromtimestamp(sample.START_NS // 10**9, UTC)
    assert len(ids(since=moment)) == 4
    assert ids(since=moment + timedelta(microseconds=1)) == []


def test_predictions_and_queries_page(store: Store) -> None:
    """By task and position; by task only; only what is wrong, an unreadable item included; warm-up after the rest."""
    tell(store, sample.whole_evaluation("pages"))
    seen = []
    cursor = None
    while True:
        page, cursor = records.predictions(store, "pages", limit=7, cursor=cursor)
        seen += page
        if cursor is None:
            break
    assert [(row.task_id, row.input_index) for row in seen] == [
        (sample.task_id("pages", framework), k) for framework in sample.STACKS for k in range(20)
    ]
    wrong, _ = records.predictions(store, "pages", task_id=sample.task_id("pages"), only_wrong=True)
    assert [row.input_index for row in wrong] == [0, 5, 7, 10, 15]
    assert (wrong[2].error, wrong[2].classes, wrong[2].input_id) == ("cannot be decoded", (), "bild-7-é")
    assert wrong[1].classes == (5, 6)
    order: list[tuple[bool, int]] = []
    while True:
        measured, cursor = records.queries(store, "pages", task_id=sample.task_id("pages"), limit=4, cursor=cursor)
        order += [(row.warmup, row.query_index) for row in measured]
        assert {row.latency_ms for row in measured} == {0.5}
        if cursor is None:
            break
    assert order == [(False, k) for k in range(5, 30)] + [(True, k) for k in range(5)]


@pytest.mark.parametrize(
    "cursor", ["?", "é", "bm90IGpzb24", "WzFd", "WyJhIiwgMV0", "WyJhIiwgMTAwMDAwMDAwMDAwMDAwMDAwMDAwXQ"]
)
def test_a_cursor_from_elsewhere_is_refused(store: Store, cursor: str) -> None:
    """Garbage, another listing's cursor and a number beyond the column's are one clear error."""
    with pytest.raises(InvalidCursorError):
        records.spans(store, "pages", cursor=cursor)


def test_spans_come_back(store: Store) -> None:
    """A trace with its parents and attributes, by start; spans of no task are the evaluation's own."""
    tell(store, sample.whole_evaluation("trace"))
    own = Span(trace_id="t", span_id="s", evaluation_id="trace", level=TraceLevel.APPLICATION, name="plan", start_ns=1,
               duration_ns=2)  # fmt: skip
    tell(store, [SpansRecorded.of([own])])
    assert records.spans(store, "trace", limit=1)[0] == [own]
    assert len(records.spans(store, "trace")[0]) == 21
    spans, cursor = records.spans(store, "trace", task_id=sample.task_id("trace"))
    assert cursor is None
    assert [span.name for span in spans] == [f"layer {k}" for k in range(10)]
    assert (spans[0].parent_id, spans[1].parent_id) == (None, spans[0].span_id)
    assert spans[1].attributes == {"op": "conv", "größe": "3'"}


def test_systems_and_manifests_are_the_latest(store: Store) -> None:
    """A machine is shown once, as last described; a removed manifest says so and keeps its text."""

    def described(hostname: str, kernel: str) -> SystemDescribed:
        system = SystemDescription(
            system_id="s1", hostname=hostname, architecture="amd64", operating_system="Debian 12", kernel=kernel,
            cpu=Cpu(model="CPU é"), not_read={"gpus": "no driver"},
        )  # fmt: skip
        return SystemDescribed(agent_id="a1", system=system)

    tell(store, [described("alpha", "6.1")])
    tell(store, [described("alpha", "6.1"), described("alpha", "6.1")])
    assert records.system(store, "s1") == described("alpha", "6.1").system
    assert records.systems(store) == [described("alpha", "6.1").system]
    assert records.system(store, "s2") is None

    def registered(time_ns: int, body: str) -> ManifestRegistered:
        return ManifestRegistered(kind="model", name="m", version="1.0.0", digest=body, body=body, time_ns=time_ns)

    tell(store, [registered(1, "old"), registered(2, "new")])
    tell(store, [registered(1, "old")])
    found = records.manifest(store, "model", "m", "1.0.0")
    assert found is not None
    assert (found.body, found.removed) == ("new", False)
    tell(store, [ManifestRemoved(kind="model", name="m", version="1.0.0", time_ns=3)])
    found = records.manifest(store, "model", "m", "1.0.0")
    assert found is not None
    assert (found.body, found.removed) == ("new", True)
    assert records.manifest(store, "model", "m", "2.0.0") is None
