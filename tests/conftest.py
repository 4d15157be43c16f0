"""Settings for every test: hypothesis repeats exactly and never fails for a slow machine."""

from hypothesis import HealthCheck, settings

settings.register_profile("kvalet", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvalet")
