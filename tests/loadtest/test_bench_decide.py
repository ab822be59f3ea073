"""Figures of the decision service, from made-up rounds."""

from loadtest.bench_decide import decision_figures

ROUNDS = {
    "decide.own.unary": [90.0, 80.0], "decide.grpc.aio.unary": [300.0, 440.0],
    "decide.own.session": [60.0, 70.0], "decide.grpc.aio.session": [200.0, 240.0],
    "decide.inside": [50.0, 40.0],
}  # fmt: skip


def test_figures_are_what_the_service_adds_to_the_decision() -> None:
    found = {figure.name: figure for figure in decision_figures(ROUNDS)}
    assert found["decide.cpu_us"].value == 40 and found["decide.cpu_us"].goal == 40
    assert found["decide.grpc_aio_cpu_us"].value == 260
    assert found["decide.session_cpu_us"].value == 20
    assert found["decide.session_ratio"].rounds == [0.125, 0.15]
    assert found["decide.in_process_us"].value == 40
