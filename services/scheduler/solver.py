"""From a request and what is registered to a plan, or to a rejection that says what was in the way. Pure.

Newest wins, among what can run: the newest version of the model that is in the request's range *and* has a
predictor that satisfies every constraint. (npm would take the newest in the range and fail; here an older
version that runs is preferred to none, and the plan says which it is.) For that version, the newest version
of the data set in its range that is of the model's modality.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from schemas.agents import AgentRegistered, Stack
from schemas.evaluation import ArtifactRef, EvaluationRequested
from schemas.events import EvaluationAccepted, PlannedTask
from schemas.failure import Failure, FailureCode
from schemas.manifests import DatasetManifest, ModelManifest
from schemas.result import NearMiss, Unsatisfied
from schemas.tasks import TaskAssigned
from schemas.trace import TraceLevel
from schemas.versions import parse_version, satisfies
from services.scheduler.matching import framework_model, stack_formats, unsatisfied
from services.scheduler.placement import Candidate, Outstanding, place_all, place_one

MAX_NEAR_MISSES = 100
"""The nearest that a rejection names: it must fit into one message, however many agents there are."""

M = TypeVar("M", ModelManifest, DatasetManifest)


@dataclass(frozen=True, slots=True)
class Plan:
    """What will run."""

    model: ModelManifest
    dataset: DatasetManifest
    tasks: tuple[PlannedTask, ...]


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why nothing will run."""

    failure: Failure
    near_misses: tuple[NearMiss, ...] = ()


def plan(
    request: EvaluationRequested,
    agents: Iterable[AgentRegistered],
    models: Iterable[ModelManifest],
    datasets: Iterable[DatasetManifest],
    outstanding: Outstanding | None = None,
) -> Plan | Rejection:
    """Return what to run for `request`, or why nothing can. Deterministic; the order of the inputs is immaterial.

    `outstanding`: tasks handed out that have not ended; with the agents' own load they spread the work.
    """
    if request.trace_level > TraceLevel.NONE:
        return _no_tracing(request.trace_level)
    fitting_models = _in_range(request.model, models, "model", "unknown_model")
    if isinstance(fitting_models, Rejection):
        return fitting_models
    fitting_datasets = _in_range(request.dataset, datasets, "data set", "unknown_dataset")
    if isinstance(fitting_datasets, Rejection):
        return fitting_datasets
    everyone = sorted(agents, key=lambda agent: agent.agent_id)
    rejection = None
    for model in fitting_models:
        dataset = next((one for one in fitting_datasets if _goes_with(model, one)), None)
        if dataset is None:
            rejection = rejection or _mismatch(model, fitting_datasets[0])
            continue
        candidates = _candidates(request, model, everyone)
        if candidates:
            place = place_one if request.targets == "one" else place_all
            tasks = place(request.evaluation_id, candidates, outstanding or {})
            return Plan(model, dataset, tasks if isinstance(tasks, tuple) else (tasks,))
        if rejection is None or rejection.failure.code == "invalid_request":
            rejection = _no_predictor(request, model, everyone)
    assert rejection is not None, "at least one version of the model was in the range"
    return rejection


def _no_tracing(level: TraceLevel) -> Rejection:
    """Return the refusal of a wish that no predictor can fulfil: better than a run without the trace asked for."""
    message = f"trace level {level.name.lower()} was asked for, and no predictor of this version records spans"
    return Rejection(Failure(code="invalid_request", message=message, hint="Ask for trace level none."))


def assignments(accepted: EvaluationAccepted, agents: Iterable[AgentRegistered]) -> list[TaskAssigned]:
    """Return the tasks of an accepted evaluation, complete, as they go to the agents.

    The same from the same plan: the entry of the manifest is the first that the stack can run, among the
    formats its agents open (all formats, when none of them is left to ask).
    """
    everyone = list(agents)
    tasks = []
    for task in accepted.tasks:
        every_format = frozenset(entry.model.format for entry in accepted.model.frameworks)
        entry = framework_model(accepted.model, task.stack, stack_formats(task.stack, everyone)) or framework_model(
            accepted.model, task.stack, every_format
        )
        assert entry is not None, f"a task was planned on {task.stack}, for which {accepted.model.name} has no entry"
        tasks.append(
            TaskAssigned(
                task_id=task.task_id,
                evaluation_id=accepted.evaluation_id,
                stack=task.stack,
                agent_id=task.agent_id,
                request=accepted.request,
                model=accepted.model,
                framework_model=entry,
                dataset=accepted.dataset,
            )
        )
    return tasks


def _in_range(ref: ArtifactRef, manifests: Iterable[M], noun: str, code: FailureCode) -> list[M] | Rejection:
    """Return the manifests of that name in that range, newest first; a rejection when there are none."""
    everything = list(manifests)
    named = sorted(
        (one for one in everything if one.name == ref.name),
        key=lambda one: (parse_version(one.version), one.version),
        reverse=True,
    )
    fitting = [one for one in named if satisfies(one.version, ref.version)]
    if fitting:
        return fitting
    if named:
        versions = ", ".join(one.version for one in named)
        message = f"no version of {noun} {ref.name} satisfies {ref.version}; registered: {versions}"
        return Rejection(Failure(code=code, message=message, hint="Widen the range, or register the version you want."))
    names = sorted({one.name for one in everything})
    close = difflib.get_close_matches(ref.name, names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(close)}?" if close else f"Registered: {', '.join(names) or 'none'}."
    return Rejection(Failure(code=code, message=f"there is no {noun} called {ref.name}", hint=hint))


def _goes_with(model: ModelManifest, dataset: DatasetManifest) -> bool:
    """Return whether the data set is of the model's task. A raw model takes what its input steps can read."""
    return model.modality in (dataset.modality, "raw-tensor")


def _mismatch(model: ModelManifest, dataset: DatasetManifest) -> Rejection:
    message = (
        f"model {model.name} {model.version} is for {model.modality}, "
        f"data set {dataset.name} {dataset.version} for {dataset.modality}"
    )
    miss = NearMiss(failed=(Unsatisfied(constraint="modality", wanted=model.modality, offered=dataset.modality),))
    hint = f"Choose a data set for {model.modality}."
    return Rejection(Failure(code="invalid_request", message=message, hint=hint), (miss,))


def _candidates(request: EvaluationRequested, model: ModelManifest, agents: list[AgentRegistered]) -> list[Candidate]:
    by_stack: dict[Stack, list[AgentRegistered]] = {}
    for agent in agents:
        if agent.available:
            by_stack.setdefault(agent.stack, []).append(agent)
    found = []
    for stack, able in by_stack.items():
        entry = framework_model(model, stack, stack_formats(stack, able))
        fitting = tuple(agent for agent in able if not unsatisfied(agent, model, entry, request.constraints))
        if entry is not None and fitting:
            position = model.frameworks.index(entry)
            pinned = request.constraints.agent is not None
            found.append(Candidate(stack, entry, position, fitting, tuple(able), pinned))
    return found


def _no_predictor(request: EvaluationRequested, model: ModelManifest, agents: list[AgentRegistered]) -> Rejection:
    """Return a rejection that names, for each agent, every constraint it failed; the nearest first."""
    misses = []
    for agent in agents:
        peers = [one for one in agents if one.available or one is agent]
        entry = framework_model(model, agent.stack, stack_formats(agent.stack, peers))
        failed = unsatisfied(agent, model, entry, request.constraints)
        misses.append(NearMiss(agent_id=agent.agent_id, stack=agent.stack, failed=failed))
    misses.sort(key=lambda miss: (len(miss.failed), miss.agent_id))
    asked = request.constraints.agent
    if asked is not None and all(agent.agent_id != asked for agent in agents):
        offered = ", ".join(agent.agent_id for agent in agents) or "no agent is registered"
        missing = Unsatisfied(constraint="agent", wanted=asked, offered=offered)
        misses.insert(0, NearMiss(agent_id=asked, failed=(missing,)))
    title = f"{model.name} {model.version}"
    frameworks = " or ".join(dict.fromkeys(entry.name for entry in model.frameworks))
    if not agents:
        message = f"no agent is registered; {title} runs on {frameworks}"
        hint = f"Start one: mlmodelscope agent {model.frameworks[0].name}"
    else:
        message = f"none of {len(agents)} registered agents can run {title} as asked for"
        hint = "Relax a constraint that is named in the near misses, or start an agent that satisfies them."
    return Rejection(Failure(code="no_predictor", message=message, hint=hint), tuple(misses[:MAX_NEAR_MISSES]))
