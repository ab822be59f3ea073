from dataclasses import astuple

from gateway.core.blocks import root_hash
from gateway.core.worker import WorkerId
from gateway.redis.keys import WorkerKeys, bookings_channel, lock_keys, schema_key

W = WorkerId("10.0.0.1:8000#3")


def test_all_keys_of_a_worker_are_under_the_prefix_and_in_one_slot() -> None:
    keys = astuple(WorkerKeys.of("fleet", root_hash("m"), 16, W))
    assert len(set(keys)) == len(keys)
    assert all(key.startswith("fleet:") and "{10.0.0.1:8000#3}" in key for key in keys)
    assert schema_key("fleet") == "fleet:schema"


def test_another_model_or_block_size_has_other_keys() -> None:
    credential_option = [WorkerKeys.of("p", root_hash(m), size, W) for m in ("a", "b") for size in (16, 32)]
    assert len({keys.log for keys in credential_option}) == 4


def test_keys_of_the_lock_share_a_slot_and_databases_have_their_own_channels() -> None:
    assert lock_keys("fleet") == ("fleet:{lock}:holder", "fleet:{lock}:number")
    assert bookings_channel("fleet", 0) != bookings_channel("fleet", 1)
