"""Test of an installed wheel, with nothing but it: python -P tests/wheel/smoke.py

`cibuildwheel` runs it on each wheel of a release: it is compiled, and its demo answers a request and stops.
"""

import re
import signal
import subprocess
import sys
import urllib.request

from kvgate.gateway import __version__, is_compiled

SHOWN = re.compile(r"curl (\S+/v1/completions) -d '(\{.*\})'")


def answered() -> None:
    """Send the request that `kvgate demo` shows. Raises RuntimeError if it shows none or ends badly."""
    command = [sys.executable, "-P", "-m", "kvgate", "demo", "--port", "0", "--quiet-traffic"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        try:
            shown = next(filter(None, map(SHOWN.search, demo.stdout)), None)
            if shown is None:
                raise RuntimeError("the demo ended before it was ready")
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(shown[1], shown[2].encode(), headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                print(answer.status, answer.read().decode())
            demo.send_signal(signal.SIGINT)
            demo.communicate(timeout=120)
        finally:
            demo.kill()
    if demo.returncode != 0:
        raise RuntimeError(f"the demo ended with exit status {demo.returncode}")


if __name__ == "__main__":
    if not is_compiled:
        sys.exit(f"kvgate {__version__} of {sys.executable} is not compiled")
    answered()
    print(f"kvgate {__version__} is compiled, and answers")
