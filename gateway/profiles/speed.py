"""One step-time model for every hardware and model, and what follows from it: TPOT, TTFT, break-even.

A decode step of B sequences that each verify k drafted tokens handles n = B(k+1) tokens and takes

    step = base + mtp [k>0] + position k + token n + overflow max(n - overflow_from, 0)
         + experts (1 - (1 - active)^m) + context B S/1000 + mtp_context [k>0] S/1000            (milliseconds)

S is the context that attention sees, averaged over layers (sliding layers stop at their window). The expert term is
the share of a MoE's experts that the step's tokens touch: it is why drafting costs a MoE most when the batch is small.
m = B(1 + k locality): tokens drafted for one sequence tend to use the experts of their neighbours (locality 1: not
at all alike). The plain linear form without the expert and context terms misses by 20 % on a MoE.

A prompt's n tokens behind c others that are cached take, apart from what a step with prompts costs anyway,

    prompt = n / tokens_per_second + context (seen(c + n) - seen(c))     seen(m) = m^2 / 2 - local (m - window)^2 / 2

for each token attends to all before it, or in sliding layers to the last ones; (m - window) counts from 0 up. So a
long prompt costs more per token than a short one, and computed in pieces it costs as much as in one.

An accepted draft saves a step, so TPOT = step / mean acceptance length, and drafting pays when the acceptance length
exceeds `break_even`, step(k) / step(0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from gateway.types import Task

MAX_DRAFT_TOKENS = 16
"""Deepest k that a profile answers for."""

DEFAULT_CONTEXT = 512.0
"""Tokens of context per sequence where the caller does not know better."""

STEPS_TO_FIRST = 2.5
"""Steps from a newcomer's arrival beside others to its first token: half of the one under way, the one behind it, which
an engine that schedules ahead has fixed already (vLLM by default), and the one that computes its prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """How much of the context attention sees: `local` is the share of heads in sliding layers, of `window` tokens."""

    local: float = 0.0
    window: float = 1024.0

    def seen(self, context: float) -> float:
        """Tokens seen, averaged over the layers' key/value heads."""
        if context <= self.window:
            return context
        return self.local * self.window + (1.0 - self.local) * context


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """Terms of the decode step, milliseconds; see the module's head."""

    base: float
    mtp: float = 0.0
    position: float = 0.0
    token: float = 0.0
    overflow: float = 0.0
    overflow_from: float = 512.0
    experts: float = 0.0
    active: float = 0.0
    """Experts used per token over all experts; 0 for a dense model."""
    locality: float = 1.0
    context: float = 0.0
    mtp_context: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Terms of a prompt's prefill. Milliseconds, except the rate.

    `fixed` is what the first token costs on an idle engine besides the prompt's tokens; `stall` is what a short
    joining prompt adds to the step of a running batch. Both are mostly launches and the host's work, which long prompts
    hide behind their arithmetic: an engine that computes without a pause pays the larger of the two, not both.
    `context` is what a thousand tokens take, that each see a thousand others; `local` is the share of that work which
    sliding layers do. It is not `Attention.local`: a decode step reads keys and values, a prompt computes with every
    query head.
    """

    fixed: float
    stall: float
    mtp_fixed: float = 0.0
    mtp_stall: float = 0.0
    tokens_per_second: float
    context: float = 0.0
    local: float = 0.0


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How well drafts are accepted for one task, for every k at once."""

    rates: tuple[float, ...]
    """Unconditional chance that position i is accepted (so never increasing), `MAX_DRAFT_TOKENS` of them."""
    lengths: tuple[float, ...]
    """Mean acceptance length by k, from k = 0: 1 + the sum of the first k rates, the token that verification adds
    included."""

    @classmethod
    def of(cls, rates: tuple[float, ...]) -> Acceptance:
        """From the first positions' rates; deeper ones fall on by the last two's ratio.

        Raises ValueError where a rate lies outside 0..1 or rises.
        """
        if not rates or any(not 0.0 <= rate <= 1.0 for rate in rates):
            raise ValueError(f"acceptance rates must lie in 0..1, got {rates}")
        if any(later > earlier for earlier, later in pairwise(rates)):
            raise ValueError(f"unconditional acceptance cannot rise with the position, got {rates}")
        extended = list(rates[:MAX_DRAFT_TOKENS])
        ratio = rates[0] if len(rates) == 1 else rates[-1] / rates[-2] if rates[-2] else 0.0
        while len(extended) < MAX_DRAFT_TOKENS:
            extended.append(extended[-1] * ratio)
        lengths = [1.0]
        for rate in extended:
            lengths.append(lengths[-1] + rate)
        return cls(tuple(extended), tuple(lengths))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How fast one model runs on one piece of hardware. Seconds everywhere; k = 0 is an engine without a drafter."""

    hardware: str
    model: str
    moe: bool
    source: str
    """Where the figures come from, and which of them are derived rather than measured."""
    decode: Decode
    prefill: Prefill
    attention: Attention
    by_task: Mapping[Task, Acceptance]
    """Every task has an entry."""

    @property
    def name(self) -> str:
        return f"{self.hardware}/{self.model}"

    def step_seconds(self, batch: float, k: int, context: float = DEFAULT_CONTEXT) -> float:
        """Time of one decode step of `batch` sequences, each with `context` tokens so far, verifying k drafts."""
        d = self.decode
        tokens = batch * (k + 1)
        seen = self.attention.seen(context) / 1000.0
        ms = d.base + d.token * tokens + d.context * batch * seen
        if tokens > d.overflow_from:
            ms += d.overflow * (tokens - d.overflow_from)
        if d.experts:
            ms += d.experts * (1.0 - (1.0 - d.active) ** (batch * (1.0 + k * d.locality)))
        if k:
            ms += d.mtp + d.position * k + d.mtp_context * seen
        return ms / 1000.0

    def prompt_seconds(self, tokens: float, cached: float = 0.0) -> float:
        """The arithmetic of `tokens` of a prompt behind its first `cached` ones. Those of several prompts add up."""
        p = self.prefill
        seconds = tokens / p.tokens_per_second
        if p.context:
            whole, window = cached + tokens, self.attention.window
            seen = whole * whole - cached * cached
            if whole > window:
                before = cached - window if cached > window else 0.0
                seen -= p.local * ((whole - window) * (whole - window) - before * before)
            seconds += p.context * seen / 2e9
        return seconds

    def prefill_seconds(self, tokens: float, k: int = 0) -> float:
        """From scheduling to the first token for a prompt of `tokens` on an engine that was idle."""
        return self.prompt_step_seconds(self.prompt_seconds(tokens), k, pause=True)

    def prompt_step_seconds(self, prompts: float, k: int = 0, *, pause: bool) -> float:
        """A step with nothing but prompts, which take `prompts` seconds; `pause`: the engine was idle before it."""
        p = self.prefill
        fixed = (p.fixed + p.mtp_fixed if k else p.fixed) / 1000.0
        return fixed + prompts if pause else max(fixed, prompts)

    def prefill_stall_seconds(self, tokens: float, k: int = 0) -> float:
        """What a joining prompt of `tokens` adds to the running batch's step, so to each running request."""
        return self.stall_seconds(self.prompt_seconds(tokens), k)

    def stall_seconds(self, prompts: float, k: int = 0) -> float:
        """The same of all prompts that join a step, which take `prompts` seconds."""
        p = self.prefill
        stall = (p.stall + p.mtp_stall if k else p.stall) / 1000.0
        return stall if stall > prompts else prompts

    def acceptance(self, task: Task, k: int) -> tuple[float, ...]:
        """Unconditional acceptance rates of the first k draft positions."""
        return self.by_task[task].rates[:k]

    def mean_acceptance_length(self, task: Task, k: int) -> float:
        """Tokens per sequence and step: 1 (k = 0) .. k + 1."""
        return self.by_task[task].lengths[k]

    def tpot(self, task: Task, running: float, k: int, context: float = DEFAULT_CONTEXT) -> float:
        """Seconds per output token with `running` requests in the batch, this one included."""
        return self.step_seconds(running if running > 1.0 else 1.0, k, context) / self.by_task[task].lengths[k]

    def ttft(self, input_tokens: float, running: float, k: int = 0) -> float:
        """Seconds from arrival to the first token, with no queue, beside `running` other requests."""
        if running < 1.0:
            return self.prefill_seconds(input_tokens, k)
        return STEPS_TO_FIRST * self.step_seconds(running, k) + self.prefill_stall_seconds(input_tokens, k)

    def break_even(self, running: float, k: int, context: float = DEFAULT_CONTEXT) -> float:
        """The mean acceptance length above which drafting k tokens pays at this batch size."""
        return self.step_seconds(running, k, context) / self.step_seconds(running, 0, context)

    def speedup(self, task: Task, running: float, k: int, context: float = DEFAULT_CONTEXT) -> float:
        """Plain TPOT over drafting TPOT: above 1 drafting is faster per token."""
        return self.mean_acceptance_length(task, k) / self.break_even(running, k, context)
