"""Capacity limits of the simulated engines by hardware profile; their speeds are in `gateway.profiles`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.profiles import Profile
from gateway.simulate.job import Job


@dataclass(frozen=True, slots=True)
class Machine:
    """One engine's limits. `seats` is vLLM's `max_num_seqs`, `kv_tokens` its KV cache in tokens."""

    seats: int
    kv_tokens: int
    k: int = 2
    """Draft tokens of its MTP engines."""
    k_by_batch: tuple[tuple[int, int], ...] = ()
    """(largest batch, K) rows, for the arm in which the engine chooses K by batch size."""
    per_card: int = 1
    """Engines per card, each on its own partition."""


MACHINES: Mapping[str, Machine] = {
    "dgx-spark": Machine(seats=64, kv_tokens=400_000, k=2, k_by_batch=((32, 2), (48, 1), (64, 0))),
    "g4-slice": Machine(seats=64, kv_tokens=100_000, k=2, k_by_batch=((32, 2), (48, 1), (64, 0)), per_card=4),
    "h200": Machine(seats=256, kv_tokens=600_000, k=2, k_by_batch=((64, 2), (128, 1), (256, 0))),
}
MODELS = ("e4b", "26b-a4b", "31b")


def capacity(profile: Profile, k: int, machine: Machine, jobs: Sequence[Job]) -> float:
    """Requests per second that one engine completes with all seats taken.

    With B seats and w decode steps per request, B / (w + 1) requests end per step and as many prompts join.
    """
    number = len(jobs)
    prompt = sum(profile.prompt_seconds(job.prompt.features.input_tokens) for job in jobs) / number
    tokens = sum(job.tokens for job in jobs)
    context = sum((job.prompt.features.input_tokens + job.tokens / 2) * job.tokens for job in jobs) / tokens
    held = sum((job.prompt.features.input_tokens + job.tokens) * job.tokens for job in jobs) / tokens
    work = sum((job.tokens - 1) / profile.mean_acceptance_length(job.prompt.task, k) for job in jobs) / number
    batch = max(min(machine.seats, machine.kv_tokens / held), 1.0)
    joins = batch / (work + 1.0)
    stall = max(profile.stall_seconds(0.0, k) * min(1.0, joins), joins * prompt)
    seconds = profile.step_seconds(batch, k, context) + stall
    return joins / seconds
