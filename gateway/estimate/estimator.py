"""Hop 3: `Features` -> `Estimate`, and what is learned from outcomes."""

from __future__ import annotations

from gateway.estimate.rules import estimate_rules
from gateway.types import Estimate, Features, Outcome


class Estimator:
    """The estimate by rules."""

    def estimate(self, features: Features) -> Estimate:
        return estimate_rules(features)

    def observe(self, outcome: Outcome) -> None:
        """Learning comes with the history."""
