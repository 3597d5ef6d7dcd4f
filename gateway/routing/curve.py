"""How fast one pool serves one model: the profile's curves times what was learned, and the cost of one request there.

A request of N expected output tokens finds B others running per endpoint of its pool:

    first   = TTFT(input - cached, B) * learned
    decode  = (N - 1) * step(B + 1) / (acceptance length of its task) * learned / (1 - f)
    imposed = (decode * e + B * stall / (1 - f)) / (1 - e)

f is the share of the time that joining prefills stall the batch. `imposed` is what the request costs all others, in
seconds of their time in sum. Its terms: its prefill stalls B running ones by `stall`; its tokens make each step
longer. Where e = B step'(B) / step is the elasticity of the step time, the mean number in the pool is
B = W step(B) / (1 - f) for decode work W (steps per second), so one more request adds

    dB/dlambda = (decode + B stall / (1 - f)) / (1 - e)

to it: its own time and `imposed`. The division by 1 - e counts those who arrive while the batch is still larger.
By Little's law the sum of all requests' times is least where every request takes the pool with the least sum of own
and imposed time (the marginal cost that tells a system's optimum from a selfish equilibrium).
"""

from __future__ import annotations

import math

from gateway.profiles import Profile
from gateway.routing.learned import Effects
from gateway.types import CostTerms, PoolLoad, Task

MOST_RUNNING = 512
"""Largest batch that the tables hold; above it the step time goes on as a straight line."""
MOST_ELASTIC = 0.9
MOST_STALLED = 0.8
_BUCKETS = 10

_exp = math.exp


def bucket_of(running: float) -> int:
    """The load bucket of a batch: 0, 1, 2-3, 4-7, ... 256 and more."""
    return min(int(running).bit_length(), _BUCKETS - 1)


def _steps(profile: Profile, k: int) -> tuple[float, ...]:
    """Step seconds by batch size with no context at all."""
    return tuple(profile.step_seconds(batch, k, 0.0) for batch in range(MOST_RUNNING + 2))


class Mix:
    """What runs in a pool on average, from its outcomes: context, stalls, time of stay. All models there share it."""

    __slots__ = ("_age", "_stalls", "context", "residence", "stalled")

    WINDOW = 10.0
    """Seconds over which stalls are averaged."""

    def __init__(self) -> None:
        self.context = 512.0
        """Tokens of context per running sequence."""
        self.residence = 0.0
        """Mean seconds from sending to the last token; 0 until known."""
        self.stalled = 0.0
        """Share of the time that joining prefills take from a running batch."""
        self._stalls = 0.0
        self._age = 0.0

    def add(self, *, stall: float, context: float, seconds: float) -> None:
        """One request that ended; `stall` in seconds of one endpoint, divided by the number of endpoints."""
        self._stalls += stall
        share = min(1.0, 0.02 * (1.0 + seconds))
        self.context += share * (context - self.context)
        self.residence += (0.05 if self.residence else 1.0) * (seconds - self.residence)

    def tick(self, passed: float) -> None:
        """Lets `passed` seconds go by."""
        self._age = min(self._age + passed, 10 * self.WINDOW)
        seen = self.WINDOW * (1.0 - _exp(-self._age / self.WINDOW))
        self.stalled = min(self._stalls / seen, MOST_STALLED) if seen > 0.0 else 0.0
        self._stalls *= _exp(-passed / self.WINDOW)


class Curve:
    """One (pool, model). Seconds everywhere."""

    __slots__ = ("_context", "_lengths", "_mtp_context", "_scale", "_steps", "k", "mix", "model", "pool", "profile",
                 "seen", "tasks", "tpot", "ttft")  # fmt: skip

    def __init__(self, pool: str, model: str, profile: Profile, k: int, mix: Mix) -> None:
        self.pool = pool
        self.model = model
        self.profile = profile
        self.k = k
        self.mix = mix
        self.tpot = Effects()
        self.ttft = Effects()
        self.tasks: dict[Task, float] = {}
        """Recent output tokens by task, for an acceptance that is measured over all of them."""
        self.seen = -math.inf
        """When its last request ended."""
        self._steps = _steps(profile, k)
        self._context = profile.decode.context / 1e6
        self._mtp_context = profile.decode.mtp_context / 1e6 if k else 0.0
        self._lengths = {task: profile.mean_acceptance_length(task, k) for task in Task}
        self._scale = 1.0

    def terms(
        self, tokens: float, task: Task, input_tokens: float, load: PoolLoad, cached: float = 0.0
    ) -> CostTerms:  # fmt: skip
        """The cost of one request at this load. Makes no I/O and changes nothing."""
        up = load.up or 1
        others = load.in_flight / up
        mix = self.mix
        step, slope = self._step(others + 1.0, mix.context)
        bucket = bucket_of(others)
        stalled = mix.stalled * others if others < 1.0 else mix.stalled
        left = 1.0 - stalled
        learned = _exp(self.tpot.log(bucket, task))
        decode = (tokens - 1.0) * step * learned / (self._lengths[task] * left) if tokens > 1.0 else 0.0
        fresh = max(input_tokens - cached, 1.0)
        stall = self.profile.prefill_stall_seconds(fresh, self.k)
        slower = _exp(self.ttft.log(bucket))
        first = slower * (1.5 * step + stall if others >= 1.0 else self._light(fresh, others, step, stall))
        saved = slower * (input_tokens - fresh) / self.profile.prefill.tokens_per_second if cached else 0.0
        wait = load.waiting / up * (mix.residence or first + decode) / max(others, 1.0) if load.waiting else 0.0
        imposed = 0.0
        if others:
            elastic = min(others * slope / step, MOST_ELASTIC)
            imposed = (decode * elastic + others * stall / left) / (1.0 - elastic)
        return CostTerms(others, wait, first, decode, imposed, saved)

    def seconds(self, tokens: float, task: Task, input_tokens: float, running: float) -> float:
        """Own time beside `running` others, with nothing queued and nothing cached."""
        terms = self.terms(tokens, task, input_tokens, PoolLoad(up=1000, in_flight=round(1000 * running)))
        return terms.first + terms.decode

    def token_seconds(self, task: Task, running: float) -> float:
        """Seconds per output token in a batch of `running`, this one included."""
        others = max(running - 1.0, 0.0)
        step, _ = self._step(others + 1.0, self.mix.context)
        left = 1.0 - self.mix.stalled * min(others, 1.0)
        return step * _exp(self.tpot.log(bucket_of(others), task)) / (self._lengths[task] * left)

    @property
    def uncertainty(self) -> float:
        """Relative standard error of what is learned about its steps."""
        return self.tpot.uncertainty

    def acceptance(self, task: Task) -> float:
        """Tokens per step that the curve counts on."""
        return self._lengths[task]

    def accept(self, length: float) -> None:
        """Takes a measured mean acceptance length over all that the pool served lately: scales every task's.

        Lengths below 1 or above k + 1 cannot be and are ignored.
        """
        if not self.k or not 1.0 <= length <= self.k + 1.0:
            return
        weights = self.tasks or {Task.CHAT: 1.0}
        profile, k = self.profile, self.k
        # A pool's mean is over steps, and a task makes tokens / length of them.
        steps = {task: tokens / self._lengths[task] for task, tokens in weights.items()}
        total = sum(steps.values())
        expected = sum(n * profile.mean_acceptance_length(task, k) for task, n in steps.items()) / total
        scale = (length - 1.0) / (expected - 1.0) if expected > 1.0 else 1.0
        if abs(scale - self._scale) > 0.25:
            # What was learned while the old lengths were believed holds the same change once more.
            self.tpot.forget(4.0)
        self._scale = scale
        for task in Task:
            own = 1.0 + scale * (profile.mean_acceptance_length(task, k) - 1.0)
            self._lengths[task] = min(max(own, 1.0), k + 1.0)

    def _step(self, batch: float, context: float) -> tuple[float, float]:
        """Step seconds and what one more sequence adds to them."""
        seen = self.profile.attention.seen(context)
        at = min(int(batch), MOST_RUNNING)
        base = self._steps[at]
        slope = self._steps[at + 1] - base + self._context * seen
        return base + slope * (batch - at) + (self._context * at + self._mtp_context) * seen, slope

    def _light(self, fresh: float, others: float, step: float, stall: float) -> float:
        """Time to the first token beside less than one other: between an idle engine's and a running one's."""
        idle = self.profile.prefill_seconds(fresh, self.k)
        return idle + others * (1.5 * step + stall - idle) if others else idle
