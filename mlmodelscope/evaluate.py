"""One evaluation in one call, by the server that is there."""

from typing import Any

from mlmodelscope.client import Client
from mlmodelscope.server import find_server
from mlmodelscope.settings import read_settings
from schemas.result import Evaluation


def evaluate(*, model: str, dataset: str, url: str | None = None, **fields: Any) -> Evaluation:
    """Evaluate `model` on `dataset` through a running server and return the evaluation.

    `url` defaults to the server that the settings name. For a program without a server, see `local`.
    The further fields are those of `Client.evaluate`.
    """
    settings = read_settings()
    with Client(url or find_server(settings), token=settings.api_token) as client:
        return client.evaluate(model=model, dataset=dataset, **fields)
