"""`Features` -> `Estimate` by rules alone: bounds first, then what the request says, then what its task usually takes.

The first of these that applies settles it: a cap of at most 16 tokens, a choice list or a bounded schema, the client's
hint, examples, a length wish. Otherwise the tasks' length distributions (log-normal) are mixed by the evidence, with a
wide UNKNOWN for the rest. Thinking adds its own tokens on top. From log-location and spread:

    E[min(N, c)] = exp(m + s^2/2) Phi((ln c - m - s^2) / s) + c Phi((m - ln c) / s)
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gateway.types import Estimate, Features, Structure, Task, ToolChoice

SETTLING_CAP = 16
CEILING = 8192
"""Stands in for the cap where there is none: answers hardly get longer, and a wide spread must not invent them."""
_MOST_MIXED = 4
"""Tasks, the likeliest, whose lengths are mixed."""
_Z90 = 1.2816


class Length(NamedTuple):
    """A log-normal length: median exp(`mu`) tokens, and the standard deviation of its logarithm."""

    mu: float
    sigma: float


def length(median: float, sigma: float) -> Length:
    return Length(math.log(max(median, 1.0)), sigma)


def _averaging(mean: float, sigma: float) -> Length:
    """The length whose expected value is `mean`, never below it by rounding: limits in policies are whole numbers."""
    return Length(math.log(max(mean, 1.0)) - sigma**2 / 2 + 1e-12, sigma)


TYPICAL: dict[Task, Length] = {
    Task.CLASSIFICATION: length(3, 1.0),
    Task.MULTIPLE_CHOICE: length(4, 1.3),
    Task.EXTRACTION: length(12, 1.3),
    Task.SHORT_QA: length(24, 1.5),
    Task.MATH: length(150, 1.0),
    Task.CODE: length(260, 0.9),
    Task.CHAT: length(320, 0.9),
    Task.SUMMARIZATION: length(130, 0.8),
    Task.REWRITING: length(90, 1.1),
    Task.TRANSLATION: length(70, 1.1),
    Task.LONG_FORM: length(620, 0.7),
    Task.TOOL_CALL: length(45, 0.9),
    Task.STRUCTURED_JSON: length(70, 0.9),
    Task.REASONING: length(280, 0.8),
    Task.UNKNOWN: length(110, 1.7),
}
"""Rounded medians of instruction-following chat models; a label, a sentence, a page."""
_THINKING = length(500, 1.0)
_FOLLOWS_INPUT = {Task.TRANSLATION: (1.1, 0.4), Task.REWRITING: (0.9, 0.6)}
"""Tasks whose answer is about as long as what is worked on: (factor, spread)."""
_INSTRUCTION = 8
"""Tokens of an instruction like "translate into French:", which are not worked on."""
_DETAIL = {-1: 0.4, 0: 1.0, 1: 1.8}
_BY_ASK = frozenset((*_FOLLOWS_INPUT, Task.STRUCTURED_JSON, Task.SUMMARIZATION))
"""Tasks whose answer's length depends on what is asked about."""


def _detailed(base: Length, detail: int) -> Length:
    """A length where brevity (-1) or detail (1) is asked for; short answers stay as they are."""
    return Length(base.mu + math.log(_DETAIL[detail]), base.sigma) if base.mu > 3 else base


_TYPICAL_BY_DETAIL = {detail: {task: _detailed(base, detail) for task, base in TYPICAL.items()} for detail in _DETAIL}


class Ruled(NamedTuple):
    """What the rules say of the answer proper, before caps and thinking."""

    task: Task
    """By evidence."""
    answer: Length

    @property
    def tokens(self) -> float:
        """The median."""
        return math.exp(self.answer.mu)


def estimate_rules(
    features: Features, *, thinking: bool | None = None, room: int | None = None, task: Task | None = None
) -> Estimate:
    """The estimate by rules.

    `thinking` is the resolved switch where the model decides it (always on, or its default); the request's own
    switch is the fallback. `room` is the context left for the answer. `task` overrides the task by evidence.
    """
    thinks, cap = resolve(features, thinking, room)
    named, share = best_task(features)
    named = task or features.hint_task or named
    if cap is not None and cap <= SETTLING_CAP:
        return _settled(features, named, cap)
    answer, confidence, source = _answer(features, named, share)
    if features.prefill and answer.mu > 1:
        answer = Length(answer.mu - 0.3, answer.sigma + 0.2)
    if thinks:
        answer, confidence = _with_thinking(features, answer, confidence)
    return from_length(answer, cap, features.floor, task=named, confidence=confidence, source=source)


def resolve(features: Features, thinking: bool | None, room: int | None) -> tuple[bool | None, int | None]:
    """(whether the model thinks, the cap): the model's switch and the context left, joined with the request's own."""
    thinks = features.thinking if thinking is None else thinking
    cap = features.token_limit if thinks else features.cap
    if room is not None:
        cap = max(1, room) if cap is None else min(cap, max(1, room))
    return thinks, cap


def read_rules(features: Features) -> Ruled:
    """The rules' view of a request's answer."""
    task, share = best_task(features)
    return Ruled(task, _answer(features, task, share)[0])


def stated_by(features: Features, cap: int | None) -> str | None:
    """What of the request says how long its answer will be, beside its words; `cap` as it was resolved."""
    if cap is not None and cap <= SETTLING_CAP:
        return _settled_by(features)
    stated = _stated(features)
    return stated[2] if stated is not None else None


def from_length(answer: Length, cap: int | None, floor: int, *, task: Task, confidence: float, source: str) -> Estimate:
    """The estimate of max(floor, min(N, cap)) for a log-normal N."""
    top = float(cap) if cap is not None else float(CEILING)
    low = float(min(floor, top))
    middle, high = math.exp(answer.mu), math.exp(min(answer.mu + _Z90 * answer.sigma, 20.0))
    return Estimate(
        task=task,
        output_tokens=max(low, expected_min(answer, top)),
        p50=max(low, min(middle, top)),
        p90=max(low, min(high, top)),
        confidence=confidence,
        source=source,
    )


def expected_min(answer: Length, cap: float) -> float:
    """E[min(N, cap)] for a log-normal N, in closed form."""
    if cap <= 0:
        return 0.0
    if answer.sigma < 1e-6:
        return min(math.exp(answer.mu), cap)
    gap = (math.log(cap) - answer.mu) / answer.sigma
    below = math.exp(answer.mu + answer.sigma**2 / 2) * _phi(gap - answer.sigma)
    return min(cap, below + cap * _phi(-gap))


def best_task(features: Features) -> tuple[Task, float]:
    """The task with the most evidence and its share; UNKNOWN where nothing has a third."""
    if features.task_scores and features.task_scores[0][1] >= 0.34:
        return features.task_scores[0]
    return Task.UNKNOWN, 1.0 - sum(share for _, share in features.task_scores)


def _settled(features: Features, task: Task, cap: int) -> Estimate:
    """Under a tiny cap even a sloppy guess is right within a few tokens, so the work ends here."""
    bounded = features.structure is Structure.CHOICE or (features.structure_tokens or cap) < cap
    guess = min(cap, features.structure_tokens or features.few_shot or features.wish or cap)
    if task is Task.UNKNOWN and (features.explicit_cap or bounded):
        task = Task.CLASSIFICATION if features.structure is Structure.CHOICE else Task.SHORT_QA
    low = float(max(guess, min(features.floor, cap)))
    source = _settled_by(features)
    return Estimate(task=task, output_tokens=low, p50=low, p90=float(cap), confidence=0.98, source=source)


def _settled_by(features: Features) -> str:
    return "choice" if features.structure is Structure.CHOICE else "cap"


def _answer(features: Features, task: Task, share: float) -> tuple[Length, float, str]:
    """The length of the answer proper, how sure that is, and what settled it."""
    return _stated(features) or _by_task(features, task, share)


def _stated(features: Features) -> tuple[Length, float, str] | None:
    """The same where a structure, a hint, examples or a wish say it."""
    known = _structured(features)
    if known is not None:
        return known
    if features.hint_tokens is not None:
        return _averaging(features.hint_tokens, 0.3), 0.9, "hint"
    if features.few_shot is not None and not features.tools:
        sure = 0.93 if features.few_shots >= 3 else 0.85 if features.few_shots == 2 else 0.7
        return length(features.few_shot, 0.45 if features.few_shot > 8 else 0.6), sure, "few_shot"
    if features.wish is not None and features.wish_firm and not features.step_by_step:
        return length(features.wish, 0.9), 0.88, "wish"
    if features.wish is not None:
        return length(features.wish, 0.4), 0.85, "wish"
    if features.stop_line:
        return length(20, 0.9), 0.6, "cap"
    return None


def _structured(features: Features) -> tuple[Length, float, str] | None:
    size = features.structure_tokens
    if size is not None and features.tool_choice in (ToolChoice.NONE, ToolChoice.AUTO):
        if features.structure is Structure.CHOICE:
            return length(size, 0.4), 0.7 if features.legacy_guided else 0.97, "choice"
        return length(size, 0.35 if features.cap is not None else 0.6), 0.85, "schema"
    if features.scoring:
        return length(2, 0.6), 0.9, "cap"
    if features.tool_choice in (ToolChoice.REQUIRED, ToolChoice.NAMED):
        return TYPICAL[Task.TOOL_CALL], 0.8, "rules"
    return None


def _by_task(features: Features, task: Task, share: float) -> tuple[Length, float, str]:
    """The tasks' lengths mixed by evidence: the mean of the logs, and the spread within and between them."""
    scores = features.task_scores
    source = "rules"
    if task is Task.UNKNOWN:
        source, share = "unknown", 0.15
    elif not (scores and scores[0][0] is task):
        # A task that was named and not found.
        scores, share = ((task, 0.9),), 0.9
    # Of each length's logarithm: the sum of shares, the mean and the mean of squares.
    total = mu = squares = 0.0
    for each, part in scores[:_MOST_MIXED]:
        own_mu, sigma = _of_task(each, features)
        total += part
        mu += part * own_mu
        squares += part * (sigma * sigma + own_mu * own_mu)
    told = total if len(scores) <= _MOST_MIXED else sum([part for _, part in scores])
    rest = 1.0 - told if told < 1.0 else 0.0
    own_mu, sigma = _of_task(Task.UNKNOWN, features)
    total += rest
    mu = (mu + rest * own_mu) / total
    squares += rest * (sigma * sigma + own_mu * own_mu)
    return Length(mu, math.sqrt(max(0.0, squares / total - mu * mu))), min(0.8, share), source


def _of_task(task: Task, features: Features) -> Length:
    tokens = features.ask_tokens
    if task not in _BY_ASK or not tokens:
        return _TYPICAL_BY_DETAIL[features.detail][task]
    base = TYPICAL[task]
    follows = _FOLLOWS_INPUT.get(task)
    if follows is not None and tokens > _INSTRUCTION:
        return length(max(4.0, (tokens - _INSTRUCTION) * follows[0]), follows[1])
    if task is Task.STRUCTURED_JSON:
        return length(min(math.exp(base.mu), 15 + 0.8 * tokens), base.sigma)
    if task is Task.SUMMARIZATION and tokens > 60:
        base = length(12 * math.sqrt(tokens) * 0.6, base.sigma)
    return _detailed(base, features.detail)


def _with_thinking(features: Features, answer: Length, confidence: float) -> tuple[Length, float]:
    """Adds the thinking tokens, which come first and are many more than a short answer's."""
    thought = _THINKING
    if features.thinking_budget is not None:
        budget = max(1, features.thinking_budget)
        thought = length(min(math.exp(_THINKING.mu), 0.7 * budget), 0.6)
    medians = math.exp(thought.mu), math.exp(answer.mu)
    both = sum(medians)
    sigma = (medians[0] * thought.sigma + medians[1] * answer.sigma) / both
    return Length(math.log(both), sigma), min(confidence, 0.6)


def _phi(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))
