from gateway.core.worker import ServedModel, Worker, WorkerId, worker_id


def test_a_worker_is_named_by_its_address_and_its_rank_where_there_are_several() -> None:
    assert worker_id("10.0.0.1:8000", 0, 1) == "10.0.0.1:8000"
    assert [worker_id("h:1", rank, 2) for rank in (0, 1)] == ["h:1#0", "h:1#1"]


def test_a_worker_is_found_under_each_of_its_names() -> None:
    served = (ServedModel("m", "root"), ServedModel("lora", "root", "lora"))
    worker = Worker(WorkerId("h:1"), "http://h:1", served)
    assert [worker.find(name) for name in ("m", "lora", "x")] == [*served, None]
