"""Settings for every test: hypothesis repeats exactly and never fails for a slow machine; llama.cpp computes as in the server."""

from hypothesis import HealthCheck, settings

from engine.probe import prepare_environment

settings.register_profile("kvalet", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvalet")
prepare_environment()
