"""A client of the HTTP API: everything comes back as the pydantic models of `schemas`."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import httpx
from pydantic import BaseModel, ValidationError

from mlmodelscope.errors import RequestRefusedError, ScopeError, ServerUnreachableError
from schemas.agents import AgentRegistered
from schemas.codec import explain
from schemas.evaluation import ArtifactRef, EvaluationRequested
from schemas.manifests import MODELS, Kind, Manifest
from schemas.result import FINAL, Evaluation
from schemas.scenario import Scenario
from schemas.system import SystemDescription

POLL_S = 0.05
STORE_LAG_S = 120.0
"""How long the store may lag behind the bus, or be away, before waiting for a result gives up."""
CANCEL_S = 2.0
"""How long an interrupted program waits to have said that its evaluation is to be cancelled."""
_CONNECTIONS = 20
"""How often in a row following an evaluation may fail: about half a minute."""

Progress = Callable[[str, dict[str, Any]], None]
"""Called with the type and the data of each event of an evaluation."""


class Client:
    """Talks to one API. Not for use from several threads; close it, or use it in a `with`."""

    def __init__(
        self, url: str = "http://127.0.0.1:8265", *, token: str | None = None, timeout_s: float = 60.0
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = url.rstrip("/")
        # trust_env=False: a proxy of the environment must not sit between us and a server on loopback.
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._http.close()

    def evaluate(
        self,
        *,
        model: str | ArtifactRef,
        dataset: str | ArtifactRef,
        targets: Literal["one", "all"] = "one",
        batch_size: int = 1,
        framework: str | Sequence[str] = (),
        device: Literal["cpu", "gpu"] | None = None,
        scenario: str | Scenario = "single_stream",
        sample_limit: int | None = None,
        progress: Progress | None = None,
        timeout_s: float | None = None,
        **more: Any,
    ) -> Evaluation:
        """Evaluate a model on a data set, wait for the end, and return the evaluation.

        `model`, `dataset` and `framework` take a range of versions behind the name: `"squeezenet ^1.1"`.
        `more` are further fields of EvaluationRequested. An evaluation that was rejected or failed is
        returned, not raised: its `status` and `failure` say why. Raises RequestRefusedError for a request
        that is no request, ServerUnreachableError, and ScopeError when `timeout_s` runs out (the
        evaluation goes on). Interrupted (Ctrl-C), it cancels the evaluation.
        """
        frameworks = (framework,) if isinstance(framework, str) else tuple(framework)
        constraints = dict(more.pop("constraints", None) or {})
        if frameworks:
            constraints["frameworks"] = frameworks
        if device:
            constraints["device"] = device
        request = _request(
            model=model,
            dataset=dataset,
            targets=targets,
            batch_size=batch_size,
            constraints=constraints,
            scenario={"name": scenario} if isinstance(scenario, str) else scenario,
            sample_limit=sample_limit,
            **more,
        )
        try:
            return self.wait(self.submit(request), progress=progress, timeout_s=timeout_s)
        except (KeyboardInterrupt, SystemExit):
            with contextlib.suppress(ScopeError):  # it cannot be told: being interrupted is what counts
                self._cancel(request.evaluation_id, "interrupted by the user", timeout=CANCEL_S)
            raise

    def submit(self, request: EvaluationRequested) -> str:
        """Ask for an evaluation and return its id at once."""
        answer = self._call("POST", "/api/v1/evaluations", json=request.model_dump(mode="json"))
        return str(answer["evaluation_id"])

    def wait(self, identifier: str, *, progress: Progress | None = None, timeout_s: float | None = None) -> Evaluation:
        """Return the evaluation when it has ended and its results can be read."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._follow_to_end(identifier, progress, deadline)
        settled = time.monotonic() + STORE_LAG_S
        pause_s, why = POLL_S, ""
        while True:
            try:
                found = self.evaluation(identifier)
                if found.status in FINAL:  # a promise of the API: what came of it can be read
                    return found
            except ServerUnreachableError as error:  # the store, or what serves it, is away for a while
                pause_s, why = 1.0, f": {error.message}"
            if time.monotonic() > settled:
                raise ScopeError(
                    f"evaluation {identifier} has ended, but its results have not reached the store{why}",
                    hint=f"They are kept on the bus meanwhile: ask later (mlmodelscope evaluations show {identifier}); "
                    "see /readyz and the log of the store.",
                )
            time.sleep(pause_s)

    def events(self, identifier: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the type and the data of every event of an evaluation, from its first, until its last."""
        for event in self._events(identifier):
            if event is not None:
                yield event

    def _events(self, identifier: str, silence_s: float = 60.0) -> Iterator[tuple[str, dict[str, Any]] | None]:
        """Yield the events, and None for a sign of life; there is one every few seconds."""
        url = f"/api/v1/evaluations/{identifier}/events"
        with self._http.stream("GET", url, timeout=httpx.Timeout(30.0, read=silence_s)) as response:
            if response.is_error:
                response.read()
                raise _refused(response)
            yield from _server_sent(response.iter_lines())

    def _follow_to_end(self, identifier: str, progress: Progress | None, deadline: float | None) -> None:
        """Return when the final event has come; survives a connection that breaks."""
        failures, seen = 0, 0
        while True:
            count = 0
            left_s = 60.0 if deadline is None else deadline - time.monotonic()
            try:
                for event in self._events(identifier, min(60.0, max(left_s, POLL_S))):
                    _check_in_time(identifier, deadline)
                    if event is None:
                        continue
                    kind, data = event
                    count += 1
                    if count > seen:  # after a reconnection the stream starts again
                        seen, failures = count, 0
                        if progress:
                            progress(kind, data)
                    if kind in ("evaluation_completed", "evaluation_rejected"):
                        return
                if self.evaluation(identifier).status in FINAL:
                    return
            except (httpx.TransportError, ServerUnreachableError) as error:
                failures += 1
                if failures > _CONNECTIONS:
                    raise ServerUnreachableError(f"the API at {self.url} went away: {error}") from error
            _check_in_time(identifier, deadline)
            time.sleep(min(POLL_S * 2**failures, 2.0))

    def evaluation(self, identifier: str) -> Evaluation:
        """Return one evaluation as it stands."""
        return Evaluation.model_validate(self._call("GET", f"/api/v1/evaluations/{identifier}"))

    def evaluations(self, **filters: Any) -> list[Evaluation]:
        """Return evaluations, newest first; `limit` and the API's filters: model, dataset, framework, status..."""
        limit = filters.pop("limit", None)
        found = self._pages("/api/v1/evaluations", filters, limit)
        return [Evaluation.model_validate(row) for row in found]

    def cancel(self, identifier: str, reason: str = "") -> None:
        """Ask for an evaluation to be stopped. What has ended stays as it is."""
        self._cancel(identifier, reason)

    def _cancel(self, identifier: str, reason: str, **arguments: Any) -> None:
        self._call("POST", f"/api/v1/evaluations/{identifier}/cancel", json={"reason": reason}, **arguments)

    def predictions(self, identifier: str, **filters: Any) -> list[dict[str, Any]]:
        """Return the per-input predictions of an evaluation."""
        return self._pages(f"/api/v1/evaluations/{identifier}/predictions", filters, filters.pop("limit", None))

    def queries(self, identifier: str, **filters: Any) -> list[dict[str, Any]]:
        """Return the measured queries of an evaluation, times in nanoseconds since the first was issued."""
        return self._pages(f"/api/v1/evaluations/{identifier}/queries", filters, filters.pop("limit", None))

    def predictors(self) -> list[AgentRegistered]:
        """Return the agents that are registered now, those that cannot run included, with the reason."""
        return [AgentRegistered.model_validate(row) for row in self._call("GET", "/api/v1/predictors")["items"]]

    def systems(self) -> list[SystemDescription]:
        """Return every machine that has evaluated something or has an agent."""
        return [SystemDescription.model_validate(row) for row in self._call("GET", "/api/v1/systems")["items"]]

    def manifests(self, kind: Kind, **filters: Any) -> list[Manifest]:
        """Return the registered manifests of a kind."""
        found = self._pages(f"/api/v1/{kind}s", filters, None)
        return [MODELS[kind].model_validate(row) for row in found]

    def manifest(self, kind: Kind, name: str, version: str = "*") -> Manifest:
        """Return the newest manifest of `name` whose version is in the range."""
        return MODELS[kind].model_validate(self._call("GET", f"/api/v1/{kind}s/{name}", params={"version": version}))

    def add_manifest(self, kind: Kind, text: str, source: str = "manifest") -> Manifest:
        """Register a manifest from its YAML."""
        headers = {"Content-Type": "application/yaml"}
        answer = self._call(
            "POST", f"/api/v1/{kind}s", content=text.encode(), headers=headers, params={"source": source}
        )
        return MODELS[kind].model_validate(answer)

    def remove_manifest(self, kind: Kind, name: str, version: str) -> None:
        """Take a manifest out of the registry. What it evaluated stays."""
        self._call("DELETE", f"/api/v1/{kind}s/{name}", params={"version": version})

    def sql(self, query: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run a read-only query over the `mlms_*` views: `{"columns": [...], "rows": [[...], ...]}`."""
        body = {"query": query, "params": dict(parameters or {})}
        return dict(self._call("POST", "/api/v1/sql", json=body))

    def _pages(self, path: str, filters: Mapping[str, Any], limit: int | None) -> list[dict[str, Any]]:
        """Return all items of a listing, page after page, or the first `limit`."""
        parameters = {name: value for name, value in filters.items() if value is not None}
        found: list[dict[str, Any]] = []
        while True:
            if limit is not None:
                parameters["limit"] = min(limit - len(found), 1000)
            page = self._call("GET", path, params=parameters)
            found += page["items"]
            if not page.get("next_cursor") or (limit is not None and len(found) >= limit):
                return found
            parameters["cursor"] = page["next_cursor"]

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        try:
            response = self._http.request(method, path, **arguments)
        except httpx.TransportError as error:
            raise ServerUnreachableError(
                f"no MLModelScope API answers at {self.url} ({error})",
                hint="start one with `mlmodelscope up`, or name another with --url or MLMODELSCOPE_API_URL",
            ) from error
        if response.is_error:
            raise _refused(response)
        return response.json() if response.content else None


def _request(**fields: Any) -> EvaluationRequested:
    try:
        return EvaluationRequested.model_validate(
            {name: value.model_dump() if isinstance(value, BaseModel) else value for name, value in fields.items()}
        )
    except ValidationError as error:
        raise RequestRefusedError(explain(error), code="invalid_request") from error


def _refused(response: httpx.Response) -> ScopeError:
    """Return the error that an answer states, as problem+json or in plain words."""
    try:
        problem = response.json()
    except json.JSONDecodeError:
        problem = {}
    detail = problem.get("detail") or problem.get("title") or response.text[:500] or response.reason_phrase
    kind: type[ScopeError] = RequestRefusedError
    if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:  # nothing is wrong with what was asked
        away = response.status_code == httpx.codes.SERVICE_UNAVAILABLE
        kind = ServerUnreachableError if away else ScopeError
    return kind(
        str(detail), hint=str(problem.get("hint", "")), code=str(problem.get("code", "")), status=response.status_code
    )


def _check_in_time(identifier: str, deadline: float | None) -> None:
    if deadline is not None and time.monotonic() > deadline:
        raise ScopeError(f"evaluation {identifier} has not ended in time; it goes on")


def _server_sent(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]] | None]:
    """Yield (event, data) of a text/event-stream, and None for a comment."""
    kind, data = "", ""
    for line in lines:
        if line.startswith(":"):
            yield None
        elif line.startswith("event:"):
            kind = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()
        elif not line and data:
            yield kind, json.loads(data)
            kind, data = "", ""
