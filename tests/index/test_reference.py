from gateway.index.base import Index
from gateway.index.reference import ReferenceIndex
from tests.index.contract import IndexContract


class TestReferenceIndex(IndexContract):
    def make(self) -> Index:
        return ReferenceIndex()
