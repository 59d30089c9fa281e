"""The worker's main loop: import the framework, say so, do jobs."""

import os
import socket
import time
import traceback

from predictors.errors import FrameworkUnavailableError, PredictorError
from predictors.frameworks.registry import load_framework
from predictors.worker.death import out_of_memory
from predictors.worker.evaluate import Evaluator
from predictors.worker.messages import Channel, Failed, Job, Ready
from schemas.evaluation import Device
from schemas.failure import Failure


def serve(sock: socket.socket, framework_name: str, device: Device, asked_ns: int) -> None:
    """Serve jobs until the agent closes the channel, or one fails: then this process is not to be used again."""
    channel = Channel(sock)
    try:
        framework = load_framework(framework_name)
        ready = Ready(
            version=framework.version(),
            build=framework.build(),
            formats=framework.formats,
            unavailable=framework.unavailable(device),
        )
    except FrameworkUnavailableError as error:
        channel.send(Ready(unavailable=error.message))
        return
    process_start_ms = (time.perf_counter_ns() - asked_ns) / 1e6
    channel.send(ready)
    evaluator = Evaluator(framework, device, channel.send, process_start_ms)
    while (message := channel.receive()) is not None:
        assert isinstance(message, Job)
        failure = _attempt(evaluator, message)
        if failure is not None:
            channel.send(Failed(failure=failure))
            break
    evaluator.close()


def _attempt(evaluator: Evaluator, job: Job) -> Failure | None:
    try:
        evaluator.run(job)
    except PredictorError as error:
        return error.failure()
    except MemoryError as error:
        return out_of_memory(error).failure()
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)  # the agent is gone, and nobody is left to tell
    except Exception as error:  # noqa: BLE001 - a fault of ours: told whole, for it is the only evidence
        return Failure(
            code="internal",
            message=f"the worker failed: {type(error).__name__}: {error}",
            hint="this is a fault in the platform; the detail says where",
            detail=traceback.format_exc()[-8000:],
        )
    return None
