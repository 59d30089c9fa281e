"""`mlmodelscope up` and the Procfile: one stack a directory, gone within five seconds, nothing left behind."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from mlmodelscope import Client
from mlmodelscope.directory import DataDirectory
from mlmodelscope.stack import free_port
from schemas.evaluation import EvaluationRequested
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.slow]

READY_S = 90.0
STOP_S = 5.0


def environment(data: Path, **more: str) -> dict[str, str]:
    """Variables of a stack of its own; commands are found beside this interpreter."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MLMODELSCOPE_DATA_DIR": str(data),
        "MLMODELSCOPE_CACHE_DIR": str(data / "cache"),
        "MLMODELSCOPE_MACHINE_LOCK": str(data / "machine.lock"),
        **more,
    }


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = READY_S) -> None:
    """Return when `condition` holds; fail after a while."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {timeout_s} s"
        time.sleep(0.05)


@contextmanager
def running(command: list[str], environ: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, and nothing of it left afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environ, cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        for child in family(process.pid):
            child.kill()
        process.wait()


def family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def all_ready(port: int, agents: int) -> bool:
    """Whether the API answers and every agent is registered."""
    try:
        if not httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5).is_success:
            return False
    except httpx.TransportError:
        return False
    with Client(f"http://127.0.0.1:{port}") as client:
        return len(client.predictors()) >= agents


def interrupt_and_check(process: subprocess.Popen[bytes], log: Path) -> None:
    """Ctrl-C: exit code 130 within five seconds, and no process of the stack lives on."""
    everyone = family(process.pid)
    assert len(everyone) >= 5
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    code = process.wait(timeout=30)
    took = time.monotonic() - started
    assert code == 130, log.read_text()
    assert took < STOP_S, f"took {took:.1f} s to stop"
    _, alive = psutil.wait_procs(everyone, timeout=0.5)
    assert not alive, f"left behind: {[p.cmdline() for p in alive]}"


def test_up_starts_everything_on_loopback_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    """One command, one directory, one port; a second stack on the directory is refused with the reason."""
    data, log, port = tmp_path / "data", tmp_path / "up.log", free_port()
    command = [sys.executable, "-m", "mlmodelscope", "up", "--data", str(data), "--port", str(port)]
    with running(command, environment(data), log) as process:
        wait_for(lambda: "ready; stop with Ctrl-C" in log.read_text() or process.poll() is not None, "ready")
        assert process.poll() is None, log.read_text()
        assert all_ready(port, 2)
        listening = [
            c.laddr.ip for p in family(process.pid) for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN
        ]
        assert listening and set(listening) == {"127.0.0.1"}

        other = [sys.executable, "-m", "mlmodelscope", "up", "--data", str(data), "--port", str(free_port())]
        second = subprocess.run(other, capture_output=True, text=True, timeout=60, env=environment(data))
        assert second.returncode == 1
        assert "in use by another stack" in second.stderr and str(process.pid) in second.stderr
        assert "Traceback" not in second.stderr

        taken = [*command[:5], str(tmp_path / "other"), "--port", str(port)]
        third = subprocess.run(taken, capture_output=True, text=True, timeout=60, env=environment(tmp_path / "other"))
        assert third.returncode == 1
        assert f"port {port}" in third.stderr and "Traceback" not in third.stderr

        assert all_ready(port, 2), "the first stack is none the worse"
        interrupt_and_check(process, log)
    assert DataDirectory(data).announced("api") is None


def test_results_outlive_the_stack_that_made_them(tmp_path: Path) -> None:
    """Stopped and started again on its directory, a stack still has what it evaluated."""
    data, log, port = tmp_path / "data", tmp_path / "up.log", free_port()
    command = [sys.executable, "-m", "mlmodelscope", "up", "--data", str(data), "--port", str(port), "--agent", "null"]
    with running(command, environment(data), log) as process:
        wait_for(lambda: "ready; stop" in log.read_text() or process.poll() is not None, "ready")
        with Client(f"http://127.0.0.1:{port}") as client:
            before = client.evaluate(model="null", dataset="digits", scenario="accuracy", sample_limit=5)
        assert before.status == "completed", before
        interrupt_and_check(process, log)
    with running(command, environment(data), log) as process:
        wait_for(lambda: "ready; stop" in log.read_text() or process.poll() is not None, "ready")
        with Client(f"http://127.0.0.1:{port}") as client:
            assert client.evaluation(before.evaluation_id) == before
            assert len(client.evaluations()) == 1


def test_a_killed_service_is_started_again_and_a_killed_supervisor_leaves_nothing(tmp_path: Path) -> None:
    """kill -9 of the scheduler: evaluations go on afterwards. kill -9 of the supervisor: no orphan."""
    data, log, port = tmp_path / "data", tmp_path / "up.log", free_port()
    command = [sys.executable, "-m", "mlmodelscope", "up", "--data", str(data), "--port", str(port), "--agent", "null"]
    with running(command, environment(data), log) as process:
        wait_for(lambda: "ready; stop" in log.read_text() or process.poll() is not None, "ready")
        scheduler = next(p for p in family(process.pid) if "scheduler" in p.cmdline())
        scheduler.kill()
        wait_for(lambda: "starting it again" in log.read_text(), "a restart")
        with Client(f"http://127.0.0.1:{port}") as client:
            found = client.evaluate(model="null", dataset="digits", scenario="accuracy", sample_limit=5, timeout_s=60)
        assert found.status == "completed", found
        everyone = family(process.pid)
        process.kill()
        _, alive = psutil.wait_procs(everyone, timeout=10)
        assert not alive, f"left behind: {[p.cmdline() for p in alive]}"


def test_a_killed_bus_and_a_killed_store_come_back_while_an_evaluation_is_in_flight(tmp_path: Path) -> None:
    """kill -9 of nats-server, then of the store: both are there again, where they were, and nothing was lost."""
    data, log = tmp_path / "data", tmp_path / "up.log"
    command = [sys.executable, "-m", "mlmodelscope", "up", "--data", str(data), "--port", "0", "--agent", "null"]
    with running(command, environment(data), log) as process:
        wait_for(lambda: "ready; stop" in log.read_text() or process.poll() is not None, "ready")
        directory = DataDirectory(data)
        bus, api = directory.announced("bus"), directory.announced("api")
        assert bus is not None and api is not None
        request = EvaluationRequested.model_validate(
            {
                "model": "null",
                "dataset": "digits",
                "options": {"delay_ms": 20.0},
                "scenario": {"name": "single_stream", "min_duration_s": 8.0, "max_duration_s": 9.0},
            }
        )
        with Client(api["url"]) as client:
            client.submit(request)
            wait_for(lambda: client.evaluation(request.evaluation_id).status == "running", "a start")
            psutil.Process(bus["pid"]).kill()
            wait_for(lambda: (directory.announced("bus") or bus)["pid"] != bus["pid"], "another server")
            psutil.Process(api["pid"]).kill()
            found = client.wait(request.evaluation_id, timeout_s=90)
            assert found.status == "completed", found
            predictions = client.predictions(request.evaluation_id)
        accuracy = found.tasks[0].accuracy
        assert accuracy is not None
        assert len({row["input_id"] for row in predictions}) == len(predictions) == accuracy.asked
        assert directory.announced("bus") == bus | {"pid": (directory.announced("bus") or bus)["pid"]}
        interrupt_and_check(process, log)


@pytest.mark.parametrize("line", ["bus started", "store started", "api listens"])
def test_ctrl_c_while_starting_is_no_error(tmp_path: Path, line: str) -> None:
    """However far it has come: exit code 130, in time, with nothing left."""
    data, log = tmp_path / "data", tmp_path / "up.log"
    command = [sys.executable, "-m", "mlmodelscope", "up", "--data", str(data), "--port", "0"]
    with running(command, environment(data), log) as process:
        wait_for(lambda: line in log.read_text() or process.poll() is not None, line)
        everyone = family(process.pid)
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130, log.read_text()
        assert time.monotonic() - started < STOP_S
        _, alive = psutil.wait_procs(everyone, timeout=0.5)
        assert not alive, f"left behind: {[p.cmdline() for p in alive]}"
    assert "error" not in log.read_text(), log.read_text()


def test_a_store_that_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    """No bus, and a port that is taken, are not tracebacks."""
    command = [sys.executable, "-m", "mlmodelscope", "serve", "store", "--data", str(tmp_path), "--port"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        no_bus = environment(
            tmp_path,
            MLMODELSCOPE_BUS_URL=f"nats://127.0.0.1:{free_port()}",
            MLMODELSCOPE_BUS_CONNECT_TIMEOUT_S="0.5",
        )
        for port, code, said in (("0", 4, "NATS server"), (str(taken.getsockname()[1]), 1, "is taken")):
            done = subprocess.run([*command, port], capture_output=True, text=True, timeout=60, env=no_bus)
            assert done.returncode == code, done.stderr
            assert said in done.stderr and "Traceback" not in done.stderr


def test_the_procfile_works_as_well(tmp_path: Path) -> None:
    """honcho starts all at once and signals all at once, the bus too."""
    data, log, port, bus_port = tmp_path / "data", tmp_path / "honcho.log", free_port(), free_port()
    environ = environment(
        data, MLMODELSCOPE_API_PORT=str(port), MLMODELSCOPE_BUS_URL=f"nats://127.0.0.1:{bus_port}", PYTHONUNBUFFERED="1"
    )
    procfile = str(REPOSITORY / "Procfile")
    with running([sys.executable, "-m", "honcho", "-f", procfile, "start"], environ, log) as process:
        wait_for(lambda: process.poll() is not None or all_ready(port, 2), "ready")
        assert process.poll() is None, log.read_text()
        with Client(f"http://127.0.0.1:{port}") as client:
            found = client.evaluate(
                model="digits-cnn", dataset="digits", targets="all", scenario="accuracy", sample_limit=20
            )
        assert found.status == "completed", found
        second = subprocess.run(
            [sys.executable, "-m", "mlmodelscope", "serve", "bus"],
            capture_output=True,
            text=True,
            timeout=60,
            env=environ,
        )
        assert second.returncode == 1
        assert "in use by another stack" in second.stderr
        interrupt_and_check(process, log)
    assert not re.search(r"Traceback", log.read_text()), log.read_text()


def test_serving_beyond_loopback_needs_a_token(tmp_path: Path) -> None:
    """Without one it is refused at the start, in words."""
    done = subprocess.run(
        [sys.executable, "-m", "mlmodelscope", "up", "--data", str(tmp_path), "--host", "0.0.0.0", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(tmp_path),
    )
    assert done.returncode == 1
    assert "MLMODELSCOPE_API_TOKEN" in done.stderr
    assert "Traceback" not in done.stderr
