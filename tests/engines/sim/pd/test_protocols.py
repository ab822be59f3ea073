"""Which protocol reads a request, and what prefill's answer tells."""

from engines.sim import SimConfig
from engines.sim.pd.leg import Leg
from engines.sim.pd.protocols import read_leg

PREFILL = {"kv_transfer_params": {"do_remote_decode": True}}


def test_a_worker_without_a_role_takes_no_part() -> None:
    assert read_leg(PREFILL, SimConfig()) is None


def test_nixl_does_not_look_at_its_role() -> None:
    for role in ("prefill", "decode", "both"):
        assert read_leg(PREFILL, SimConfig(pd_role=role)) == Leg(pins=True)
