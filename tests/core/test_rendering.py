from gateway.core.rendering import VLLM, Rendering


def test_a_rendering_is_named_by_its_engine_and_version() -> None:
    assert str(VLLM) == "vllm"
    assert str(Rendering("sglang", (0, 5, 23), "qwen3")) == "sglang 0.5.23"
