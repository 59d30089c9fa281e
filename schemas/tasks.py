"""What the scheduler hands to a predictor agent."""

from schemas.agents import Stack
from schemas.base import Event, Identifier
from schemas.codec import register
from schemas.evaluation import EvaluationRequested
from schemas.manifests import DatasetManifest, FrameworkModel, ModelManifest


@register("task_assigned")
class TaskAssigned(Event):
    """One evaluation on one stack, complete: an agent needs nothing else to run it."""

    task_id: Identifier
    """Derived from the evaluation's id and the stack, so that planning again gives the same."""
    evaluation_id: Identifier
    stack: Stack
    agent_id: Identifier | None = None
    """The one agent it is for; None: any agent of the stack."""
    request: EvaluationRequested
    model: ModelManifest
    framework_model: FrameworkModel
    """The entry of `model.frameworks` that was chosen."""
    dataset: DatasetManifest
