"""Which constraints an agent fails: the request's, and those of the model's manifest."""

from collections.abc import Iterator

from schemas.agents import AgentRegistered, Hardware, Stack
from schemas.errors import VersionError
from schemas.evaluation import ArtifactRef, Constraints
from schemas.manifests import FrameworkModel, ModelManifest
from schemas.result import Unsatisfied
from schemas.versions import satisfies

NOT_READ = "not read"
"""What an agent offers where it could not read its own hardware."""


def framework_model(model: ModelManifest, stack: Stack, formats: frozenset[str]) -> FrameworkModel | None:
    """Return the first entry of the manifest that this stack can run and whose format is one of `formats`."""
    return next((entry for entry in _entries(model, stack) if entry.model.format in formats), None)


def stack_formats(stack: Stack, agents: list[AgentRegistered]) -> frozenset[str]:
    """Return the formats that any agent of `stack` opens."""
    return frozenset(name for agent in agents if agent.stack == stack for name in agent.formats)


def unsatisfied(
    agent: AgentRegistered, model: ModelManifest, entry: FrameworkModel | None, constraints: Constraints
) -> tuple[Unsatisfied, ...]:
    """Return every constraint that `agent` fails for `model`; empty: it can be given the task.

    `entry` is the part of the manifest chosen for the agent's stack, None when there is none.
    """
    return (
        *_of_agent(agent, constraints),
        *_of_model(agent, model, entry),
        *_of_framework(agent.stack, constraints.frameworks),
        *_of_hardware(agent.hardware, constraints),
    )


def _of_agent(agent: AgentRegistered, constraints: Constraints) -> Iterator[Unsatisfied]:
    if not agent.available:
        yield Unsatisfied(
            constraint="available", wanted="able to run", offered=agent.unavailable_reason or "reported as not able"
        )
    if constraints.agent is not None and agent.agent_id != constraints.agent:
        yield Unsatisfied(constraint="agent", wanted=constraints.agent, offered=agent.agent_id)
    for name in ("device", "architecture"):
        wanted, offered = getattr(constraints, name), getattr(agent.stack, name)
        if wanted is not None and wanted != offered:
            yield Unsatisfied(constraint=name, wanted=wanted, offered=offered)


def _of_model(agent: AgentRegistered, model: ModelManifest, entry: FrameworkModel | None) -> Iterator[Unsatisfied]:
    if entry is not None and entry.model.format in agent.formats:
        return
    title = f"{model.name} {model.version}"
    named = [one for one in model.frameworks if one.name == agent.stack.framework]
    fitting = [entry] if entry is not None else list(_entries(model, agent.stack))
    if not named:
        wanted = " or ".join(dict.fromkeys(one.name for one in model.frameworks))
        yield Unsatisfied(constraint="framework", wanted=f"{wanted} (files of {title})", offered=agent.stack.framework)
    elif not fitting:
        wanted = " or ".join(dict.fromkeys(f"{one.name} {one.version}" for one in named))
        yield Unsatisfied(
            constraint="framework version", wanted=f"{wanted} (manifest of {title})", offered=agent.stack.version
        )
    else:
        wanted = " or ".join(dict.fromkeys(one.model.format for one in fitting))
        offered = ", ".join(agent.formats) or "none"
        yield Unsatisfied(constraint="format", wanted=f"{wanted} (files of {title})", offered=offered)


def _of_framework(stack: Stack, wanted: tuple[ArtifactRef, ...]) -> Iterator[Unsatisfied]:
    if wanted and not any(ref.name == stack.framework and _in_range(stack.version, ref.version) for ref in wanted):
        same = [ref for ref in wanted if ref.name == stack.framework]
        yield Unsatisfied(
            constraint="framework version" if same else "framework",
            wanted=" or ".join(f"{ref.name} {ref.version}" for ref in same or wanted),
            offered=f"{stack.framework} {stack.version}",
        )


def _of_hardware(hardware: Hardware, constraints: Constraints) -> Iterator[Unsatisfied]:
    for name, wanted, offered in (
        ("gpu", constraints.gpu, hardware.gpus),
        ("interconnect", constraints.interconnect, hardware.interconnects),
    ):
        if wanted is not None and not any(wanted.lower() in one.lower() for one in offered):
            yield Unsatisfied(constraint=name, wanted=wanted, offered=", ".join(offered) or "none")
    for name, least, has in (
        ("min_memory_bytes", constraints.min_memory_bytes, hardware.memory_bytes),
        ("min_gpu_memory_bytes", constraints.min_gpu_memory_bytes, hardware.gpu_memory_bytes),
    ):
        if least is not None and (has is None or has < least):
            yield Unsatisfied(
                constraint=name, wanted=f"at least {least}", offered=NOT_READ if has is None else str(has)
            )


def _entries(model: ModelManifest, stack: Stack) -> Iterator[FrameworkModel]:
    for entry in model.frameworks:
        if entry.name == stack.framework and _in_range(stack.version, entry.version):
            yield entry


def _in_range(version: str, wanted: str) -> bool:
    """Return whether a version an agent reports is in a range. One that is no version is in none."""
    try:
        return satisfies(version, wanted)
    except VersionError:
        return False
