"""Names of the checkout for benchmarks in the wheel's environment: `gateway` is its `kvgate.gateway` there.

The Makefile has `install()` run at each start of that environment's Python. A module is then one object under
both names, so what is measured is what the wheel has; `main()` checks that it is machine code.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

NAMES = ("gateway", "engines")


class WheelNames(MetaPathFinder, Loader):
    """Finder and loader of `gateway` and `engines`, and of all below them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.split(".")[0] in NAMES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"kvgate.{spec.name}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module back the spec that the import system has just replaced."""
        spec = module.__spec__
        assert spec is not None
        module.__spec__ = spec.loader_state


def install() -> None:
    """Find `gateway` and `engines` in the wheel from now on, before the checkout's."""
    sys.meta_path.insert(0, WheelNames())


def main() -> int:
    """Returns 0 where `gateway` is the wheel's and compiled, else 1, with the reason."""
    import gateway

    place = Path(gateway.__file__).parent
    if gateway.__name__ == "kvgate.gateway" and gateway.is_compiled:
        print(f"gateway is {place}, compiled")
        return 0
    print(f"gateway is {place}: {'compiled, but of a checkout' if gateway.is_compiled else 'not compiled'}")
    return 1
