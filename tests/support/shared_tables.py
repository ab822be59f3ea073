"""Table of bookings in the memory of this process."""

import contextlib

from gateway.bookings.shared_ledger import Table


def shared_table(num_rows: int = 3, max_columns: int = 4) -> Table:
    memory = memoryview(bytearray(Table.num_bytes(num_rows, max_columns)))
    return Table(memory, num_rows, contextlib.nullcontext, max_columns=max_columns)
