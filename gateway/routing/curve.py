"""How fast one pool serves one model: the profile's curves times what was learned, and the cost of one request there.

A pool's endpoint has n others in flight (now for the first token, on average over the request's time for the others),
B of which decode (the rest wait for their first token); lambda prompts join
it per second, and their tokens take the share g of its time. A step takes s(B) by the profile, a step that prompts
join F more, and each of their tokens its time. So a step lasts on average

    T = (s(B + 1) + F p) / (1 - g)          p = 1 - exp(-lambda T), the chance that some prompt joins it

and a request of N expected output tokens, and a prompt of tau seconds that are not cached, takes

    first   = (2.5 T + F (1 - p) + tau) * learned
    decode  = steps(N - 1) T * learned      steps(n) = n / mu + (v + mu^2 - mu) / (2 mu^2)
    imposed = (decode e + n (F (1 - p) + tau) / D) / (1 - e)

The 2.5 steps are half of the one under way, the one behind it, which an engine that schedules ahead has fixed already,
and the one that computes the prompt.

mu and v are mean and variance of the tokens per step that its task's acceptance gives (renewal theory: the last step is
not used up, which is why drafting saves nothing on two tokens). `imposed` is what the request costs all others, in
seconds of their time in sum: its prompt stalls n of them, its tokens make steps longer. D = 1 - g - lambda F (1 - p)
is the share of the time that is left for decoding at the margin, e = B s' / (T D) the elasticity of the step. Both
follow from the pool's balance B = W T for W decode steps per second by differentiating after the rate of requests: dB
= decode + imposed, so that a request's cost is what it adds to the mean number in the system. By Little's law the sum
of all times is least where every request takes the pool of least own and imposed time: the marginal cost, which tells
a system's optimum from the equilibrium of the selfish.

At light load the mean 1 - p hides what decides: prompts that are sent together share one pause, so right behind another
prompt a short one stalls nobody, and on a pool that has had none for a step it stalls all n. Where the d seconds since
the newest prompt are known, the stall is F' (1 - p) min(d / T, 1) + tau in place of F (1 - p) + tau. F' is what the
prompt's own tokens leave of the pause, so nothing for a long one. 1 - p stays that of a whole step: where this request
does not begin a pause, one of the next does, for each that goes elsewhere makes this pool the better one.
"""

from __future__ import annotations

import math
from copy import copy

from gateway.profiles import STEPS_TO_FIRST, Profile
from gateway.records import make
from gateway.routing.learned import Effects
from gateway.routing.mix import MOST_STALLED, Mix
from gateway.types import CostTerms, PoolLoad, Task

MOST_RUNNING = 512
"""Largest batch that the tables hold; above it the step time goes on as a straight line."""
USUAL_PROMPT = 256.0
"""Tokens: stall or arithmetic, whichever is larger, is taken as a straight line through such a prompt's."""
MOST_ELASTIC = 0.9
_LAST_BUCKET = 9
_BUCKETS = tuple(running.bit_length() for running in range(1 << _LAST_BUCKET))

_exp = math.exp


def bucket_of(running: float) -> int:
    """The load bucket of a batch: 0, 1, 2-3, 4-7, ... 256 and more."""
    return _BUCKETS[int(running)] if running < MOST_RUNNING else _LAST_BUCKET


def _steps(profile: Profile, k: int) -> tuple[float, ...]:
    """Step seconds by batch size with no context at all."""
    return tuple(profile.step_seconds(batch, k, 0.0) for batch in range(MOST_RUNNING + 2))


def _rest(profile: Profile, task: Task, k: int) -> float:
    """The part of a step that an answer leaves unused on average."""
    rates = profile.acceptance(task, k)
    mean = 1.0 + sum(rates)
    variance = sum((2 * at + 1) * rate for at, rate in enumerate(rates)) - (mean - 1.0) ** 2
    return (variance + mean * mean - mean) / (2.0 * mean * mean)


class Curve:
    """One (pool, model). Seconds everywhere."""

    __slots__ = (
        "_context", "_fixed", "_least", "_lengths", "_mtp_context", "_paced", "_paces", "_rest", "_scale", "_steps",
        "k", "mix", "model", "pool", "profile", "prompt", "seen", "tasks", "tpot", "ttft", "up",
    )  # fmt: skip

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
        """When its last request ended, as far as it taught anything."""
        self.up = 1
        """The pool's endpoints then."""
        self._steps = _steps(profile, k)
        self._context = profile.decode.context / 1e6
        self.prompt = profile.prompt_seconds
        self._least = profile.stall_seconds(0.0, k)
        self._fixed = max(self._least - self.prompt(USUAL_PROMPT), 0.0)
        self._mtp_context = profile.decode.mtp_context / 1e6 if k else 0.0
        self._lengths = {task: profile.mean_acceptance_length(task, k) for task in Task}
        self._rest = {task: _rest(profile, task, k) for task in Task}
        self._scale = 1.0
        self._paces: dict[float, tuple[float, float, float, float]] = {}
        self._paced = -1

    def terms(
        self, tokens: float, task: Task, input_tokens: float, load: PoolLoad, cached: float = 0.0
    ) -> CostTerms:  # fmt: skip
        """The cost of one request at this load. Makes no I/O and changes nothing."""
        up, in_flight, waiting, _, _, since = load
        mix = self.mix
        up = up or 1
        others = in_flight / up
        step, _, alone, left = self._pace(others)
        fresh = input_tokens - cached
        if fresh < 1.0:
            fresh = 1.0
        prompt = self.prompt(fresh, cached)
        stall = self._fixed * alone + prompt
        # `bucket_of`, written out here and below, because every decision comes here twice.
        slower = _exp(self.ttft.log(_BUCKETS[int(others)] if others < MOST_RUNNING else _LAST_BUCKET))
        first = slower * (STEPS_TO_FIRST * step + stall if others >= 1.0 else self._light(prompt, others, step, stall))
        saved = slower * self.prompt(cached) if cached else 0.0
        wait = waiting / up * (mix.residence or first) / max(others, 1.0) if waiting else 0.0
        if since is not None and mix.settled:
            stall = prompt
            if stall < self._least:
                stall += (self._least - stall) * alone * (since / step if since < step else 1.0)
        decode = imposed = elastic = 0.0
        if tokens > 1.0:
            steps = self.steps(tokens - 1.0, task) if self.k else tokens - 1.0
            usual = mix.during(others, first + steps * step)
            step, slope, _, left = self._pace(usual)
            bucket = _BUCKETS[int(usual)] if usual < MOST_RUNNING else _LAST_BUCKET
            decode = steps * step * _exp(self.tpot.log(bucket, task))
            elastic = usual * mix.decoding * slope / (step * left)
            if elastic > MOST_ELASTIC:
                elastic = MOST_ELASTIC
            imposed = decode * elastic / (1.0 - elastic)
        if others:
            imposed += others * stall / left / (1.0 - elastic)
        return make(CostTerms, (others, wait, first, decode, imposed, saved))

    def seconds(self, tokens: float, task: Task, input_tokens: float, running: float) -> float:
        """Own time beside `running` others, with nothing queued and nothing cached."""
        terms = self.terms(tokens, task, input_tokens, PoolLoad(up=1000, in_flight=round(1000 * running)))
        return terms.first + terms.decode

    def afterwards(self, terms: CostTerms, planned: float, tokens: float, task: Task) -> float:
        """Own time of a request whose answer had `tokens` where `planned` were expected, by the terms of then."""
        others, wait, first, decode, _, _ = terms
        if tokens <= 1.0:
            return wait + first
        if planned <= 1.0:
            return wait + first + self.decode_seconds(tokens, task, others)
        share = self.steps(tokens - 1.0, task) / self.steps(planned - 1.0, task)
        return wait + first + share * decode

    def first_seconds(self, fresh: float, others: float, cached: float = 0.0) -> float:
        """To the first token beside `others`, for a prompt of `fresh` tokens that are not cached."""
        prompt = self.prompt(fresh, cached)
        step, _, alone, _ = self._pace(others)
        stall = self._fixed * alone + prompt
        first = STEPS_TO_FIRST * step + stall if others >= 1.0 else self._light(prompt, others, step, stall)
        return first * _exp(self.ttft.log(bucket_of(others)))

    def decode_seconds(self, tokens: float, task: Task, others: float) -> float:
        """From the first token to the last, beside `others`."""
        if tokens <= 1.0:
            return 0.0
        return self.steps(tokens - 1.0, task) * self._pace(others)[0] * _exp(self.tpot.log(bucket_of(others), task))

    def steps(self, tokens: float, task: Task) -> float:
        """Decode steps that `tokens` take on average."""
        if not self.k:
            return tokens
        found = tokens / self._lengths[task] + self._rest[task]
        return found if found < tokens else tokens

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

    def under(self, mix: Mix) -> Curve:
        """This pool as if its requests were those of another one: what they do to a step is told by `mix`."""
        other = copy(self)
        other.mix, other._paces, other._paced = mix, {}, -1
        return other

    def bare_step(self, others: float, joins: float) -> float:
        """Mean step beside `others` if `joins` empty prompts per second joined."""
        batch = others * self.mix.decoding + 1.0
        step, fixed = self._step(batch)[0], self._fixed
        mean = step + fixed
        for _ in range(4):
            alone = _exp(-joins * mean)
            mean -= (mean - step - fixed * (1.0 - alone)) / max(1.0 - joins * fixed * alone, 1.0 - MOST_STALLED)
        return max(mean, step)

    def _pace(self, others: float) -> tuple[float, float, float, float]:
        """Beside `others`: the mean step T with its stalls, what one more sequence adds to a bare step, the chance
        1 - p that no other prompt joins a step, and D. Kept until the rates are looked at again; large batches are
        told apart by halves and wholes only, small ones lie on lines between halves."""
        paces = self._paces
        if self._paced != self.mix.version:
            paces.clear()
            self._paced = self.mix.version
        # Whole numbers are the same key whether they are floats or not.
        if others > 16.0:
            return paces.get(whole := round(others)) or self._find_pace(whole)
        if others > 4.0:
            others = round(2.0 * others) / 2.0
            return paces.get(others) or self._find_pace(others)
        low = int(2.0 * others) / 2.0
        one = paces.get(low) or self._find_pace(low)
        part = 2.0 * (others - low)
        if not part:
            return one
        two = paces.get(low + 0.5) or self._find_pace(low + 0.5)
        keep = 1.0 - part
        return (
            keep * one[0] + part * two[0], keep * one[1] + part * two[1],
            keep * one[2] + part * two[2], keep * one[3] + part * two[3],
        )  # fmt: skip

    def _find_pace(self, others: float) -> tuple[float, float, float, float]:
        mix = self.mix
        step, slope = self._step(others * mix.decoding + 1.0)
        if not others:
            found = self._paces[others] = step, slope, 1.0, 1.0
            return found
        near = min(others, 1.0)
        spent, joins, fixed = 1.0 - mix.prompts * near, mix.joins * near, self._fixed
        # Newton's method from above; the function is concave, so it comes down to the root and does not pass it.
        mean, alone, left = (step + fixed) / spent, 0.0, spent
        for _ in range(3):
            alone = _exp(-joins * mean)
            left = spent - joins * fixed * alone
            if left < 1.0 - MOST_STALLED:
                left = 1.0 - MOST_STALLED
            mean -= (spent * mean - step - fixed * (1.0 - alone)) / left
            if mean < step:
                mean = step
        found = self._paces[others] = mean, slope, alone, left
        return found

    def _step(self, batch: float) -> tuple[float, float]:
        """A bare step and what one more sequence adds to it."""
        seen = self.profile.attention.seen(self.mix.context)
        at = min(int(batch), MOST_RUNNING)
        base = self._steps[at]
        slope = self._steps[at + 1] - base + self._context * seen
        return base + slope * (batch - at) + (self._context * at + self._mtp_context) * seen, slope

    def _light(self, prompt: float, others: float, step: float, stall: float) -> float:
        """Time to the first token beside less than one other: between an idle engine's and a running one's."""
        idle = self.profile.prompt_step_seconds(prompt, self.k, pause=True)
        return idle + others * (STEPS_TO_FIRST * step + stall - idle) if others else idle
