"""Worker with answers of tiny units, as the gateway sees it."""

import pytest

from loadtest.hostile_body import post
from loadtest.hostile_units import pouring_worker
from loadtest.outpouring import MODEL, UNITS


@pytest.mark.process
@pytest.mark.parametrize("unit", UNITS)
def test_an_answer_consists_of_its_unit(unit: str) -> None:
    with pouring_worker() as url:
        body = f'{{"model":"{MODEL}","prompt":"{unit}","max_tokens":200000}}'.encode()
        assert post(url, "/v1/completions", body)[0] == 200
