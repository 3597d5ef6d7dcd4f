"""What an estimate and its learning cost against how many templates the estimator has seen.

The estimator is the gateway's own, in this process. It grows from level to level; each round measures a copy of every
level's estimator, so that measuring teaches none of them. Each template has a system prompt, a head, a tail, a form
and a shape of its own, which makes nine keys besides the model's. Timed are `estimate` and `observe` alone, by the
thread's CPU clock; what they are given is made before.

Two kinds of requests: *one template*, seen fifty times before it is measured, and *any template*, drawn evenly from
all that the level has seen. At one template they are the same.
"""

from __future__ import annotations

import copy
import gc
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from gateway.estimate.estimator import Estimator
from gateway.estimate.model import load_prior
from gateway.request.features import extract
from gateway.request.parse import parse_body
from gateway.types import Api, Features, Outcome, Result, Usage
from tests.benchmarks import wire
from tests.benchmarks.growth_fleet import Plan, turned
from tests.benchmarks.process import pinned, rss_bytes
from tests.benchmarks.stats import middle

_BODY_BYTES = 1000
_SEEN = 50
_LOOK_EVERY = 50
"""Templates between two looks at whether the history is full."""


class Templates:
    """Endless templates by number: the same request with other keys, and its answer's length."""

    def __init__(self) -> None:
        self._like = extract(parse_body(wire.chat_body(_BODY_BYTES)), Api.CHAT)

    def request(self, number: int) -> Outcome:
        """A finished request of this template; always the same keys, each time an object of its own."""
        bits = Random(number).getrandbits
        features = replace(
            self._like,
            system_key=bits(64),
            template_key=bits(64),
            head_key=bits(64),
            tail_key=bits(64),
            form_key=bits(64),
            shape_key=bits(64),
        )
        return _finished(features, 20 + bits(5))


def _rss() -> int:
    return rss_bytes([os.getpid()])


def _finished(features: Features, tokens: int) -> Outcome:
    return Outcome(
        request_id="",
        result=Result.OK,
        status=200,
        started=0.0,
        ended=1.0,
        features=features,
        usage=Usage(prompt_tokens=features.input_tokens, completion_tokens=tokens),
        finish_reason="stop",
    )


def timed_us(estimator: Estimator, outcomes: Sequence[Outcome]) -> float:
    """CPU microseconds of one estimate and of learning its outcome."""
    requests = [(outcome.features, outcome) for outcome in outcomes if outcome.features is not None]
    start = time.thread_time()
    for features, outcome in requests:
        estimator.estimate(features)
        estimator.observe(outcome)
    return (time.thread_time() - start) / len(requests) * 1e6


class Growing:
    """One estimator that learns template after template, and when it was full."""

    def __init__(self, templates: Templates) -> None:
        self.prior = load_prior()
        self.estimator = Estimator(self.prior, share=True)
        self.learned = 0
        self.full_at: int | None = None
        """Templates after which older keys began to be forgotten."""
        self.most_entries = 0
        self._templates = templates

    def grow(self, count: int) -> None:
        """Learns templates until it has seen `count`."""
        for number in range(self.learned, count):
            self.estimator.observe(self._templates.request(number))
            if self.full_at is None and number % _LOOK_EVERY == 0:
                self._look(number)
        self.learned = count

    def _look(self, number: int) -> None:
        entries = self.estimator.statistics().entries
        if entries < self.most_entries:
            self.full_at = number
        self.most_entries = max(self.most_entries, entries)

    def copied(self) -> Estimator:
        """An estimator in the same state, on the same prior."""
        return copy.deepcopy(self.estimator, {id(self.prior): self.prior})


def keys(plan: Plan) -> dict[str, Any]:
    """The curve, and where the bounded history is full."""
    levels = plan.pick((1, 1_000, 100_000, 1_000_000), (1, 1_000))
    rounds, requests = plan.pick(7, 1), plan.pick(2_000, 200)
    templates = Templates()
    growing = Growing(templates)
    states: dict[int, Estimator] = {}
    rows: dict[int, dict[str, Any]] = {}
    with pinned(plan.cores.target):
        gc.collect()
        before, copies = _rss(), 0
        for level in levels:
            plan.say(f"keys: learning up to {level:,} templates")
            growing.grow(level)
            statistics = growing.estimator.statistics()
            rows[level] = {
                "templates": level,
                "entries": statistics.entries,
                "estimated_mb": statistics.bytes / 1e6,
                "rss_growth_mb": (_rss() - before - copies) / 1e6,
            }
            single = _rss()
            states[level] = growing.copied()
            copies += _rss() - single
        samples = _measured(states, growing, templates, rounds, requests, plan)
    for level, found in samples.items():
        rows[level] |= {kind: middle(values) for kind, values in found.items()}
    return {
        "parameters": {"rounds": rounds, "requests": requests, "keys_per_template": 9, "body_bytes": _BODY_BYTES},
        "rows": list(rows.values()),
        "full_at_templates": growing.full_at,
        "most_entries": growing.most_entries,
        "errors": {},
    }


def _measured(
    states: dict[int, Estimator], growing: Growing, templates: Templates, rounds: int, requests: int, plan: Plan
) -> dict[int, dict[str, list[float]]]:
    samples: dict[int, dict[str, list[float]]] = {level: {"one_us": [], "any_us": []} for level in states}
    rng = Random(1)
    for turn in range(rounds):
        plan.say(f"keys: round {turn + 1} of {rounds}")
        for level in turned(list(states), turn):
            drawn = [templates.request(rng.randrange(level)) for _ in range(requests)]
            same = [templates.request(0) for _ in range(requests)]
            estimator = copy.deepcopy(states[level], {id(growing.prior): growing.prior})
            gc.collect()
            samples[level]["any_us"].append(timed_us(estimator, drawn))
            for outcome in same[:_SEEN]:
                estimator.observe(outcome)
            samples[level]["one_us"].append(timed_us(estimator, same))
    return samples
