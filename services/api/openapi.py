"""The OpenAPI 3.1 document, made of the route table and of the schemas that the routes use."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter

from services.api.endpoint import Endpoint
from services.api.problems import MEDIA_TYPE, Problem

_REF = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"\{(\w+)\}")


class Document:
    """Collects what the endpoints say."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._schemas: dict[str, Any] = {}

    def of(self, endpoints: Sequence[Endpoint]) -> dict[str, Any]:
        """Return the document for these endpoints."""
        problem = {"description": "What went wrong, and what to do", "content": {MEDIA_TYPE: self._schema(Problem)}}
        paths: dict[str, dict[str, Any]] = {}
        for endpoint in endpoints:
            paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = self._operation(endpoint)
        return {
            "openapi": "3.1.0",
            "info": {"title": "MLModelScope", "version": self._version, "license": {"name": "Apache-2.0"}},
            "paths": paths,
            "security": [{}, {"token": []}],
            "components": {
                "schemas": dict(sorted(self._schemas.items())),
                "responses": {"Problem": problem},
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }

    def _operation(self, endpoint: Endpoint) -> dict[str, Any]:
        operation: dict[str, Any] = {
            "operationId": f"{endpoint.method.lower()}_{re.sub(r'[^a-z0-9]+', '_', endpoint.path.lower()).strip('_')}",
            "summary": endpoint.summary,
            "tags": [endpoint.tag],
            "parameters": [*self._in_path(endpoint), *self._in_query(endpoint)],
            "responses": {
                str(int(endpoint.status)): self._answer(endpoint),
                "default": {"$ref": "#/components/responses/Problem"},
            },
        }
        if endpoint.body is not None:
            content = self._schema(endpoint.body)
            operation["requestBody"] = {
                "required": True,
                "content": dict.fromkeys(endpoint.body_types, content),
            }
        return operation

    def _answer(self, endpoint: Endpoint) -> dict[str, Any]:
        answer: dict[str, Any] = {"description": endpoint.status.phrase}
        if endpoint.returns is None:
            if endpoint.media_type != "application/json":
                answer["content"] = {endpoint.media_type: {"schema": {"type": "string"}}}
            return answer
        schema = self._schema(endpoint.returns, "serialization")["schema"]
        if endpoint.paged:
            schema = {
                "type": "object",
                "required": ["items", "next_cursor"],
                "properties": {
                    "items": {"type": "array", "items": schema},
                    "next_cursor": {"type": ["string", "null"], "description": "For the next page; null at the end."},
                },
            }
        answer["content"] = {endpoint.media_type: {"schema": schema}}
        return answer

    def _in_path(self, endpoint: Endpoint) -> list[dict[str, Any]]:
        names = _PARAMETER.findall(endpoint.path)
        return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]

    def _in_query(self, endpoint: Endpoint) -> list[dict[str, Any]]:
        if endpoint.query is None:
            return []
        schema = endpoint.query.model_json_schema(ref_template=_REF)
        self._schemas |= schema.get("$defs", {})
        required = schema.get("required", [])
        return [
            {
                "name": name,
                "in": "query",
                "required": name in required,
                "description": field.pop("description", ""),
                "schema": field,
            }
            for name, field in schema["properties"].items()
        ]

    def _schema(self, model: type[BaseModel], mode: Any = "validation") -> dict[str, Any]:
        """Return a reference to a model, and keep it and all that it is made of.

        What is sent and what is answered are one schema here: a default that is always answered is still a default.
        """
        schema = TypeAdapter(model).json_schema(mode=mode, ref_template=_REF)
        self._schemas |= schema.pop("$defs", {})
        self._schemas.setdefault(model.__name__, schema)
        return {"schema": {"$ref": _REF.format(model=model.__name__)}}
