"""The contract of all indexes, with every lookup through a real server."""

import pytest

from gateway.index.base import Index
from tests.index.contract import IndexContract
from tests.support.redis_index import Radix, radix
from tests.support.redis_servers import redis_server

__all__ = ["radix", "redis_server"]


class TestRadixIndex(IndexContract):
    sees_all = False

    @pytest.fixture(autouse=True)
    def _server(self, radix: Radix) -> None:
        self.radix = radix

    def make(self) -> Index:
        return self.radix.index()
