from pathlib import Path

from loadtest.contenders import NGINX_CONF, Contender, metric_sum

EXPOSITION = """\
# TYPE kvgate_worker_prompt_tokens_total counter
kvgate_worker_prompt_tokens_total{worker="127.0.0.1:1"} 100.0
kvgate_worker_prompt_tokens_total{worker="127.0.0.1:2"} 23.0
kvgate_worker_prompt_tokens_created{worker="127.0.0.1:2"} 7.0
kvgate_client_disconnects_total 4.0
"""


def test_a_metric_is_summed_over_its_workers() -> None:
    assert metric_sum(EXPOSITION, "kvgate_worker_prompt_tokens_total") == 123
    assert metric_sum(EXPOSITION, "kvgate_client_disconnects_total") == 4
    assert metric_sum(EXPOSITION, "kvgate_nothing_total") == 0


def test_nginx_listens_on_loopback_only_and_writes_to_its_directory_only() -> None:
    conf = NGINX_CONF.format(directory=Path("/d"), servers="server 127.0.0.1:9;", port=8)
    listens = [line.split()[1] for line in conf.splitlines() if line.strip().startswith("listen")]
    assert listens == ["127.0.0.1:8;"]
    assert conf.count("/d/") == 7
    assert conf.count("{") == conf.count("}")


def test_a_direct_connection_has_no_process_to_watch() -> None:
    assert Contender("direct", 1, 0).pids == []
    assert Contender("nginx", 1, 7).pids == [7]
