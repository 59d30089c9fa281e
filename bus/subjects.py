"""Every subject and consumer name of the project. Nothing else builds one.

Words (frameworks, versions, architectures) become lower-case tokens; ids are tokens already and stay as they are.
"""

import re

from pydantic import BaseModel

from schemas.agents import Stack
from schemas.codec import type_of

PREFIX = "mlms.v1"
ANY_AGENT = "any"
NO_EVALUATION = "-"
"""Stands for the evaluation's id in the subject of an event that belongs to none."""

_NOT_TOKEN = re.compile(r"[^a-z0-9_-]")


def token(text: str) -> str:
    """Return `text` as one token: lower case; dots, '+' and whatever else a token may not have as dashes."""
    return _NOT_TOKEN.sub("-", text.lower()) or NO_EVALUATION


def evaluation_requested() -> str:
    """Return the subject of requests for an evaluation."""
    return f"{PREFIX}.evaluation.requested"


def cancellation_requested() -> str:
    """Return the subject of requests to cancel one."""
    return f"{PREFIX}.evaluation.cancelled"


def task(stack: Stack, agent_id: str | None = None) -> str:
    """Return the subject of tasks for any agent of `stack`, or for the one with `agent_id`.

    Raises ValueError for an agent that is called like the wildcard, `any`.
    """
    if agent_id == ANY_AGENT:
        raise ValueError(f"no agent may be called {ANY_AGENT!r}: it stands for every agent of a stack")
    return ".".join((f"{PREFIX}.task", *_stack_tokens(stack), agent_id or ANY_AGENT))


def all_tasks() -> str:
    """Return the filter of every task."""
    return f"{PREFIX}.task.>"


def event(data_type: str, evaluation_id: str = NO_EVALUATION) -> str:
    """Return the subject of an event."""
    return f"{PREFIX}.event.{token(data_type)}.{evaluation_id}"


def event_of(data: BaseModel) -> str:
    """Return the subject of an event, by its registered type and its evaluation's id if it has one."""
    return event(type_of(data), getattr(data, "evaluation_id", NO_EVALUATION))


def events_of(evaluation_id: str) -> str:
    """Return the filter of one evaluation's events."""
    return f"{PREFIX}.event.*.{evaluation_id}"


def all_events() -> str:
    """Return the filter of every event."""
    return f"{PREFIX}.event.>"


def dead(stream: str) -> str:
    """Return the subject of dead letters from `stream`."""
    return f"{PREFIX}.dead.{token(stream)}"


def all_dead() -> str:
    """Return the filter of every dead letter."""
    return f"{PREFIX}.dead.>"


def stack_consumer(stack: Stack) -> str:
    """Return the name of the durable consumer that all agents of `stack` share.

    '=' is in no token, so different stacks never share a name.
    """
    return "=".join(("stack", *_stack_tokens(stack)))


def agent_consumer(agent_id: str) -> str:
    """Return the name of an agent's own durable consumer."""
    return f"agent={agent_id}"


def is_agent_consumer(durable: str) -> bool:
    """Return whether a durable consumer belongs to one agent, and goes when the agent has been gone for long."""
    return durable.startswith("agent=")


def _stack_tokens(stack: Stack) -> tuple[str, str, str, str]:
    return token(stack.architecture), token(stack.device), token(stack.framework), token(stack.version)
