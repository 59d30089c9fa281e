"""What is registered, kept at hand: agents, models and data sets, as the registry tells of them."""

import asyncio
from contextlib import aclosing

from bus.registry import Registry
from schemas.agents import AgentRegistered
from schemas.manifests import DatasetManifest, Manifest, ModelManifest


class View:
    """Follows the registry, so that planning reads memory. Behind it by the moment a change takes to arrive."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.agents: list[AgentRegistered] = []
        self.models: list[ModelManifest] = []
        self.datasets: list[DatasetManifest] = []

    async def refresh(self) -> None:
        """Read everything from the registry now. Raises BusUnavailableError."""
        agents, models, datasets = await asyncio.gather(
            self._registry.agents(), self._registry.manifests("model"), self._registry.manifests("dataset")
        )
        self.agents = agents
        self._take(models, datasets)

    async def follow_agents(self) -> None:
        """Keep `agents` up to date for ever. Raises BusUnavailableError when the connection is closed."""
        async with aclosing(self._registry.watch_agents()) as changes:
            async for agents in changes:
                self.agents = agents

    async def follow_models(self) -> None:
        """Keep `models` up to date for ever, as `follow_agents` does."""
        async with aclosing(self._registry.watch_manifests("model")) as changes:
            async for manifests in changes:
                self._take(manifests, None)

    async def follow_datasets(self) -> None:
        """Keep `datasets` up to date for ever, as `follow_agents` does."""
        async with aclosing(self._registry.watch_manifests("dataset")) as changes:
            async for manifests in changes:
                self._take(None, manifests)

    def _take(self, models: list[Manifest] | None, datasets: list[Manifest] | None) -> None:
        if models is not None:
            self.models = [one for one in models if isinstance(one, ModelManifest)]
        if datasets is not None:
            self.datasets = [one for one in datasets if isinstance(one, DatasetManifest)]
