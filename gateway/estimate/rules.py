"""Turns `Features` into an `Estimate` by rules alone.

The first that applies decides: a cap of at most 16 tokens, a choice list or a schema, the client's hint, examples, a
length wish. Otherwise the log-normal length distributions of the likeliest tasks are mixed by their evidence, with a
wide UNKNOWN for the remainder. Thinking adds its own tokens. For location m, spread s (of ln tokens) and cap c:

    E[min(N, c)] = exp(m + s^2/2) Phi((ln c - m - s^2) / s) + c Phi((m - ln c) / s)
"""

from __future__ import annotations

import math

from gateway.records import record
from gateway.types import Estimate, Features, Structure, Task, ToolChoice

SETTLING_CAP = 16
CEILING = 8192
"""Upper limit, in tokens, without a cap: answers hardly exceed it, and a wide spread must not imply that they do."""
_MOST_MIXED = 4
"""Number of tasks, the likeliest ones, whose lengths are mixed."""
_Z90 = 1.2816
_FORCED = frozenset({ToolChoice.REQUIRED, ToolChoice.NAMED})


@record
class Length:
    """A log-normal length: median exp(`mu`) tokens; `sigma` is the standard deviation of ln tokens."""

    mu: float
    sigma: float


def length(median: float, sigma: float) -> Length:
    """The length with this median, in tokens (at least 1), and this standard deviation of ln tokens."""
    return Length(math.log(max(median, 1.0)), sigma)


def _averaging(mean: float, sigma: float) -> Length:
    """The length with expected value `mean`, never rounded below it: limits in policies are whole numbers."""
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
"""Rounded medians of instruction-following chat models."""
_THINKING = length(500, 1.0)
_FOLLOWS_INPUT = {Task.TRANSLATION: (1.1, 0.4), Task.REWRITING: (0.9, 0.6)}
"""Tasks whose answer is about as long as their input: (length factor, sigma)."""
_INSTRUCTION = 8
"""Tokens of an instruction such as "translate into French:", which are not input."""
_DETAIL = {-1: 0.4, 0: 1.0, 1: 1.8}
_BY_ASK = frozenset((*_FOLLOWS_INPUT, Task.STRUCTURED_JSON, Task.SUMMARIZATION))
"""Tasks whose length depends on the length of the last user turn."""


def _detailed(base: Length, detail: int) -> Length:
    """Scales a length for brevity (-1) or detail (1); short answers are unchanged."""
    return Length(base.mu + math.log(_DETAIL[detail]), base.sigma) if base.mu > 3 else base


_TYPICAL_BY_DETAIL = {detail: {task: _detailed(base, detail) for task, base in TYPICAL.items()} for detail in _DETAIL}


@record
class Ruled:
    """The rules' result for the answer proper, before caps and thinking."""

    task: Task
    """The task by evidence."""
    answer: Length

    @property
    def tokens(self) -> float:
        """The median, in tokens."""
        return math.exp(self.answer.mu)


def estimate_rules(
    features: Features, *, thinking: bool | None = None, room: int | None = None, task: Task | None = None
) -> Estimate:
    """Estimates one choice of the answer by rules.

    Args:
        features: the request.
        thinking: the switch if the model decides it (always on, or its default); None uses the request's own.
        room: tokens of context left for the answer; None where unknown.
        task: replaces the task by evidence.
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
    """(whether the model thinks, the cap), from the model's switch, the context left and the request's own values."""
    thinks = features.thinking if thinking is None else thinking
    cap = features.token_limit if thinks else features.cap
    if room is not None:
        cap = max(1, room) if cap is None else min(cap, max(1, room))
    return thinks, cap


def read_rules(features: Features) -> Ruled:
    """The rules' result for a request."""
    task, share = best_task(features)
    return Ruled(task, _answer(features, task, share)[0])


def stated_by(features: Features, cap: int | None) -> str | None:
    """The source that states the answer's length, or None if only the text can tell; `cap` is the resolved cap."""
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
    """E[min(N, cap)] for a log-normal N, in closed form (see the module's head)."""
    if cap <= 0:
        return 0.0
    if answer.sigma < 1e-6:
        return min(math.exp(answer.mu), cap)
    gap = (math.log(cap) - answer.mu) / answer.sigma
    below = math.exp(answer.mu + answer.sigma**2 / 2) * _phi(gap - answer.sigma)
    return min(cap, below + cap * _phi(-gap))


def best_task(features: Features) -> tuple[Task, float]:
    """(task, share) with the most evidence; UNKNOWN if no task has a third."""
    if features.task_scores and features.task_scores[0][1] >= 0.34:
        return features.task_scores[0]
    return Task.UNKNOWN, 1.0 - sum(share for _, share in features.task_scores)


def _settled(features: Features, task: Task, cap: int) -> Estimate:
    """The estimate under a tiny cap, where even a rough guess is right within a few tokens."""
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
    """(length of the answer proper, confidence, source)."""
    return _stated(features) or _by_task(features, task, share)


def _stated(features: Features) -> tuple[Length, float, str] | None:
    """The same if a structure, a hint, examples or a wish states it; else None."""
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
    if size is not None and features.tool_choice not in _FORCED:
        if features.structure is Structure.CHOICE:
            return length(size, 0.4), 0.7 if features.legacy_guided else 0.97, "choice"
        return length(size, 0.35 if features.cap is not None else 0.6), 0.85, "schema"
    if features.scoring:
        return length(2, 0.6), 0.9, "cap"
    if features.tool_choice in _FORCED:
        return TYPICAL[Task.TOOL_CALL], 0.8, "rules"
    return None


def _by_task(features: Features, task: Task, share: float) -> tuple[Length, float, str]:
    """Mixes the task lengths by evidence: mean of the log locations, spread within and between the tasks."""
    scores = features.task_scores
    source = "rules"
    if task is Task.UNKNOWN:
        source, share = "unknown", 0.15
    elif not (scores and scores[0][0] is task):
        # The given task has no evidence of its own.
        scores, share = ((task, 0.9),), 0.9
    # Of each log length: the sum of shares, the weighted sum and the weighted sum of squares.
    total = mu = squares = 0.0
    for each, part in scores[:_MOST_MIXED]:
        own = _of_task(each, features)
        total += part
        mu += part * own.mu
        squares += part * (own.sigma * own.sigma + own.mu * own.mu)
    told = total if len(scores) <= _MOST_MIXED else sum([part for _, part in scores])
    rest = 1.0 - told if told < 1.0 else 0.0
    own = _of_task(Task.UNKNOWN, features)
    total += rest
    mu = (mu + rest * own.mu) / total
    squares += rest * (own.sigma * own.sigma + own.mu * own.mu)
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
    """Adds the thinking tokens, which often exceed a short answer many times."""
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
