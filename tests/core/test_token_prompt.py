import msgspec
import pytest

from gateway.core.token_prompt import TokenPrompt
from gateway.requests.model_alias import renamed
from gateway.requests.parsing import BodyRules, parse_ids, parse_request

IDS = [1, 0, 4_294_967_295]
PATH = "/v1/completions"


@pytest.mark.parametrize("model", ["", "m", 'a "prompt":[1] \\ ü'])
def test_the_whole_body_is_that_of_the_ids(model: str) -> None:
    prompt = TokenPrompt(IDS, b"packed")
    body = prompt.body(model)
    wanted = {"prompt": IDS} | ({"model": model} if model else {})
    assert msgspec.json.decode(prompt.whole(body)) == prompt.fields(body) == wanted


def test_bodies_of_other_ids_differ() -> None:
    """Rewrites of models choose by the body."""
    assert TokenPrompt([1], b"1").body("m") != TokenPrompt([2], b"2").body("m")


@pytest.mark.parametrize("rules", [BodyRules(), BodyRules(salt="s"), BodyRules(model="m", models={"m"})])
def test_a_request_is_the_one_of_its_whole_body(rules: BodyRules) -> None:
    prompt = TokenPrompt(IDS, b"packed")
    body = prompt.body("m")
    request = parse_ids(PATH, body, prompt, rules)
    plain = parse_request(PATH, prompt.whole(body), rules=rules)
    assert prompt.whole(request.body) == plain.body
    assert request.fields == plain.fields and request.top == plain.top
    assert (request.model, request.cache_salt, request.num_prompts) == ("m", plain.cache_salt, 1)
    request.choose("other", renamed(request.body, "other"))
    assert request.fields["prompt"] == IDS and request.fields["model"] == "other"
