"""Gateways with `--index redis`, before the same simulated engines."""

from functools import partial

from engines.sim import Sim
from gateway.core.blocks import BlockHash
from gateway.index.redis_tree.browse import Browser
from gateway.index.redis_tree.service import RadixService
from gateway.redis.client import LOST, open_client
from gateway.redis.options import redis_of
from tests.support.stories.fleet_story import FleetStory, worker_id
from tests.support.stories.sharing_gateways import QUICK, leader_process, sharing_gateway, sharing_gateways


class TreeStory(FleetStory):
    """A story at a gateway with `--index redis`: the tree takes the place of the gateway's index."""

    def root(self) -> BlockHash:
        (root,) = self.tree.index.trees.by_root
        return root

    @property
    def tree(self) -> RadixService:
        """The service behind the backend's `run`."""
        service = getattr(self.gateway.parts.index._backend.run, "__self__", None)
        assert isinstance(service, RadixService)
        return service

    async def tree_blocks(self, sim: Sim) -> set[BlockHash]:
        options = redis_of(self.gateway.config)
        assert options
        client = open_client(options)
        try:
            browser = Browser(client, options.prefix, self.root())
            owner = (await browser.workers()).get(worker_id(sim))
            return await browser.blocks(await browser.visible(owner.slots)) if owner else set()
        finally:
            await client.aclose()

    async def is_true(self) -> bool:
        try:
            for sim in self.sims:
                if await self.tree_blocks(sim) != await self.cached_blocks(sim):
                    return False
        except (*LOST, ValueError):  # ValueError: an edge was removed between two reads
            return False
        return True

    @property
    def num_local(self) -> int:
        return sum(self.gateway.index.num_blocks(worker_id(sim)) for sim in self.sims)

    @property
    def num_lookups(self) -> int:
        return self.tree.num_lookups

    @property
    def num_answered(self) -> int:
        return self.num_lookups - sum(self.failed.values())

    @property
    def failed(self) -> dict[str, int]:
        return self.tree.failed_lookups


tree_gateway = partial(sharing_gateway, pace=QUICK, kind=TreeStory, index="redis", redis_lookup_timeout_s=0.5)
tree_gateways = partial(sharing_gateways, pace=QUICK, join=tree_gateway)
tree_leader_process = partial(leader_process, index="redis")
