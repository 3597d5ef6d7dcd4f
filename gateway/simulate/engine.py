"""A discrete-event model of a vLLM engine: the batching of `gateway.sim.engine`, in jumps between joins and ends.

Between two joins or ends all decode steps of a batch differ only in context, so a jump of m steps takes m times the
step at its middle context. A request's number of decode steps is drawn when it joins: with drafting, tokens per step
have mean mu and variance v, and reaching n tokens takes about

    n / mu + (v + mu^2 - mu) / (2 mu^2)  with variance  n v / mu^3      (renewal theory)

steps. The engine schedules ahead, as vLLM does by default: while a step runs, the next one is fixed already. So what
arrives during step i has its prompt computed in step i + 2 and prolongs that one for the whole batch. An idle engine
begins at once.
Simplifications against the stepped engine: a request is admitted only if its whole answer fits the KV cache, so there
are no preemptions; the prefix cache works by conversation, not by block.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from gateway.profiles import Profile
from gateway.simulate.job import Job
from gateway.types import Task

TABLE_TAX = (0.066, 0.15 / 187)
"""Relative cost of K = 0 in a drafting engine over a plain engine, at batch 2 and per further stream, since the drafter
still runs once per step. Measured on an H100: 6.6 % at 2 streams, 21.6 % at 189."""
MOST_TAX = 0.216
SHARED_JUMP = 16
"""Longest jump, in steps, of an engine that shares its GPU, so that it notices its neighbours' load."""


class Speeds:
    """Step times and acceptance of one engine, as tables. `k_by_batch` is vLLM's table of K by batch size."""

    def __init__(
        self, profile: Profile, k: int, seats: int, *, slowdown: float = 1.0, quality: float = 1.0,
        k_by_batch: Sequence[tuple[int, int]] = (),
    ) -> None:  # fmt: skip
        self.profile = profile
        self.k = k
        self.slowdown = slowdown
        self.quality = quality
        """Factor on the profile's acceptance rates, to model a profile that is wrong."""
        self.k_at = [_k_of(batch, k, k_by_batch) for batch in range(seats + 1)]
        self._context, self._mtp_context = profile.decode.context, profile.decode.mtp_context
        self._seen = profile.attention.seen
        self._prompt_rate, self._least_stall = profile.prefill.tokens_per_second, profile.prefill_stall_seconds(0.0, k)
        self.varies = len(set(self.k_at)) > 1
        self._base = [self._zero_context(batch) for batch in range(seats + 1)]
        self._moments: dict[tuple[Task, int], tuple[float, float]] = {}

    def step(self, batch: int, context: float) -> float:
        """Seconds of one decode step of `batch` sequences with a mean context of `context` tokens."""
        extra = self._context * batch + (self._mtp_context if self.k_at[batch] else 0.0)
        return self._base[batch] + self.slowdown * extra * (self._seen(context) / 1e6)

    def prefill(self, tokens: int, *, pause: bool) -> float:
        """Seconds of a step with prompts only; `pause`: the engine was idle before it."""
        profile = self.profile
        return self.slowdown * (profile.prefill_seconds if pause else profile.next_prefill_seconds)(tokens, self.k)

    def stall(self, tokens: int) -> float:
        seconds = tokens / self._prompt_rate
        return self.slowdown * (seconds if seconds > self._least_stall else self._least_stall)

    def moments(self, task: Task, k: int) -> tuple[float, float]:
        """Mean and variance of the tokens per decode step."""
        found = self._moments.get((task, k))
        if found is None:
            rates = [min(rate * self.quality, 1.0) for rate in self.profile.acceptance(task, k)]
            mean = sum(rates)
            square = sum((2 * at + 1) * rate for at, rate in enumerate(rates))
            found = self._moments[task, k] = (1.0 + mean, max(square - mean * mean, 0.0))
        return found

    def set_quality(self, quality: float) -> None:
        """Changes the acceptance, as with another drafter; call `SimEngine.retune` afterwards."""
        self.quality = quality
        self._moments.clear()

    def _zero_context(self, batch: int) -> float:
        k = self.k_at[batch]
        seconds = self.slowdown * self.profile.step_seconds(batch, k, 0.0)
        if self.k and not k:
            seconds *= 1.0 + min(TABLE_TAX[0] + TABLE_TAX[1] * max(batch - 2, 0), MOST_TAX)
        return seconds


class SimEngine:
    """One engine. `next_at` is when `advance` must be called; infinite while idle."""

    def __init__(
        self, name: str, speeds: Speeds, *, seats: int, kv_tokens: int, token_budget: int = 8192, threads: int = 512
    ) -> None:
        self.name = name
        self.speeds = speeds
        self.seats = seats
        self.kv_tokens = kv_tokens
        self.next_at = math.inf
        self.neighbours: tuple[SimEngine, ...] = ()
        """Engines that share its GPU in time slices."""
        self.accepted = self.drafts = 0.0
        """Tokens and sequence steps since the start, as its counters export them."""
        self.computed: list[Job] = []  # whose prompts the last `advance` completed
        self._budget = token_budget
        self._threads: OrderedDict[int, int] = OrderedDict()
        self._most_threads = threads
        self._waiting: deque[Job] = deque()
        self._joining: list[Job] = []
        """Whose prompts are complete after the step under way."""
        self._next: list[Job] = []
        self._prompts = 0
        """Whose prompts are complete after the step behind it, and the tokens of prompts in that step."""
        self._running: list[tuple[int, int, Job]] = []
        self._number = count()
        self._step = 0
        self._from = 0.0
        self._jump = 0
        self._each = 0.0
        """Seconds per step of the jump; 0 while idle and during a step with prompts."""
        self._context = 0.0
        self._growth = 0.0
        self._length = 0.0
        self._reserved = 0

    @property
    def busy(self) -> bool:
        return self.next_at < math.inf

    def submit(self, job: Job, now: float) -> None:
        """Queues a request; it joins the first step that is not fixed yet and has a free seat and cache."""
        job.fresh = job.prompt_tokens = job.prompt.features.input_tokens
        if job.thread and (known := self._threads.get(job.thread)):
            job.cached = min(known, job.fresh - 1)
            job.fresh -= job.cached
        self._waiting.append(job)
        if self.next_at == math.inf:
            self._plan(now, pause=True)
        elif self._each:
            done = int((now - self._from) / self._each) + 1
            if done < self._jump:
                # Before the jump's last step: nobody ends meanwhile, so what is fixed then is known now.
                self._fix()
                if self._prompts:
                    self._jump = done + 1
                    self.next_at = self._from + self._jump * self._each

    def advance(self) -> list[Job]:
        """Completes the jump or prefill step that ends at `next_at`; returns the finished jobs."""
        now, jump, running = self.next_at, self._jump, self._running
        done: list[Job] = []
        if jump:
            self._step += jump
            self._context += self._growth * jump
            self.drafts += len(running) * jump
            self.accepted += self._length * jump
        self.computed, self._joining = self._joining, []
        for job in self.computed:
            self._begin(job, now, done)
        step = self._step
        while running and running[0][0] <= step:
            job = heappop(running)[2]
            self._context -= job.prompt_tokens + job.tokens
            self._growth -= job.growth
            self._length -= job.length
            self._end(job, now, done)
        self._plan(now)
        return done

    def retune(self) -> None:
        """Recomputes the remaining steps. Call it at a step boundary after the speeds changed."""
        self._rescale(self.speeds.k_at[min(len(self._running), self.seats)])

    def _begin(self, job: Job, now: float, done: list[Job]) -> None:
        """Ends the prefill: the first token arrives and decoding begins."""
        job.first = now
        left = job.tokens - 1
        if not left:
            return self._end(job, now, done)
        running = self._running
        batch = len(running) + 1
        k = self.speeds.k_at[batch if batch < self.seats else self.seats]
        if k:
            job.length = length = (moments := self.speeds.moments(job.prompt.task, k))[0]
            job.steps = steps = _steps_for(job, left, k, *moments)
        else:
            job.length, job.steps = length, steps = 1.0, left
        job.growth = growth = left / steps
        heappush(running, (self._step + steps, next(self._number), job))
        self._length += length
        self._growth += growth
        self._context += job.prompt_tokens + 1
        return None

    def _end(self, job: Job, now: float, done: list[Job]) -> None:
        job.ended = now
        self._reserved -= job.reserved
        if job.thread:
            self._threads[job.thread] = job.prompt_tokens + job.tokens
            self._threads.move_to_end(job.thread)
            if len(self._threads) > self._most_threads:
                self._threads.popitem(last=False)
        done.append(job)

    def _plan(self, now: float, *, pause: bool = False) -> None:
        """Begins the step that is fixed, or decode steps until the next end, and fixes the step behind it."""
        running = self._running
        batch = len(running)
        if not batch and not self._prompts:
            self._fix()
        prompts, self._prompts = self._prompts, 0
        self._joining, self._next = self._next, self._joining
        if self._waiting:
            self._fix()
        if prompts:
            # Neighbours slow GPU work (prompt tokens), but not the host's part of a stall.
            share = self._share if self.neighbours else 1
            seconds = (
                share * self.speeds.step(batch, self._context / batch) + self.speeds.stall(share * prompts)
                if batch
                else self.speeds.prefill(share * prompts, pause=pause)
            )
            self._jump, self._each = (1 if batch else 0), 0.0
            self.next_at = now + seconds
        elif batch:
            if self.speeds.varies:
                self._rescale(self.speeds.k_at[batch])
            self._jump = 1 if self._prompts else running[0][0] - self._step
            if self.neighbours:
                self._jump = min(self._jump, SHARED_JUMP)
            middle = (self._context + self._growth * self._jump / 2) / batch
            self._each = each = self.speeds.step(batch, middle) * (self._share if self.neighbours else 1)
            self._from = now
            self.next_at = now + self._jump * each
        else:
            self._jump, self._each = 0, 0.0
            self.next_at = math.inf

    def _fix(self) -> None:
        """Admits waiting prompts to the step behind the one under way, within seats, KV cache and token budget."""
        seated = len(self._running) + len(self._joining)
        budget = self._budget - seated * (self.speeds.k + 1) - self._prompts
        while self._waiting and budget > 0:
            job = self._waiting[0]
            if not job.reserved:
                if seated + len(self._next) >= self.seats or not self._fits(job):
                    return
                job.reserved = job.prompt_tokens + job.tokens
                self._reserved += job.reserved
            took = min(job.fresh, budget)
            budget -= took
            self._prompts += took
            job.fresh -= took
            if job.fresh:
                return
            self._next.append(self._waiting.popleft())

    def _fits(self, job: Job) -> bool:
        return not self._reserved or self._reserved + job.prompt_tokens + job.tokens <= self.kv_tokens

    def _rescale(self, k: int) -> None:
        """Recomputes every running request's remaining steps for another k or acceptance."""
        changed = []
        self._growth = self._length = 0.0
        for ends_at, number, job in self._running:
            mean = self.speeds.moments(job.prompt.task, k)[0] if k else 1.0
            if abs(mean - job.length) > 0.01 * mean:
                left = max((ends_at - self._step) * job.growth, 1.0)
                steps = max(round(left / mean), 1)
                job.growth, job.length = left / steps, mean
                ends_at = self._step + steps
            self._growth += job.growth
            self._length += job.length
            changed.append((ends_at, number, job))
        heapify(changed)
        self._running = changed

    @property
    def _share(self) -> int:
        """Factor on GPU times: the number of busy engines in its time slices, itself included."""
        return 1 + sum(1 for other in self.neighbours if other.busy)


def _steps_for(job: Job, tokens: int, k: int, mean: float, variance: float) -> int:
    """Decode steps for `tokens` more tokens of the job's answer."""
    expected = tokens / mean + (variance + mean * mean - mean) / (2 * mean * mean)
    steps = expected + job.luck * math.sqrt(tokens * variance / mean**3)
    return max(-(-tokens // (k + 1)), min(int(steps + job.rounding), tokens), 1)


def _k_of(batch: int, k: int, table: Sequence[tuple[int, int]]) -> int:
    """The K of the first row whose batch size is not exceeded, else of the last row."""
    for most, chosen in table:
        if batch <= most:
            return min(chosen, k)
    return min(table[-1][1], k) if table else k
