"""Data of each engine for the tests: `tests/data/engines/<name>.json`, one file per engine in `ENGINES`.

A new engine's file is all that the tests of every engine need.
"""

from pathlib import Path
from typing import Any

import msgspec

from tests import DATA

FOLDER = DATA / "engines"


class RequestFields(msgspec.Struct, forbid_unknown_fields=True):
    """Fields and headers that an engine of this version reads, by the class that has them."""

    version: str
    source: str
    classes: dict[str, list[str]]
    headers: list[str] = []


class EngineData(msgspec.Struct, forbid_unknown_fields=True):
    """Answers of an engine: `models` to GET /v1/models, and the lines of its metrics page, if it has one."""

    source: str
    models: dict[str, Any]
    metrics: list[str]
    request_fields: list[RequestFields]

    @property
    def models_body(self) -> bytes:
        return msgspec.json.encode(self.models)

    @property
    def page(self) -> str:
        return "".join(f"{line}\n" for line in self.metrics)

    def page_of(self, value: str) -> str:
        """Metrics page on which each sample has this value."""
        samples = [line.rpartition(" ")[0] for line in self.metrics if not line.startswith("#")]
        return "".join(f"{sample} {value}\n" for sample in samples)


def engine_data(folder: Path | None = None) -> dict[str, EngineData]:
    """Data by the engine's name. Raises msgspec.ValidationError for a file of another form."""
    paths = sorted((folder or FOLDER).glob("*.json"))
    return {path.stem: msgspec.json.decode(path.read_bytes(), type=EngineData) for path in paths}
