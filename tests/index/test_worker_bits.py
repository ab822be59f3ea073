from gateway.core.worker import WorkerId
from gateway.index.worker_bits import WorkerBits

A, B = WorkerId("a:1"), WorkerId("b:1")


def test_retired_bits_are_reused_after_a_sweep() -> None:
    bits = WorkerBits()
    assert [bits.allocate(A), bits.allocate(B), bits.allocate_hidden(A)] == [1, 2, 4]
    assert (bits.live, bits.hidden, bits.workers) == (3, 4, {1: A, 2: B})
    bits.retire(1)
    bits.retire(4)
    bits.retire(0)
    assert repr(bits) == "Bits(live=10, hidden=0, swept=0)"
    assert bits.allocate(A) == 8  # retired bits are still on edges
    assert bits.begin_sweep() and bits.swept == 5
    assert bits.allocate(A) == 16
    bits.swept = 0
    assert [bits.allocate(A), bits.allocate_hidden(A)] == [1, 4]
    assert not bits.begin_sweep()
