"""The main job: one request, two frameworks, one record that reads the same everywhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from mlmodelscope import Client, Evaluation
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.slow]


def command(*arguments: str, url: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    """Run the command line against the shared stack."""
    environ = {**os.environ, "MLMODELSCOPE_API_URL": url}
    return subprocess.run(
        [sys.executable, "-m", "mlmodelscope", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environ,
        cwd=REPOSITORY,
    )


@pytest.fixture(scope="module")
def digits(scope: Client) -> Evaluation:
    """The built-in model on the built-in data set, on both frameworks."""
    return scope.evaluate(
        model="digits-cnn",
        dataset="digits",
        targets="all",
        batch_size=8,
        framework=("onnxruntime", "pytorch"),
        scenario={"name": "single_stream", "min_duration_s": 0.2, "max_duration_s": 60.0, "min_query_count": 700},  # type: ignore[arg-type]
    )


def test_one_request_is_evaluated_on_both_frameworks(digits: Evaluation) -> None:
    """Accuracy, latency, throughput and cold start of each, with the machine and the software that made them."""
    assert digits.status == "completed", digits
    assert {task.framework for task in digits.tasks} == {"onnxruntime", "pytorch"}
    for task in digits.tasks:
        assert task.accuracy is not None and task.latency is not None and task.throughput is not None
        top1, top5 = task.accuracy.top1, task.accuracy.top5
        assert top1.value is not None and top1.low is not None and top1.high is not None and top5.value is not None
        assert 0.9 < top1.low < top1.value < top1.high <= 1.0
        assert top1.value <= top5.value <= 1.0
        assert task.accuracy.asked > 100
        assert task.latency.query_count >= 700
        assert task.latency.p50 and task.latency.p90 and task.latency.p99 and task.latency.p50 <= task.latency.p99
        assert task.latency.p99_9 is None, "6636 queries are the floor of a p99.9"
        assert task.throughput.value > 0
        assert task.cold_start is not None and task.cold_start.open_ms > 0 and task.cold_start.first_predict_ms > 0
        assert task.record is not None
        assert task.record.environment.libraries["numpy"]
        assert task.record.batch_size == 8
        assert task.record.threads.intra_op
        assert task.record.pipeline.digest
        assert "loadgen" in task.record.load_generator


def test_both_frameworks_agree_on_every_image(scope: Client, digits: Evaluation) -> None:
    """The same weights, the same answers: paired by input id, not by position."""
    answers: dict[str, dict[str, int]] = {}
    for row in scope.predictions(digits.evaluation_id):
        answers.setdefault(row["task_id"], {})[row["input_id"]] = row["classes"][0]
    first, second = answers.values()
    assert first == second
    accuracy = digits.tasks[0].accuracy
    assert accuracy is not None and len(first) == accuracy.asked


def test_json_is_the_same_from_every_interface(scope: Client, digits: Evaluation) -> None:
    """Python, HTTP and the command line tell one story."""
    shown = command("evaluations", "show", digits.evaluation_id, "--json", url=scope.url)
    assert shown.returncode == 0, shown.stderr
    told = json.loads(shown.stdout)
    assert told == digits.model_dump(mode="json")
    assert told == scope._call("GET", f"/api/v1/evaluations/{digits.evaluation_id}")
    assert told["tasks"][0]["accuracy"]["top1"]["value"] > 0.9


def test_everything_is_readable_by_sql(scope: Client, digits: Evaluation) -> None:
    """Accuracies, predictions, queries, the machine and the manifests are in the documented views."""

    def one(query: str) -> list[object]:
        answer = scope.sql(query, {"id": digits.evaluation_id})
        return list(answer["rows"][0])

    accuracy = digits.tasks[0].accuracy
    assert accuracy is not None
    assert one("SELECT min(accuracy_top1), count() FROM mlms_tasks WHERE evaluation_id = {id:String}") == [
        accuracy.top1.value,
        2,
    ]
    assert one("SELECT count(), uniqExact(input_id) FROM mlms_predictions WHERE evaluation_id = {id:String}") == [
        2 * accuracy.asked,
        accuracy.asked,
    ]
    measured = sum(task.latency.query_count for task in digits.tasks if task.latency)
    assert one("SELECT countIf(NOT warmup) FROM mlms_queries WHERE evaluation_id = {id:String}") == [measured]
    assert one("SELECT count() > 0 FROM mlms_systems")[0]
    assert one("SELECT count() FROM mlms_manifests WHERE name = 'digits-cnn'")[0] == 1
    assert one("SELECT count() FROM mlms_evaluations WHERE evaluation_id = {id:String}")[0] == 1


def test_sql_only_reads(scope: Client) -> None:
    """Nobody drops a table through the query door."""
    for statement in (
        "DROP TABLE tasks",
        "INSERT INTO tasks SELECT 1",
        "SELECT * FROM url('http://127.0.0.1:1/', CSV)",
    ):
        refused = command("sql", statement, url=scope.url)
        assert refused.returncode != 0
        assert "error:" in refused.stderr
    assert scope.sql("SELECT count() FROM mlms_tasks")["rows"][0][0] >= 0


def test_the_command_line_prints_one_table_and_shows_progress(scope: Client) -> None:
    """Framework, version, device, accuracy with interval, percentiles, throughput, cold start."""
    done = command(
        "evaluate", "--model", "digits-cnn", "--dataset", "digits", "--targets", "all", "--sample-limit", "50",
        "--framework", "onnxruntime", "--framework", "pytorch", "--max-duration", "0.3", "--seed", "7", url=scope.url,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for word in ("onnxruntime", "pytorch", "top-1 [95 %]", "p50 ms", "p99 ms", "items/s", "cold start ms", "completed"):
        assert word in done.stdout
    assert "measure" in done.stderr


def test_a_program_with_nothing_but_nats_and_msgpack_gets_everything(bus_url: str, scope: Client) -> None:
    """The bus is an interface of its own."""
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "examples/bus_client.py"), bus_url, "digits-cnn", "digits"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["framework"] for row in told} == {"onnxruntime", "pytorch"}
    assert all(row["top1"] > 0.9 and row["predictions"] > 100 for row in told)
    source = (REPOSITORY / "examples/bus_client.py").read_text()
    imported = {line.split()[1] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert not imported & {"schemas", "bus", "services", "predictors", "mlmodelscope"}


def test_sampling_is_seeded_and_accuracy_is_over_the_items_asked_for(scope: Client) -> None:
    """The same seed takes the same items; another seed takes others."""

    def items(seed: int) -> list[str]:
        found = scope.evaluate(
            model="digits-cnn", dataset="digits", framework="onnxruntime", scenario="accuracy", sample_limit=40,
            seeds={"sample": seed},
        )  # fmt: skip
        accuracy = found.tasks[0].accuracy
        assert accuracy is not None and accuracy.asked == 40
        return [row["input_id"] for row in scope.predictions(found.evaluation_id)]

    assert items(5) == items(5) != items(6)


def test_manifests_and_schemas_are_shown(scope: Client) -> None:
    """What is registered is listed; what travels is documented by its JSON Schema."""
    listed = command("models", "list", "--json", url=scope.url)
    assert {"digits-cnn", "squeezenet", "mobilenet-v1-0.25"} <= {item["name"] for item in json.loads(listed.stdout)}
    shown = command("models", "show", "squeezenet", "--version", "^1.1", url=scope.url)
    assert "BGR" in shown.stdout
    schema = json.loads(command("schema", url=scope.url).stdout)
    assert {"evaluation_requested", "model_manifest", "task_completed", "spans_recorded", "evaluation"} <= schema.keys()
    assert msgpack.packb(schema)


def test_a_copy_of_a_manifest_is_published_without_code(scope: Client, tmp_path: Path) -> None:
    """Added at run time, evaluated at once, removed again."""
    text = (
        (REPOSITORY / "manifests/models/digits-cnn.yml").read_text().replace("name: digits-cnn", "name: digits-copy", 1)
    )
    file = tmp_path / "copy.yml"
    file.write_text(text)
    assert command("models", "add", str(file), url=scope.url).returncode == 0
    found = scope.evaluate(
        model="digits-copy", dataset="digits", framework="onnxruntime", scenario="accuracy", sample_limit=10
    )
    assert found.status == "completed"
    assert command("models", "remove", "digits-copy", found.model_version, url=scope.url).returncode == 0
    refused = scope.evaluate(model="digits-copy", dataset="digits")
    assert refused.status == "rejected" and refused.failure and refused.failure.code == "unknown_model"
