"""Machines that run these are shared: no example fails because it took long."""

from hypothesis import settings

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
