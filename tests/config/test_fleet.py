import msgspec

from gateway.config import Config
from gateway.config.fleet import Fleet


def test_who_the_workers_are_comes_first_among_all_options() -> None:
    names = [field.name for field in msgspec.structs.fields(Fleet)]
    assert [field.name for field in msgspec.structs.fields(Config)][: len(names)] == names
    assert names[:3] == ["worker", "prefill", "decode"]
