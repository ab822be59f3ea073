"""The console in a real Chromium, in front of a simulated fleet with faults: `make test-console`.

fleet    the gateway, its workers and their traffic     conftest   the browser
"""
