"""For all tests."""

from hypothesis import HealthCheck, settings

# No example has a deadline, and drawing may be slow: how long it takes is the machine's affair.
settings.register_profile("kvgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvgate")
