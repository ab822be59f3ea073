from gateway.core.ledger import Ledger
from tests.support.worlds.ledgers import LedgerContract


class TestLedger(LedgerContract):
    def make(self) -> Ledger:
        return Ledger()
