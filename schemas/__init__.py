"""Everything that travels or is stored. Importing this package registers every message type."""

from schemas import agents, dead, evaluation, events, manifests, result, system, tasks, trace

__all__ = ["agents", "dead", "evaluation", "events", "manifests", "result", "system", "tasks", "trace"]
