"""A capacity plan with its follow-up analyses: cost, slices in use, bursts, a lost slice, other models.

Cost per million output tokens = price of the whole cards per hour / output tokens per hour * 10^6, or in card hours
without a price.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.simulate.plan import Fleet, Need, Played, best, find_plan, fleets, highest_rate, nearest, try_fleet

LOADS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Multiples of the planned rate, for the curve of latency by load."""
SIZES = 8
"""Approximate number of points of the curve by slices."""
Tick = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Card:
    """The unit of cost. `price` is per hour, in any currency."""

    slices: int
    price: float | None = None

    def number(self, slices: int) -> int:
        """Whole cards for `slices` slices."""
        return -(-slices // self.slices)

    def per_million(self, slices: int, tokens_per_second: float) -> float:
        """Cost of a million output tokens, in card hours without a price."""
        hourly = self.number(slices) * (1.0 if self.price is None else self.price)
        return hourly / (tokens_per_second * 3600.0) * 1e6

    @property
    def unit(self) -> str:
        return "card hours" if self.price is None else "money"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The plan under a changed condition. `needed`: the fleet that would keep the limits, None if too large."""

    name: str
    played: Played
    needed: Played | None


@dataclass(frozen=True, slots=True)
class InUse:
    """One card with `slices` in use, at its highest rate within the limits; None if there is no such rate."""

    slices: int
    played: Played | None


@dataclass(frozen=True, slots=True)
class Study:
    """One model's plan and its analyses."""

    need: Need
    card: Card
    tried: tuple[Played, ...]
    what_ifs: tuple[WhatIf, ...] = ()
    loads: tuple[Played, ...] = ()
    in_use: tuple[InUse, ...] = ()
    sizes: tuple[Played, ...] = ()
    """Fleets of one kind and half of each, with one to (plan + 2) slices."""

    @property
    def plan(self) -> Played | None:
        return best(self.tried)

    @property
    def chosen(self) -> Played:
        """The plan, or the fleet nearest to the limits."""
        return self.plan or nearest(self.tried)

    def cost(self, played: Played) -> float:
        return self.card.per_million(played.fleet.slices, played.tokens_per_second)

    def as_dict(self) -> dict[str, Any]:
        need, plan = self.need, self.plan
        return {
            "model": need.model,
            "profile": need.profile,
            "traffic": need.workload.name,
            "rate": need.rate,
            "limits_s": {name: getattr(need.slo, name) for name in ("ttft", "tpot", "e2e") if self._limited(name)},
            "slices_a_card": self.card.slices,
            "card_price_per_hour": self.card.price,
            "plan": None if plan is None else self._priced(plan),
            "tried": [self._priced(one) for one in self.tried],
            "what_if": [
                {"name": one.name, **one.played.as_dict(), "needed": one.needed.as_dict() if one.needed else None}
                for one in self.what_ifs
            ],
            "sizes": [one.as_dict() for one in self.sizes],
            "loads": [one.as_dict() for one in self.loads],
            "card": [
                {"slices_in_use": one.slices, **(self._priced(one.played) if one.played else {"rate": None})}
                for one in self.in_use
            ],
        }

    def _limited(self, name: str) -> bool:
        return bool(getattr(self.need.slo, name) < float("inf"))

    def _priced(self, played: Played) -> dict[str, Any]:
        unit = "card_hours" if self.card.price is None else "cost"
        cards = self.card.number(played.fleet.slices)
        return {**played.as_dict(), "cards": cards, f"{unit}_per_million_output_tokens": round(self.cost(played), 4)}


def study(need: Need, card: Card, burst: float, tick: Tick) -> Study:
    """Makes the plan and all analyses; `tick` is called after each fleet."""
    tried = _all(need, tick)
    found = Study(need, card, tried)
    chosen = found.chosen
    what_ifs = [_burst(need, chosen.fleet, burst, tick), *_lost(need, chosen.fleet, tick)]
    loads = []
    for share in LOADS:
        loads.append(try_fleet(replace(need, rate=share * need.rate), chosen.fleet))
        tick()
    k = chosen.fleet.k or next((one.fleet.k for one in sorted(tried, key=_mean) if one.fleet.k), need.depths[0])
    in_use = tuple(_in_use(need, slices, k, tick) for slices in range(1, card.slices + 1))
    sizes = tuple(_sizes(need, chosen.fleet.slices + 2, k, tick))
    return replace(found, what_ifs=tuple(what_ifs), loads=tuple(loads), in_use=in_use, sizes=sizes)


def _all(need: Need, tick: Tick) -> tuple[Played, ...]:
    tried = []
    for played in find_plan(need):
        tried.append(played)
        tick()
    return tuple(tried)


def _burst(need: Need, fleet: Fleet, burst: float, tick: Tick) -> WhatIf:
    more = replace(need, rate=burst * need.rate)
    played = try_fleet(more, fleet)
    return WhatIf(f"a burst of {burst:g} times the rate, as long as the run", played, best(_all(more, tick)))


def _lost(need: Need, fleet: Fleet, tick: Tick) -> list[WhatIf]:
    """The plan with one slice less, for each kind."""
    rows = []
    for kind in ("plain", "mtp"):
        left = replace(fleet, **{kind: getattr(fleet, kind) - 1})
        if min(left.plain, left.mtp) < 0 or not left.slices:
            continue
        left = left if left.mtp else replace(left, k=0)
        name = "a plain slice lost" if kind == "plain" else "an MTP slice lost"
        rows.append(WhatIf(name, try_fleet(need, left), None))
        tick()
    return rows


def _in_use(need: Need, slices: int, k: int, tick: Tick) -> InUse:
    """The split of `slices` with the highest rate within the limits."""
    found: list[Played] = []
    for fleet in fleets(slices, (k,), need.least_plain):
        played = highest_rate(need, fleet)
        tick()
        if played is not None:
            found.append(played)
    return InUse(slices, max(found, key=lambda one: one.rate) if found else None)


def _sizes(need: Need, most: int, k: int, tick: Tick) -> Iterator[Played]:
    step = max(1, most // SIZES)
    for slices in range(most % step or step, most + 1, step):
        halves = [Fleet(slices - slices // 2, slices // 2, k)] if slices > 1 else []
        for fleet in (Fleet(slices, 0, 0), Fleet(0, slices, k), *halves):
            yield try_fleet(need, fleet)
            tick()


def _mean(played: Played) -> float:
    return played.mean


def compare(studies: Sequence[Study]) -> list[tuple[Study, float | None]]:
    """Each model's plan with its cost."""
    return [(one, one.cost(one.plan) if one.plan else None) for one in studies]
