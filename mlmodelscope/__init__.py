"""MLModelScope: evaluate, benchmark and profile machine-learning models repeatably.

with mlmodelscope.local() as scope:
    evaluation = scope.evaluate(model="digits-cnn", dataset="digits", targets="all", batch_size=8)
"""

from mlmodelscope.client import Client
from mlmodelscope.errors import RequestRefusedError, ScopeError, ServerUnreachableError, StackError
from mlmodelscope.evaluate import evaluate
from mlmodelscope.local import local
from schemas.result import Evaluation, TaskResult

__all__ = [
    "Client",
    "Evaluation",
    "RequestRefusedError",
    "ScopeError",
    "ServerUnreachableError",
    "StackError",
    "TaskResult",
    "evaluate",
    "local",
]
