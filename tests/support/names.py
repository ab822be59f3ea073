"""Names with addresses that a test changes while a gateway runs: `names.c` resolves them in that process."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("names.c")


class Names:
    """Resolver of gateways that start from now on; other names are resolved as usual."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        library, self._file = folder / "names.so", folder / "names"
        compiler = shutil.which("cc")
        assert compiler, "needs a C compiler (Debian: apt-get install gcc)"
        command = [compiler, "-shared", "-fPIC", "-Wall", "-o", os.fspath(library), os.fspath(SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        patch.setenv("LD_PRELOAD", os.fspath(library))
        patch.setenv("NAMES_FILE", os.fspath(self._file))

    def bind(self, **addresses: str) -> None:
        """Change all names at once; underscores stand for dots."""
        lines = [f"{name.replace('_', '.')} {address}\n" for name, address in addresses.items()]
        written = self._file.with_suffix(".new")
        written.write_text("".join(lines))
        written.replace(self._file)
