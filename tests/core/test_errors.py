import msgspec

from gateway.core.errors import MAX_MESSAGE_CHARS, GatewayError, NoWorker, UnknownModel


def test_each_error_is_an_openai_error_object() -> None:
    error = UnknownModel("no such model", param="model")
    assert msgspec.json.decode(error.body()) == {
        "error": {
            "message": "no such model",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }
    assert (error.status, NoWorker("x", retry_after_s=2).retry_after_s) == (404, 2)


def test_statuses_are_distinct_answers() -> None:
    def leaves(kind: type[GatewayError]) -> list[type[GatewayError]]:
        return [kind, *(leaf for sub in kind.__subclasses__() for leaf in leaves(sub))]

    codes = [kind.code for kind in leaves(GatewayError)]
    assert len(codes) == len(set(codes))


def test_a_message_is_bounded_whatever_it_quotes() -> None:
    error = UnknownModel(f"the model '{'x' * 10_000_000}' does not exist", param="model")
    assert len(error.body()) < 2 * MAX_MESSAGE_CHARS
    assert len(str(error)) == len(error.message) == MAX_MESSAGE_CHARS + 3
    assert error.message.startswith("the model 'xxx") and error.message.endswith("x...")
