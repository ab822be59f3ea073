import pytest

from gateway.core.caller import Caller, usable
from gateway.core.errors import Forbidden
from gateway.core.worker import ServedModel


def test_a_caller_may_use_the_models_of_its_key() -> None:
    everything, some = Caller("t"), Caller("t", "id", ["m", "n"])
    assert everything.may_use("x") and some.may_use("m") and not some.may_use("x")
    everything.check("x")
    some.check("n")
    with pytest.raises(Forbidden, match="key 'id' may not use the model 'x', only m, n") as caught:
        some.check("x")
    assert (caught.value.status, caught.value.code, caught.value.param) == (403, "model_not_allowed", "model")


def test_usable_models_are_those_of_the_key() -> None:
    served = {name: ServedModel(name, "root") for name in ("m", "n", "o")}
    assert usable(None, served) is served and usable(Caller("t"), served) is served
    assert list(usable(Caller("t", "id", ["n", "x"]), served)) == ["n"]
