"""Settings for every test: hypothesis judges answers, never the time they take."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("trioton", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("trioton")
