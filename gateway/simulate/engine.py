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
from heapq import heapify, heappop, heappush
from itertools import count

from gateway.simulate.job import Job
from gateway.simulate.speeds import Speeds

SHARED_JUMP = 16
"""Longest jump, in steps, of an engine that shares its GPU, so that it notices its neighbours' load."""


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
        """Tokens and sequence steps since the start, as a drafting engine's counters export them."""
        self.computed: list[Job] = []  # whose prompts the last `advance` completed
        self._budget = token_budget
        self._threads: OrderedDict[int, int] = OrderedDict()
        self._most_threads = threads
        self._waiting: deque[Job] = deque()
        self._joining: list[Job] = []
        """Whose prompts are complete after the step under way."""
        self._next: list[Job] = []
        self._prompts, self._work = 0, 0.0
        """Whose prompts are complete after the step behind it; tokens of prompts in that step, and their seconds."""
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
            if self.speeds.k:
                self.drafts += len(running) * jump
                self.accepted += self._length * jump
        self.computed = computed = self._joining
        if computed:
            self._joining = []
            for job in computed:
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
        running, speeds = self._running, self.speeds
        batch = len(running) + 1
        k = speeds.k_at[batch if batch < self.seats else self.seats]
        if k:
            length, variance = speeds.moments(job.prompt.task, k)
            job.length, job.steps = length, steps = length, _steps_for(job, left, k, length, variance)
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
        prompts, work = self._prompts, self._work
        if self._next:
            self._joining, self._next = self._next, []
        if prompts:
            self._prompts, self._work = 0, 0.0
        if self._waiting:
            self._fix()
        speeds, share = self.speeds, self._share if self.neighbours else 1
        if prompts:
            # Neighbours slow GPU work (prompt tokens), but not the host's part of a stall.
            seconds = (
                share * speeds.step(batch, self._context / batch) + speeds.stall(share * work)
                if batch
                else speeds.prefill(share * work, pause=pause)
            )
            self._jump, self._each = (1 if batch else 0), 0.0
            self.next_at = now + seconds
        elif batch:
            if speeds.varies:
                self._rescale(speeds.k_at[batch])
            jump = 1 if self._prompts else running[0][0] - self._step
            if self.neighbours:
                jump = min(jump, SHARED_JUMP)
            middle = (self._context + self._growth * jump / 2) / batch
            self._jump, self._from = jump, now
            self._each = each = speeds.step(batch, middle) * share
            self.next_at = now + jump * each
        else:
            self._jump, self._each = 0, 0.0
            self.next_at = math.inf

    def _fix(self) -> None:
        """Admits waiting prompts to the step behind the one under way, within seats, KV cache and token budget."""
        waiting, coming = self._waiting, self._next
        seated = len(self._running) + len(self._joining)
        budget = self._budget - seated * (self.speeds.k + 1) - self._prompts
        while waiting and budget > 0:
            job = waiting[0]
            if not job.reserved:
                needed, reserved = job.prompt_tokens + job.tokens, self._reserved
                if seated + len(coming) >= self.seats or (reserved and reserved + needed > self.kv_tokens):
                    return
                job.reserved = needed
                self._reserved = reserved + needed
            fresh = job.fresh
            part = fresh if fresh < budget else budget
            self._work += self.speeds.prompt(part, job.prompt_tokens - fresh)
            self._prompts += part
            job.fresh = fresh - part
            if part < fresh:
                return
            budget -= part
            coming.append(waiting.popleft())

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
