"""Whatever is wrong, the user is told once, clearly, where he looks: command line, API, evaluation record."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import httpx
import pytest
from PIL import Image

from mlmodelscope import Client, Evaluation
from tests.acceptance.test_main_job import command
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.slow]

DIGITS = (REPOSITORY / "manifests/models/digits-cnn.yml").read_text()


def only_failure(evaluation: Evaluation) -> tuple[str, str]:
    """The code and the words of the one task that failed."""
    assert evaluation.status == "failed", evaluation
    (task,) = evaluation.tasks
    assert task.status == "failed" and task.failure is not None
    assert "Traceback" not in task.failure.message
    return task.failure.code, task.failure.message


def publish(scope: Client, name: str, **replacements: str) -> None:
    """Register a copy of the digits model with something changed."""
    text = DIGITS.replace("name: digits-cnn", f"name: {name}", 1)
    for old, new in replacements.items():
        assert old in text
        text = text.replace(old, new)
    scope.add_manifest("model", text, f"{name}.yml")


def digest_of(name: str) -> str:
    """The sha256 that the digits manifest names for a shipped asset."""
    return hashlib.sha256((REPOSITORY / "manifests/assets" / name).read_bytes()).hexdigest()


def test_an_unknown_model_is_rejected_with_what_was_probably_meant(scope: Client) -> None:
    """On the command line: exit code 3, the code, the nearest name."""
    done = command("evaluate", "--model", "digits-cn", "--dataset", "digits", url=scope.url)
    assert done.returncode == 3
    assert "unknown_model" in done.stdout and "digits-cnn" in done.stdout
    found = scope.evaluate(model="digits-cnn", dataset="nothing")
    assert found.status == "rejected" and found.failure and found.failure.code == "unknown_dataset"


def test_an_impossible_constraint_names_every_near_miss(scope: Client) -> None:
    """Which predictor, which constraint, what was wanted and what is there."""
    found = scope.evaluate(model="digits-cnn", dataset="digits", framework="onnxruntime <1.0", device="gpu")
    assert found.status == "rejected" and found.failure and found.failure.code == "no_predictor"
    onnx = next(miss for miss in found.near_misses if miss.stack and miss.stack.framework == "onnxruntime")
    failed = {item.constraint: (item.wanted, item.offered) for item in onnx.failed}
    assert {"device", "framework version"} <= failed.keys() or len(failed) >= 2
    assert any("gpu" in wanted and "cpu" in offered for wanted, offered in failed.values())
    done = command("evaluate", "--model", "digits-cnn", "--dataset", "digits", "--gpu", "H100", url=scope.url)
    assert done.returncode == 3 and "H100" in done.stdout
    memory = scope.evaluate(model="digits-cnn", dataset="digits", constraints={"min_memory_bytes": 10**15})
    assert memory.status == "rejected" and memory.near_misses


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--model", "digits-cnn ^^1", "--dataset", "digits"), "model.version"),
        (("--model", "Digits CNN!", "--dataset", "digits"), "model"),
        (("--model", "digits-cnn", "--dataset", "digits", "--batch-size", "0"), "batch-size"),
        (("--model", "digits-cnn", "--dataset", "digits", "--device", "tpu"), "device"),
        (("--model", "digits-cnn", "--dataset", "digits", "--option", "x"), "NAME=VALUE"),
        (("--model", "digits-cnn"), "--dataset"),
    ],
)
def test_a_request_that_is_none_is_refused_with_the_field(
    scope: Client, arguments: tuple[str, ...], expected: str
) -> None:
    """Exit code 2, one message, no traceback."""
    done = command("evaluate", *arguments, url=scope.url)
    assert done.returncode == 2
    assert expected in done.stderr and "Traceback" not in done.stderr


def test_unreadable_yaml_names_file_line_and_field(scope: Client, tmp_path: Path) -> None:
    """On the command line and by HTTP."""
    file = tmp_path / "bad.yml"
    file.write_text(DIGITS.replace("license:", "licence:", 1))
    done = command("models", "add", str(file), url=scope.url)
    assert done.returncode == 2
    assert f"{file}:" in done.stderr and "licence: unknown field" in done.stderr
    answer = httpx.post(
        f"{scope.url}/api/v1/models", content="name: [", headers={"Content-Type": "application/yaml"}, timeout=10
    )
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert "not YAML" in answer.json()["detail"]
    assert command("models", "add", str(tmp_path / "absent.yml"), url=scope.url).returncode == 2


def test_a_wrong_digest_names_file_expected_and_found(scope: Client) -> None:
    """The file is there, and it is not the one that was published."""
    wrong = "d" * 64
    publish(scope, "digits-wrong-digest", **{digest_of("digits-cnn.onnx"): wrong})
    found = scope.evaluate(model="digits-wrong-digest", dataset="digits", framework="onnxruntime", scenario="accuracy")
    code, message = only_failure(found)
    assert code == "asset_digest_mismatch"
    assert "digits-cnn.onnx" in message and wrong in message and digest_of("digits-cnn.onnx") in message


def test_a_missing_file_names_what_was_tried(scope: Client) -> None:
    """And what to do about it."""
    publish(
        scope,
        "digits-missing",
        **{"repo:digits-cnn.onnx": "file:/nowhere/model.onnx", digest_of("digits-cnn.onnx"): "e" * 64},
    )
    done = command(
        "evaluate", "--model", "digits-missing", "--dataset", "digits", "--framework", "onnxruntime", url=scope.url
    )
    assert done.returncode == 1
    assert "asset_not_found" in done.stdout and "/nowhere/model.onnx" in done.stdout


def test_a_model_file_that_the_framework_refuses(scope: Client, tmp_path: Path) -> None:
    """In the framework's own words."""
    garbage = tmp_path / "garbage.onnx"
    garbage.write_bytes(b"this is no network" * 100)
    publish(
        scope,
        "digits-garbage",
        **{
            "repo:digits-cnn.onnx": f"file:{garbage}",
            digest_of("digits-cnn.onnx"): hashlib.sha256(garbage.read_bytes()).hexdigest(),
        },
    )
    found = scope.evaluate(model="digits-garbage", dataset="digits", framework="onnxruntime", scenario="accuracy")
    code, message = only_failure(found)
    assert code == "model_refused" and "protobuf" in message.lower()


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("crash", "worker_crashed"),
        ("hang", "deadline_exceeded"),
        ("oom", "worker_out_of_memory"),
        ("raise", "predictor_failed"),
    ],
)
def test_a_predictor_that_breaks_fails_its_task_and_the_agent_goes_on(scope: Client, fault: str, expected: str) -> None:
    """One clear reason; the next evaluation on the same agent works."""
    found = scope.evaluate(
        model="null", dataset="digits", scenario="accuracy", sample_limit=5, options={"fail": fault}, deadline_s=3.0
    )
    code, _ = only_failure(found)
    assert code == expected
    after = scope.evaluate(model="null", dataset="digits", scenario="accuracy", sample_limit=5)
    assert after.status == "completed", after
    assert after.tasks[0].agent_id == found.tasks[0].agent_id


def test_an_option_that_the_predictor_does_not_know_is_an_error(scope: Client) -> None:
    """A misspelt option does not run with the default instead."""
    found = scope.evaluate(
        model="digits-cnn", dataset="digits", framework="onnxruntime", options={"graph_optimisation": "all"}
    )
    code, message = only_failure(found)
    assert code == "option_unknown" and "graph_optimisation" in message
    assert found.tasks[0].failure and "graph_optimization" in found.tasks[0].failure.hint


def test_an_image_that_does_not_decode_is_counted_and_reported(scope: Client, tmp_path: Path) -> None:
    """Accuracy is over the items asked for: the unreadable one counts as wrong, and is named."""
    archive = tmp_path / "photos.tar"
    noise = Image.effect_noise((64, 64), 50).convert("RGB")
    with tarfile.open(archive, "w") as tar:

        def put(name: str, content: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))

        encoded = io.BytesIO()
        noise.save(encoded, "PNG")
        put("labels.csv", b"file,label\ngood.png,3\nbroken.png,3\nabsent.png,3\n")
        put("good.png", encoded.getvalue())
        put("broken.png", encoded.getvalue()[:60])
    manifest = {
        "name": "broken-photos",
        "version": "1.0.0",
        "license": "none",
        "modality": "image-classification",
        "sources": [
            {"url": f"file:{archive}", "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(), "unpack": True}
        ],
        "format": {"type": "image_csv"},
        "size": 3,
    }
    scope.add_manifest("dataset", json.dumps(manifest), "broken.yml")  # JSON is YAML
    found = scope.evaluate(
        model="squeezenet", dataset="broken-photos", framework="onnxruntime", scenario="accuracy", timeout_s=60
    )
    assert found.status == "completed", found
    accuracy = found.tasks[0].accuracy
    assert accuracy is not None and (accuracy.asked, accuracy.unreadable) == (3, 2)
    errors = {row["input_id"]: row["error"] for row in scope.predictions(found.evaluation_id)}
    assert errors["good.png"] == "" and errors["broken.png"] and "absent.png" in errors["absent.png"]


def test_a_cancelled_evaluation_ends_soon_and_says_so(scope: Client) -> None:
    """Also in the middle of a measurement."""
    from schemas.evaluation import ArtifactRef, EvaluationRequested
    from schemas.scenario import Scenario

    identifier = scope.submit(
        EvaluationRequested(
            model=ArtifactRef(name="null"),
            dataset=ArtifactRef(name="digits"),
            scenario=Scenario(min_duration_s=60, max_duration_s=60),
            options={"delay_ms": 1.0},
        )
    )
    for kind, data in scope.events(identifier):
        if kind == "task_progressed" and data["phase"] == "measure":
            break
    scope.cancel(identifier, "changed my mind")
    found = scope.wait(identifier, timeout_s=20)
    assert found.status == "cancelled"
    assert found.tasks[0].failure and found.tasks[0].failure.code == "cancelled"


def test_no_server_is_told_with_what_to_do() -> None:
    """Exit code 4."""
    done = command("predictors", url="http://127.0.0.1:9")
    assert done.returncode == 4
    assert "mlmodelscope up" in done.stderr and "Traceback" not in done.stderr
