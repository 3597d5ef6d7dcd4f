"""What routing has learned and remembers, apart from the policy: it survives reloads, and one router at a time uses it.

state = RoutingState(clock, rng, pools)
router = Router(policy, state)
observers = (..., state.observe)
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from gateway.routing.curves import Curves
from gateway.routing.explore import Explorer
from gateway.routing.regret import Regret
from gateway.routing.sticky import Sticky
from gateway.routing.turns import Turns
from gateway.types import LoadView, Outcome


class RoutingState:
    """Curves, conversations, exploration, regret. Memory is bounded in each."""

    def __init__(self, clock: Callable[[], float], rng: Random, view: LoadView | None = None) -> None:
        """`view` is the live pools, read when a request ends."""
        self.clock = clock
        self.curves = Curves(clock, view)
        self.sticky = Sticky()
        self.explorer = Explorer(rng)
        self.regret = Regret(self.curves)
        self.turns = Turns()
        self.away: set[tuple[str, bool]] = set()
        """(model, long): kinds of requests that now go against the threshold's side, for hysteresis."""

    def beside(self, rng: Random) -> RoutingState:
        """A state for a second router over the same pools. It shares what outcomes teach (curves, places, regret)
        and has turns, exploration and hysteresis of its own. Outcomes are still observed through `self`."""
        other = RoutingState(self.clock, rng)
        other.curves, other.sticky, other.regret = self.curves, self.sticky, self.regret
        return other

    def observe(self, outcome: Outcome) -> float | None:
        """Learns from a finished request, whatever its end. Returns its regret, see `regret.py`."""
        self.note(outcome)
        return self.learn(outcome)

    def learn(self, outcome: Outcome) -> float | None:
        """What of `observe` may come later, or for a share of the requests only."""
        self.curves.observe(outcome)
        return self.regret.observe(outcome)

    def note(self, outcome: Outcome) -> None:
        """What of `observe` a conversation's next turn needs: where it is."""
        self.sticky.observe(outcome, self.clock())


def cold_state() -> RoutingState:
    """A state in which nothing has been learned and nothing is drawn by chance: for decisions away from a gateway."""
    return RoutingState(lambda: 0.0, Random(0))
