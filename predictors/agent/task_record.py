"""The record of a task: what its worker measured, with what the agent knows of the place."""

import hashlib
import json

from predictors.worker.messages import Finished
from schemas.manifest_yaml import manifest_digest
from schemas.result import TaskRecord
from schemas.system import Environment
from schemas.tasks import TaskAssigned


def task_record(
    task: TaskAssigned, finished: Finished, phases_ms: dict[str, float], *, environment: Environment, system_id: str
) -> TaskRecord:
    """Return the figures of `task`. `phases_ms` are the agent's own phases."""
    return TaskRecord(
        accuracy=finished.accuracy,
        latency=finished.latency,
        throughput=finished.throughput,
        cold_start=finished.cold_start,
        pipeline=finished.pipeline,
        environment=environment,
        threads=finished.threads,
        batch_size=task.request.batch_size,
        scenario=finished.scenario,
        load_generator=finished.load_generator,
        validity=finished.validity,
        state_before=finished.state_before,
        state_after=finished.state_after,
        phases_ms={**phases_ms, **finished.phases_ms},
        options=finished.options,
        evaluation_key=evaluation_key(task, finished, environment=environment, system_id=system_id),
    )


def evaluation_key(task: TaskAssigned, finished: Finished, *, environment: Environment, system_id: str) -> str:
    """Return the sha256 over all that makes a figure comparable: equal keys measured the same thing."""
    request = task.request
    parts = {
        "model": manifest_digest(task.model),
        "framework_model": manifest_digest(task.framework_model),
        "dataset": manifest_digest(task.dataset),
        "stack": str(task.stack),
        "pipeline": finished.pipeline.digest,
        "scenario": request.scenario.model_dump(mode="json"),
        "load_generator": finished.load_generator,
        "batch_size": request.batch_size,
        "sample_limit": request.sample_limit,
        "seeds": request.seeds.model_dump(mode="json"),
        "threads": finished.threads.model_dump(mode="json"),
        "options": finished.options,
        "trace_level": int(request.trace_level),
        "environment": environment.digest,
        "python": environment.python,
        "build": environment.build,
        "system": system_id,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
