from gateway.choosing import library_of
from gateway.config import load
from gateway.policies.prefix_overlap import PrefixOverlap


def test_options_reach_the_library() -> None:
    config = load({"medium_worth": ["CPU=0.1"], "policies": {"mine": {"policy": "random"}}}, {})
    library = library_of(config)
    policy = library.policy(config.policy)
    assert isinstance(policy, PrefixOverlap) and policy.worth["CPU"] == 0.1
    assert library.policy("mine").name == "mine"
