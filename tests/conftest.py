"""What holds for all suites."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says more about what else the machine does than about the code: no test fails for it.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
