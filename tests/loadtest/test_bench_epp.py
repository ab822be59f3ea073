"""Figures of the endpoint picker's benchmark, from made-up rounds."""

from loadtest.bench_epp import figures, loads

ROUNDS = {
    f"{kind}.{name}": [cost, cost + 1]
    for kind, cost in (("own", 200.0), ("grpc.aio", 700.0), ("nothing", 50.0), ("proxy", 90.0))
    for name in ("small", "16k", "piece")
} | {
    "plain.p50_ms": [0.5, 0.4], "plain.p99_ms": [2.0, 1.0],
    "own.p50_ms": [1.2, 1.4], "own.p99_ms": [4.0, 9.0],
    "grpc.aio.p50_ms": [2.4, 3.0], "grpc.aio.p99_ms": [8.0, 9.0],
    "own.per_s": [90.0, 110.0], "nothing.per_s": [100.0, 100.0], "own.rss_mb": [100.0],
    "decide.own.unary": [90.0, 80.0], "decide.grpc.aio.unary": [300.0, 400.0],
    "decide.own.session": [60.0, 70.0], "decide.grpc.aio.session": [200.0, 200.0],
    "decide.inside": [50.0, 40.0],
}  # fmt: skip


def test_figures_are_the_better_rounds_over_what_they_are_compared_with() -> None:
    found = {figure.name: figure for figure in figures(ROUNDS)}
    assert found["epp.small.cpu_us"].value == 50 and found["epp.small.picker_cpu_us"].value == 200
    assert found["epp.piece.grpc_aio_cpu_us"].value == 700 and found["epp.16k.proxy_cpu_us"].value == 90
    assert found["epp.added_p50_ms"].value == 0.8 and found["epp.added_p99_ms"].value == 3.0
    assert found["epp.grpc_aio.added_p50_ms"].value == 2.0
    assert found["epp.long_context_ratio"].value == 1.0 and found["epp.long_context_ratio"].is_floor
    assert [found[f"epp.{name}.cpu_us"].goal for name in ("small", "16k", "piece")] == [60, 80, 8]


def test_each_load_is_a_closed_loop_of_its_own_bodies() -> None:
    assert {name: (body, load.connections) for name, (body, load) in loads().items()} == {
        "small": ("small", 8),
        "16k": ("16k", 8),
        "piece": ("streamed", 8),
        "added": ("small", 8),
        "long": ("220k", 20),
    }
