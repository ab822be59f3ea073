"""Envoy's own messages, from the environment of `make test-envoy`.

xds-protos brings older copies of OpenTelemetry's modules, so the two cannot share an environment. Its
folder is searched last, behind everything that is installed here.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

ENVOY = Path(os.environ.get("ENVOY", ".venv-envoy/bin/envoy"))


def external_processor() -> Any:
    """The module of ext_proc's messages; None where `make test-envoy` has not installed it."""
    for folder in ENVOY.absolute().parent.parent.glob("lib/python*/site-packages"):
        sys.path.append(str(folder))
    try:
        return importlib.import_module("envoy.service.ext_proc.v3.external_processor_pb2")
    except ModuleNotFoundError:
        return None  # collected, and left out by its mark
