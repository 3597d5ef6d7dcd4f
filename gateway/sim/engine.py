"""The simulated engine: continuous batching with chunked prefill and drafting, as pure steps on a clock of the caller.

    end = engine.begin(now)      # plans a step and says when it ends; None: nothing to do
    events = engine.commit()     # at `end`: what came out

Nothing here sleeps or knows asyncio, so that a server can play it in real time and a simulation can play a day in a
second. A step decodes every running sequence whose prompt is computed (1 + k tokens each under drafting) and spends
what is left of the token budget on prompts, first come first served. The engine schedules ahead, as vLLM does by
default: a step is fixed when the one before it begins, so no prompt that came later is in it. An idle engine begins at
once. A step's time is the profile's decode step plus the stall of the prefills in it. A request that is aborted between
`begin` and `commit` gets nothing from the step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from gateway.profiles import MAX_DRAFT_TOKENS, Profile
from gateway.sim.kv import KvCache, blocks_for
from gateway.sim.sequence import Ask, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What an operator sets on an engine."""

    k: int = 0
    """Draft tokens per step; 0 is a plain engine."""
    seed: int = 0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    kv_blocks: int = 16384
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.k <= MAX_DRAFT_TOKENS:
            raise ValueError(f"k must be 0 to {MAX_DRAFT_TOKENS}, got {self.k}")
        if self.max_num_seqs < 1 or self.max_num_batched_tokens < self.k + 1:
            raise ValueError("max_num_seqs must be at least 1 and max_num_batched_tokens at least k + 1")


@dataclass(slots=True)
class SpecCounters:
    """vLLM's speculative decoding counters; a draft is one sequence in one verify step."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Counters:
    """Counts since the start."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("stop", "length", "abort"), 0))
    spec: SpecCounters = field(default_factory=SpecCounters)


@dataclass(frozen=True, slots=True)
class Event:
    """New tokens of one sequence."""

    sequence: Sequence
    tokens: int
    interval: float | None
    """Seconds since the sequence's previous output; None for the first."""


@dataclass(slots=True)
class _Step:
    """A step under way."""

    ends: float
    decoding: list[Sequence]
    prefilling: list[tuple[Sequence, int]]
    tokens: int


class Engine:
    """One engine. Not thread-safe: one caller drives it."""

    def __init__(self, profile: Profile, settings: EngineSettings) -> None:
        self.profile = profile
        self.settings = settings
        self.kv = KvCache(settings.kv_blocks)
        self.counters = Counters(spec=SpecCounters(accepted_per_position=[0] * settings.k))
        self.drift = 1.0
        """Scales acceptance: below 1 a drafter that no longer fits its target."""
        self.slowdown = 1.0
        """Scales every step's time."""
        self.last_step_tokens = 0
        """Tokens computed in the last finished step."""
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._step: _Step | None = None
        self._began = 0.0
        self._ended: float | None = None
        """When the last step began and ended."""

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, ask: Ask, now: float) -> Sequence:
        """Puts an answer into the queue. Raises ValueError where it can never fit the cache."""
        if ask.output_tokens < 1 or ask.prompt_tokens < 1:
            raise ValueError("a sequence needs at least one prompt and one output token")
        if blocks_for(ask.prompt_tokens + ask.output_tokens + self.settings.k + 1) > self.kv.total:
            raise ValueError("the sequence does not fit the cache")
        rates = self.profile.acceptance(ask.task, self.settings.k)
        sequence = Sequence(ask, now, Random(ask.seed ^ self.settings.seed), rates)
        self._waiting.append(sequence)
        return sequence

    def abort(self, sequence: Sequence, now: float) -> bool:
        """Ends a sequence at once and frees its blocks; False where it is over already."""
        if sequence.done:
            return False
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._end(sequence, "abort", now)
        return True

    def begin(self, now: float) -> float | None:
        """Plans a step that starts at `now` and returns when it ends; None where there is nothing to do."""
        if self._step is not None:
            raise RuntimeError("the step before has not been committed")
        decoding = [s for s in self._running if s.to_prefill <= (1 if s.generated else 0)]
        decoding = self._grow(decoding)
        budget = self.settings.max_num_batched_tokens - len(decoding) * (self.settings.k + 1)
        prefilling = self._schedule_prefills(now, budget)
        if not decoding and not prefilling:
            return None
        prompts = sum(self.profile.prompt_seconds(tokens, sequence.prefilled) for sequence, tokens in prefilling)
        seconds = self._seconds(decoding, prompts, pause=now != self._ended) * self.slowdown
        computed = len(decoding) * (self.settings.k + 1) + sum(tokens for _, tokens in prefilling)
        self._step = _Step(now + seconds, decoding, prefilling, computed)
        self._began = now
        return self._step.ends

    def commit(self) -> list[Event]:
        """Ends the step begun last, at the time that `begin` gave, and returns what came out of it."""
        step = self._step
        if step is None:
            return []
        self._step = None
        self._ended = step.ends
        self.counters.steps += 1
        self.last_step_tokens = step.tokens
        events = []
        for sequence, tokens in step.prefilling:
            if sequence.done:
                continue
            sequence.prefilled += tokens
            if sequence.to_prefill == 0:
                self.kv.remember(sequence.ask.block_hashes)
                events.append(self._emit(sequence, 1, step.ends))
        for sequence in step.decoding:
            if not sequence.done:
                events.append(self._emit(sequence, 1 + self._verify(sequence), step.ends))
        return events

    def step(self, now: float) -> tuple[float, list[Event]] | None:
        """One whole step for callers whose clock jumps: when it ends and what came out; None where idle."""
        ends = self.begin(now)
        return None if ends is None else (ends, self.commit())

    def _seconds(self, decoding: list[Sequence], prompts: float, *, pause: bool) -> float:
        k, profile = self.settings.k, self.profile
        if not decoding:
            return profile.prompt_step_seconds(prompts, k, pause=pause)
        context = sum(s.context for s in decoding) / len(decoding)
        seconds = self.profile.step_seconds(len(decoding), k, context)
        if prompts:
            seconds += profile.stall_seconds(prompts, k)
        return seconds

    def _schedule_prefills(self, now: float, budget: int) -> list[tuple[Sequence, int]]:
        """Spends `budget` tokens on prompts begun before, then on new ones while seats and blocks last, if they were
        there when the last step began."""
        planned = []
        for sequence in self._running:
            missing = sequence.to_prefill - (1 if sequence.generated and sequence.prefilled else 0)
            if missing > 0 and budget > 0:
                planned.append((sequence, min(missing, budget)))
                budget -= min(missing, budget)
        idle = not self._running
        while self._waiting and budget > 0 and len(self._running) < self.settings.max_num_seqs:
            sequence = self._waiting[0]
            if sequence.arrived > self._began and not idle:
                break
            wanted = blocks_for(sequence.context + 1)
            if not self.kv.resize(0, wanted):
                break
            self._waiting.popleft()
            self._running.append(sequence)
            sequence.blocks = wanted
            if sequence.scheduled is None:
                sequence.scheduled = now
                self._admit(sequence)
            tokens = min(sequence.to_prefill, budget)
            planned.append((sequence, tokens))
            budget -= tokens
        return planned

    def _admit(self, sequence: Sequence) -> None:
        ask = sequence.ask
        if self.settings.prefix_caching:
            sequence.cached = self.kv.match(ask.block_hashes, ask.prompt_tokens)
        sequence.prefilled = sequence.cached
        self.counters.prompt_tokens += ask.prompt_tokens
        self.counters.cached_prompt_tokens += sequence.cached

    def _grow(self, decoding: list[Sequence]) -> list[Sequence]:
        """Gives each sequence room for its next tokens; where there is none, the youngest goes back to the queue."""
        kept: list[Sequence] = []
        pending = deque(decoding)
        while pending:
            sequence = pending.popleft()
            wanted = blocks_for(sequence.context + self.settings.k + 1)
            while wanted > sequence.blocks and not self.kv.resize(sequence.blocks, wanted):
                victim = self._running[-1]
                self._preempt(victim)
                if victim is sequence:
                    break
                if pending and pending[-1] is victim:
                    pending.pop()
            else:
                sequence.blocks = max(wanted, sequence.blocks)
                kept.append(sequence)
        return kept

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self.kv.resize(sequence.blocks, 0)
        sequence.blocks = 0
        sequence.prefilled = 0
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self._waiting.appendleft(sequence)

    def _verify(self, sequence: Sequence) -> int:
        if not self.settings.k:
            return 0
        accepted = sequence.verify(self.drift)
        spec = self.counters.spec
        spec.drafts += 1
        spec.draft_tokens += self.settings.k
        spec.accepted_tokens += accepted
        for position in range(accepted):
            spec.accepted_per_position[position] += 1
        sequence.draft_steps += 1
        sequence.draft_tokens += self.settings.k
        sequence.accepted_by_step.append(accepted)
        return accepted

    def _emit(self, sequence: Sequence, tokens: int, now: float) -> Event:
        tokens = min(tokens, sequence.ask.output_tokens - sequence.generated)
        interval = None if sequence.last_token is None else now - sequence.last_token
        if sequence.first_token is None:
            sequence.first_token = now
        sequence.last_token = now
        sequence.generated += tokens
        # The newest token's keys and values are computed by the step that follows.
        sequence.prefilled = sequence.context - 1
        self.counters.generation_tokens += tokens
        if sequence.generated >= sequence.ask.output_tokens:
            self._running.remove(sequence)
            self._end(sequence, sequence.ask.finish, now)
        return Event(sequence, tokens, interval)

    def _end(self, sequence: Sequence, finish: str, now: float) -> None:
        self.kv.resize(sequence.blocks, 0)
        sequence.blocks = 0
        sequence.finish = finish
        sequence.ended = now
        self.counters.finished[finish] += 1
