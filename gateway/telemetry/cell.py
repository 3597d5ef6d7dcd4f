"""What answers of one kind have taken per token: decaying sums, and how sure their mean is.

The variance counts observations, not answers: the mean of many answers from one scrape is one observation, since
answers of one moment do not show the spread. Nor do those that end within a few seconds of each other, beside the same
prompts: in bursts of long prompts, whole moments are slow. So where there are several moments, the variance of the mean
is that of their means if that is larger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MOMENT = 3.0
"""Seconds in which answers end that were slowed by the same prompts."""


@dataclass(slots=True)
class Cell:
    """Sums of logarithms of seconds, weighted by answers."""

    weight: float = 0.0
    weight_squares: float = 0.0
    log_sum: float = 0.0
    square_sum: float = 0.0
    tokens_sum: float = 0.0
    running_sum: float = 0.0
    moment: int = 0
    """The number of the last one; of it the weight and the sum of logarithms, and over all moments as for answers."""
    moment_weight: float = 0.0
    moment_log_sum: float = 0.0
    moment_weight_squares: float = 0.0
    moment_square_sum: float = 0.0
    at: float = 0.0

    def add(self, log: float, weight: float) -> None:
        """Counts an observation of the moment `at`."""
        self.weight += weight
        self.weight_squares += weight * weight
        self.log_sum += weight * log
        self.square_sum += weight * log * log
        if (moment := int(self.at / MOMENT)) != self.moment:
            self.moment, self.moment_weight, self.moment_log_sum = moment, 0.0, 0.0
        if before := self.moment_weight:
            self.moment_weight_squares -= before * before
            self.moment_square_sum -= self.moment_log_sum * self.moment_log_sum / before
        self.moment_weight += weight
        self.moment_log_sum += weight * log
        self.moment_weight_squares += self.moment_weight * self.moment_weight
        self.moment_square_sum += self.moment_log_sum * self.moment_log_sum / self.moment_weight

    def fade(self, now: float, tau: float) -> None:
        factor = math.exp(min(self.at - now, 0.0) / tau)
        self.weight *= factor
        self.weight_squares *= factor * factor
        self.log_sum *= factor
        self.square_sum *= factor
        self.tokens_sum *= factor
        self.running_sum *= factor
        self.moment_weight *= factor
        self.moment_log_sum *= factor
        self.moment_weight_squares *= factor * factor
        self.moment_square_sum *= factor
        self.at = now

    @property
    def mean(self) -> float:
        return self.log_sum / self.weight

    @property
    def count(self) -> float:
        """Kish's effective sample size, (sum w)^2 / sum w^2."""
        return self.weight * self.weight / self.weight_squares

    @property
    def variance_of_mean(self) -> float:
        """Requires more than one observation."""
        square = self.mean**2
        found = max(self.square_sum / self.weight - square, 0.0) / (self.count - 1.0)
        moments = self.weight * self.weight / self.moment_weight_squares
        if moments >= 2.0:
            found = max(found, (self.moment_square_sum / self.weight - square) / (moments - 1.0))
        return found
