"""What an agent is: its id, its stack, its machine; found out once, before it takes tasks."""

import asyncio
import os
import re
import secrets
import socket
import time
from dataclasses import dataclass

from predictors.agent.daemon_thread import in_daemon_thread
from predictors.errors import WorkerCrashedError, WorkerOutOfMemoryError
from predictors.machine.environment import describe_environment
from predictors.machine.system import describe_system
from predictors.worker.messages import Ready
from predictors.worker.process import WorkerProcess, WorkerSettings
from schemas.agents import AgentRegistered, Hardware, Load, Stack
from schemas.evaluation import Device
from schemas.system import Environment, SystemDescription

IMPORT_TIMEOUT_S = 120.0
"""A framework that does not import by then hangs."""
UNKNOWN_VERSION = "0.0.0"
"""Of a framework that does not import: it cannot say."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What does not change while an agent lives."""

    agent_id: str
    stack: Stack
    formats: tuple[str, ...]
    unavailable: str | None
    system: SystemDescription
    environment: Environment
    started_ns: int

    def entry(self, load: Load) -> AgentRegistered:
        """Return the registry's entry as of now."""
        return AgentRegistered(
            agent_id=self.agent_id,
            hostname=self.system.hostname,
            pid=os.getpid(),
            stack=self.stack,
            formats=self.formats,
            hardware=_hardware(self.system),
            load=load,
            available=self.unavailable is None,
            unavailable_reason=self.unavailable,
            environment_digest=self.environment.digest,
            started_ns=self.started_ns,
            heartbeat_ns=time.time_ns(),
        )


async def identify(framework: str, device: Device, agent_id: str | None, *, memory_bytes: int | None) -> Identity:
    """Find out what this agent can do. The framework is imported in a worker process, which ends again."""
    ready = await _probe(WorkerSettings(framework, device, memory_bytes=memory_bytes))
    version = ready.version or UNKNOWN_VERSION
    system = await in_daemon_thread("describe-system", describe_system)
    environment = await in_daemon_thread(
        "describe-environment", lambda: describe_environment(framework, version, ready.build)
    )
    return Identity(
        agent_id=agent_id or default_agent_id(framework),
        stack=Stack(architecture=system.architecture, device=device, framework=framework, version=version),
        formats=ready.formats,
        unavailable=ready.unavailable,
        system=system,
        environment=environment,
        started_ns=time.time_ns(),
    )


def default_agent_id(framework: str) -> str:
    """Return an id that is unlike any other agent's: `<framework>-<host>-<random>`."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{framework}-{socket.gethostname()}")
    return f"{readable[:56].strip('-')}-{secrets.token_hex(3)}"


async def _probe(settings: WorkerSettings) -> Ready:
    """Return what the framework says of itself; one that kills its process cannot run here either."""
    worker = await WorkerProcess.start(settings)
    try:
        async with asyncio.timeout(IMPORT_TIMEOUT_S):
            return await worker.ready()
    except TimeoutError:
        return Ready(unavailable=f"importing {settings.framework} took longer than {IMPORT_TIMEOUT_S:g} s")
    except (WorkerCrashedError, WorkerOutOfMemoryError) as error:
        last = error.detail.strip().splitlines()[-1:] or [""]
        return Ready(unavailable=f"importing {settings.framework} failed: {error.message}. {last[0]}".strip())
    finally:
        await worker.kill()


def _hardware(system: SystemDescription) -> Hardware:
    memory = [gpu.memory_bytes for gpu in system.gpus if gpu.memory_bytes is not None]
    return Hardware(
        system_id=system.system_id,
        cpu=system.cpu.model,
        logical_cores=system.cpu.logical_cores,
        memory_bytes=system.memory_bytes,
        gpus=tuple(gpu.name for gpu in system.gpus),
        gpu_memory_bytes=min(memory, default=None),
        interconnects=system.interconnects,
    )
