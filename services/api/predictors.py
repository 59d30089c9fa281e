"""Predictors: the agents that are live. And the machines they run on."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from schemas.agents import AgentRegistered
from schemas.system import SystemDescription
from services import records
from services.api.context import context_of
from services.api.endpoint import Endpoint
from services.api.exchange import json_response, page_response
from services.api.problems import not_found


async def list_agents(request: Request) -> Response:
    """Return every registered agent; those that cannot run say why."""
    return page_response(await context_of(request).registry.agents(), None)


async def get_agent(request: Request) -> Response:
    """Return one agent."""
    agents = {agent.agent_id: agent for agent in await context_of(request).registry.agents()}
    wanted = request.path_params["agent_id"]
    if wanted not in agents:
        raise not_found(
            "unknown_predictor", f"no agent {wanted} is registered", f"Live: {', '.join(agents) or 'none'}."
        )
    return json_response(agents[wanted])


async def list_systems(request: Request) -> Response:
    """Return every machine that was ever described."""
    return page_response(await asyncio.to_thread(records.systems, context_of(request).store), None)


async def get_system(request: Request) -> Response:
    """Return one machine."""
    wanted = request.path_params["system_id"]
    found = await asyncio.to_thread(records.system, context_of(request).store, wanted)
    if found is None:
        raise not_found("unknown_system", f"no machine {wanted} has been described", "See /api/v1/systems.")
    return json_response(found)


def endpoints() -> list[Endpoint]:
    """Return the routes."""
    agents, systems, tag = "/api/v1/predictors", "/api/v1/systems", "predictors"
    return [
        Endpoint("GET", agents, list_agents, "Live agents: stack, hardware, load", tag, AgentRegistered, True),
        Endpoint("GET", f"{agents}/{{agent_id}}", get_agent, "One agent", tag, AgentRegistered),
        Endpoint("GET", systems, list_systems, "Machines, as last described", tag, SystemDescription, True),
        Endpoint("GET", f"{systems}/{{system_id}}", get_system, "One machine", tag, SystemDescription),
    ]
