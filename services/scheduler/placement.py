"""Which agents get a task, of those that satisfy a request; and whether it is one agent's or any's of its stack."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from schemas.agents import AgentRegistered, Stack
from schemas.events import PlannedTask
from schemas.manifests import FrameworkModel
from schemas.versions import parse_version

Target = tuple[Stack, str | None]
"""What a task is for: a stack, and the one agent of it or None for any."""
Outstanding = Mapping[Target, int]
"""Tasks handed out that have not ended, by target."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stack that can run the model: its agents that satisfy every constraint, and all its able ones."""

    stack: Stack
    entry: FrameworkModel
    position: int
    """Of `entry` in the manifest: earlier wins a tie."""
    satisfying: tuple[AgentRegistered, ...]
    able: tuple[AgentRegistered, ...]
    pinned: bool = False
    """The request names its agent: even an only agent's task is not any agent's."""

    @property
    def shared(self) -> bool:
        """Whether any agent of the stack may take the task."""
        return not self.pinned and len(self.satisfying) == len(self.able)


def task_id(evaluation_id: str, stack: Stack, target: str | None) -> str:
    """Return the id of the task of an evaluation on a stack and a target (an agent, or None for any).

    Planning the same again gives the same id, so that a task published twice is one task.
    """
    text = "\n".join((evaluation_id, stack.architecture, stack.device, stack.framework, stack.version, target or "any"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def place_one(evaluation_id: str, candidates: Sequence[Candidate], outstanding: Outstanding) -> PlannedTask:
    """Return the one task of `targets: one`.

    Of each framework the newest version; of those stacks the one with the least outstanding work an agent;
    ties by the manifest's order, then by the stack's own words. The task is any agent's of the stack when
    all of them satisfy the constraints, so that another takes over when one dies; otherwise it goes to the
    least loaded that does.
    """
    stack = min(
        _newest_of_each(candidates),
        key=lambda one: (_stack_load(one, outstanding), one.position, *_words(one.stack)),
    )
    if stack.shared:
        return _task(evaluation_id, stack.stack, None)
    return _task(evaluation_id, stack.stack, _least_loaded(stack.satisfying, outstanding))


def place_all(evaluation_id: str, candidates: Sequence[Candidate], outstanding: Outstanding) -> tuple[PlannedTask, ...]:
    """Return the tasks of `targets: all`: one for each stack on each distinct system, in the manifest's order.

    Agents of one stack on one system are interchangeable: the task is any agent's. Where the systems of a
    stack differ, or only some of its agents satisfy the constraints, each system's task names its agent.
    """
    tasks: list[PlannedTask] = []
    for one in sorted(candidates, key=lambda one: (one.position, *_words(one.stack))):
        systems = sorted({agent.hardware.system_id for agent in one.satisfying})
        if one.shared and len(systems) == 1:
            tasks.append(_task(evaluation_id, one.stack, None))
            continue
        for system in systems:
            agents = [agent for agent in one.satisfying if agent.hardware.system_id == system]
            tasks.append(_task(evaluation_id, one.stack, _least_loaded(agents, outstanding)))
    return tuple(tasks)


def _task(evaluation_id: str, stack: Stack, agent_id: str | None) -> PlannedTask:
    return PlannedTask(task_id=task_id(evaluation_id, stack, agent_id), stack=stack, agent_id=agent_id)


def _newest_of_each(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return, of each framework, the stacks of its newest version (several: devices, builds)."""
    newest: dict[str, str] = {}
    for one in candidates:
        found = newest.get(one.stack.framework)
        if found is None or parse_version(one.stack.version) > parse_version(found):
            newest[one.stack.framework] = one.stack.version
    return [one for one in candidates if parse_version(one.stack.version) == parse_version(newest[one.stack.framework])]


def _stack_load(one: Candidate, outstanding: Outstanding) -> float:
    """Return the tasks in hand for each agent of a stack.

    What agents say they run and what was handed out and has not ended overlap: the larger is taken.
    """
    running = sum(agent.load.running for agent in one.able)
    handed_out = sum(count for (stack, _), count in outstanding.items() if stack == one.stack)
    return max(running, handed_out) / len(one.able)


def _least_loaded(agents: Iterable[AgentRegistered], outstanding: Outstanding) -> str:
    def load(agent: AgentRegistered) -> tuple[int, str]:
        return max(agent.load.running, outstanding.get((agent.stack, agent.agent_id), 0)), agent.agent_id

    return min(agents, key=load).agent_id


def _words(stack: Stack) -> tuple[str, ...]:
    return stack.framework, stack.device, stack.architecture, stack.version
