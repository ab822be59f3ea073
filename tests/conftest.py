"""For all tests."""

import os

from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"  # before anybody imports the library that reads it: no test asks the hub

# No example has a deadline, and drawing may be slow: how long it takes is the machine's affair.
settings.register_profile("kvgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvgate")
