"""Hop 3: turns `Features` into an `Estimate`, and learns from outcomes.

1. rules.py decides if a tight cap, a choice list or the client's hint settles the length.
2. Otherwise the shipped prior (model.py) gives a location and a spread, in log2(1 + tokens), and task probabilities.
3. History (stats.py) corrects location and spread by the request's keys, from the model down to its template. For a
   template with a settled length, one request in 8 to 32 runs the prior and its result is reused (recall.py). The task
   is decided last (tasks.py): an answer expected to be long is no label.
4. Thinking tokens are added if thinking is on; cap and floor cut the distribution; calibration.py sets the p90.

History learns actual lengths, so it does not depend on the pool that answered. It holds numbers under 64-bit hashes, no
text. A prediction waits for its outcome in a bounded table, so that learning need not repeat it.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from itertools import repeat
from math import exp2, log2
from operator import mul

from gateway.estimate.calibration import Calibration
from gateway.estimate.hashing import LEVELS, keys_of, name_key, with_case
from gateway.estimate.model import Prior, load_prior
from gateway.estimate.numbers import log2p
from gateway.estimate.recall import Recall, Recalled
from gateway.estimate.rules import estimate_rules, resolve, stated_by
from gateway.estimate.signals import signals
from gateway.estimate.stats import BYTES_PER_ENTRY, Chain, History, imputed
from gateway.estimate.tasks import likeliest
from gateway.records import record
from gateway.types import Estimate, Features, Outcome, Result, Task
from gateway.words import OK

CEILING = 32_768
"""Upper limit, in tokens, of an answer without a cap."""
_BOUND_SOURCES = frozenset({"cap", "choice", "hint"})
_CUT = frozenset({Result.TRUNCATED, Result.CLIENT_CLOSED, Result.TIMEOUT})
_WAITING = 2048
_FRESH_ENTRIES = 8192
_MODELS = 1024
_LONGEST_LOG = 20.0
_LONGEST = 2.0**_LONGEST_LOG - 1.0  # tokens: longer answers count as this long
_THOUGHT = 450.0
_THOUGHT_SPREAD = 1.1
# Quantiles 1/24, 3/24, ... 23/24 of Student's t with 3.5 degrees of freedom, in units of its mean absolute value.
_NODES = (-2.07, -1.18, -0.78, -0.5, -0.27, -0.09, 0.09, 0.27, 0.5, 0.78, 1.18, 2.07)
_HISTORY = 3.0  # observations from which the source is named "history"
_SETTLED = 6.0
_SURE = 0.3
"""From `_SETTLED` observations and below this expected error, log2, a template's prior is cached."""
_UNSURE = 0.6
"""Above this expected error, log2, it is dropped from the cache."""
_TEMPLATE = LEVELS.index("template")
_LONG = log2p(64)
_PREFIX = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the estimator holds."""

    entries: int
    """History keys."""
    bytes: int
    """Estimated memory of the history."""
    waiting: int
    """Predictions that wait for their outcome."""


@record
class _Pending:
    """The prediction that an outcome is compared with. Holds `features`, so that its `id` is not reused meanwhile."""

    features: Features
    chain: Chain
    task: Task


class Estimator:
    """Estimates length and task by rules, prior and history.

    `entries` bounds the memory, at about 330 bytes each. With `share`, what is learned is also collected separately, so
    that `changes` can pass it to other workers; that takes as much again for up to 8,192 entries.
    """

    def __init__(self, prior: Prior | None = None, *, entries: int = 32_768, share: bool = False) -> None:
        self._prior = prior or load_prior()
        self._history = History(entries)
        self._calibration = Calibration(self._prior.margins)
        self._fresh = History(_FRESH_ENTRIES) if share else None
        self._fresh_calibration = Calibration(self._prior.margins)
        # A plain dict would be slow here: finding its first key skips over the slots of all deleted ones.
        self._pending: OrderedDict[int, _Pending] = OrderedDict()
        self._recall = Recall()
        self.reading = self._recall.reading
        self._models: dict[str, int] = {}

    def estimate(self, features: Features, *, thinking: bool | None = None, room: int | None = None) -> Estimate:
        """Estimates one choice of the answer. No I/O; never raises.

        Args:
            features: the request.
            thinking: the switch if the model decides it (always on or off); None leaves it to the request.
            room: tokens of context left for the answer; None where unknown.
        """
        thinks, cap = resolve(features, thinking, room)
        stated = stated_by(features, cap)
        if stated in _BOUND_SOURCES:
            # Settled without reading the text; `observe` makes the prediction that it learns from.
            return estimate_rules(features, thinking=thinking, room=room)
        informed, pending = self._predict(features, thinks)
        if len(self._pending) >= _WAITING:
            # Some requests never report an outcome: drop the oldest.
            self._pending.popitem(last=False)
        self._pending[id(features)] = pending
        return self._cut(features.floor, cap, pending, _source(stated, informed, pending.chain))

    def _predict(self, features: Features, thinks: bool | None) -> tuple[bool, _Pending]:
        """(whether the prior recognised anything, the prediction by prior and history)."""
        keys = keys_of(features, self._model_key(features.model), thinks)
        known = self._recall.take(keys[_TEMPLATE])
        if known is not None:
            chain = self._history.chain(keys, known.location, known.spread)
            if chain.spread > _UNSURE:
                self._recall.drop(keys[_TEMPLATE])
            return True, _Pending(features, chain, features.hint_task or known.task)
        read = signals(features)
        keys = with_case(keys, read.case, features.ask_tokens)
        guess = self._prior.guess(read)
        location, spread = guess.location, guess.spread
        if thinks:
            location, spread = _with_thinking(features, location, spread)
        chain = self._history.chain(keys, location, spread)
        # With thinking, the expected length is not that of the answer proper.
        task = likeliest(features, guess, long=not thinks and chain.location > _LONG)
        pending = _Pending(features, chain, task)
        settled = chain.support >= _SETTLED and chain.spread < _SURE
        # Not cached with a length wish: it belongs to one request, and templates that differ in a digit share a key.
        alike = features.template_key and features.hint_task is None and features.wish is None
        if settled and guess.informed and alike:
            self._recall.keep(keys[_TEMPLATE], Recalled(location, spread, task), features)
        return guess.informed, pending

    def observe(self, outcome: Outcome) -> None:
        """Learns from an outcome's usage. A cut answer counts as a lower bound; failed ones do not count."""
        features, usage = outcome.features, outcome.usage
        if features is None:
            return
        pending = self._pending.pop(id(features), None)
        if usage is None or usage.completion_tokens <= 0 or features.scoring:
            return
        tokens = usage.completion_tokens / max(1, features.n)
        if features.floor and tokens <= features.floor:
            return
        cut = outcome.result in _CUT or outcome.finish_reason == "length"
        if outcome.result is not OK and not cut:
            return
        if pending is None or pending.features is not features:
            _, pending = self._predict(features, features.thinking)
        self._learn(pending, log2p(tokens), cut=cut)

    def forget(self, features: Features) -> None:
        """Drops the prediction of a request that will not be observed."""
        self._pending.pop(id(features), None)

    def _learn(self, pending: _Pending, actual: float, *, cut: bool) -> None:
        chain = pending.chain
        if cut:
            actual = imputed(chain.location, chain.spread, actual)
        else:
            ratio = (actual - chain.location) / max(0.02, chain.spread)
            self._calibration.learn(pending.task, ratio)
            if self._fresh is not None:
                self._fresh_calibration.learn(pending.task, ratio)
        self._history.learn(chain, actual)
        if self._fresh is not None:
            self._fresh.learn(chain, actual)

    def _model_key(self, name: str) -> int:
        key = self._models.get(name)
        if key is None:
            if len(self._models) >= _MODELS:
                self._models.clear()
            key = self._models[name] = name_key(name)
        return key

    def _cut(self, floor: int, cap: int | None, pending: _Pending, source: str) -> Estimate:
        """Mean and quantiles of max(floor, min(N, cap)) for the predicted length N."""
        top = float(cap) if cap is not None else float(CEILING)
        # Written out here and below: calls of `min` and `max` would double the cost of a line.
        low = float(floor) if floor < top else top
        m, s, task = pending.chain.location, pending.chain.spread, pending.task
        rise = m + s * self._calibration.margin(task)
        middle, high = 2.0**m - 1.0, 2.0 ** (rise if rise < _LONGEST_LOG else _LONGEST_LOG) - 1.0
        mean = max(low, _mean(m, s, top if top < _LONGEST else _LONGEST), 1.0 if top > 1.0 else top)
        p50 = low if middle < low else middle if middle < top else top
        p90 = low if high < low else high if high < top else top
        # By position: by keyword it costs twice as much.
        return Estimate(task, mean, p50, p90, round(1.0 / (1.0 + (s / 0.9) ** 2), 4), source)

    def snapshot(self) -> bytes:
        """Everything learned, for another worker's `merge` or a restart. Numbers and hashes only."""
        return _packed(self._history, self._calibration)

    def changes(self) -> bytes:
        """What was learned here since the last call, for every other worker's `merge`.

        Workers that exchange changes instead of snapshots count each observation once. Raises `RuntimeError` without
        `share`.
        """
        if self._fresh is None:
            raise RuntimeError("This estimator was made without `share`.")
        data = _packed(self._fresh, self._fresh_calibration)
        self._fresh = History(_FRESH_ENTRIES)
        now = {Task(name): margin for name, (_, margin) in self._calibration.statistics().items()}
        self._fresh_calibration = Calibration(now)
        return data

    def merge(self, data: bytes) -> None:
        """Adds what another estimator has learned. The order of merges does not matter; merge each snapshot once.

        Raises `ValueError` if `data` is no snapshot, and then changes nothing.
        """
        if len(data) < _PREFIX.size:
            raise ValueError("Not a snapshot.")
        first, second = _PREFIX.unpack_from(data)
        if len(data) != _PREFIX.size + first + second:
            raise ValueError("Not a whole snapshot.")
        margins = Calibration(self._prior.margins)
        margins.merge(data[_PREFIX.size + first :])
        self._history.merge(data[_PREFIX.size : _PREFIX.size + first])
        self._calibration.merge(data[_PREFIX.size + first :])

    def statistics(self) -> Statistics:
        """The memory held now. Walks the history's older keys: not for every request."""
        entries = len(self._history)
        return Statistics(entries=entries, bytes=entries * BYTES_PER_ENTRY, waiting=len(self._pending))


def _mean(location: float, spread: float, top: float) -> float:
    """Mean of min(N, top), by averaging over `_NODES`, which ascend."""
    below = bisect_left(_NODES, (log2(1.0 + top) - location) / (spread if spread > 1e-9 else 1e-9))
    sizes = sum(map(exp2, map(mul, _NODES[:below], repeat(spread))))
    return (exp2(location) * sizes - below + top * (len(_NODES) - below)) / len(_NODES)


def _packed(history: History, calibration: Calibration) -> bytes:
    first, second = history.snapshot(), calibration.snapshot()
    return _PREFIX.pack(len(first), len(second)) + first + second


def _with_thinking(features: Features, location: float, spread: float) -> tuple[float, float]:
    """Adds the thinking tokens, limited by their budget; they are often many times a short answer."""
    thought = _THOUGHT
    if features.thinking_budget is not None:
        thought = min(thought, 0.7 * max(1, features.thinking_budget))
    return log2p(2.0**location - 1.0 + thought), max(spread, _THOUGHT_SPREAD)


def _source(stated: str | None, informed: bool, chain: Chain) -> str:
    if chain.support >= _HISTORY:
        return "history"
    if stated in ("few_shot", "wish", "schema"):
        return stated
    return "prior" if informed else "unknown"
