"""Synthetic request bodies by class, in English and Japanese, and how long their answers really are.

Each class has templates of an application's kind; every prompt made from one has its own typical length around the
template's, and every request one around its prompt's. The gateway's estimator sees the bodies alone. It is warmed with
outcomes of other prompts of the same templates, as a gateway is that has run for a while.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import orjson

from gateway.request.features import extract
from gateway.request.parse import parse_body
from gateway.simulate.job import Prompt
from gateway.types import NO_HINTS, Api, Decision, Estimate, Features, Outcome, Reason, Result, Task, Usage

MODEL = "model"


class Estimates(Protocol):
    """The gateway's estimator."""

    def estimate(self, features: Features) -> Estimate: ...

    def observe(self, outcome: Outcome) -> None: ...


@dataclass(frozen=True, slots=True)
class Template:
    """One application's prompt. `{topic}` and `{text}` are filled in."""

    task: Task
    median: float
    """Tokens of its typical answer."""
    between: float
    """Spread of log-lengths from prompt to prompt."""
    within: float
    """And from answer to answer."""
    user: str
    system: str = ""
    extra: Mapping[str, Any] | None = None


_LABEL = "Read the message and answer with one word: billing, shipping, returns or other.\n\n{text}"
CLASSES: Mapping[str, tuple[Template, ...]] = {
    "label": (
        Template(Task.CLASSIFICATION, 2, 0.2, 0.2, _LABEL, "You sort customers' messages."),
        Template(Task.CLASSIFICATION, 2, 0.3, 0.2, "次の文の感情を「肯定」「否定」の一語で答えてください。\n\n{text}"),
        Template(
            Task.MULTIPLE_CHOICE, 1.5, 0.2, 0.2,
            "Question on {topic}: {text}\nA. yes\nB. no\nC. both\nD. neither\nAnswer with the letter only.",
        ),
        Template(Task.SHORT_QA, 8, 0.6, 0.4, "In a few words: what is the main subject of this?\n\n{text}"),
    ),
    "long": (
        Template(Task.LONG_FORM, 620, 0.4, 0.25, "Write a detailed essay on {topic} for an adult reader. {text}"),
        Template(Task.CHAT, 380, 0.5, 0.3, "Explain {topic} step by step, with examples. {text}"),
        Template(Task.LONG_FORM, 560, 0.4, 0.25, "{topic}について、歴史と現状を詳しく説明してください。{text}"),
        Template(Task.CODE, 420, 0.5, 0.3, "Write a Python class with unit tests for this: {topic}. {text}"),
    ),
    "answer": (
        Template(Task.CHAT, 190, 0.8, 0.4, "Hi! I have been thinking about {topic}. {text} What do you think?"),
        Template(Task.SUMMARIZATION, 110, 0.4, 0.25, "Summarize this text in a few sentences.\n\n{text} {text}"),
        Template(Task.STRUCTURED_JSON, 60, 0.4, 0.2, 'Extract as JSON {{"who": "", "what": ""}}:\n\n{text}'),
        Template(Task.TRANSLATION, 75, 0.3, 0.15, "Translate into French:\n\n{text}"),
    ),
    "agent": (
        Template(
            Task.CODE, 140, 0.9, 0.5, "The tests around {topic} fail. Find out why and fix it. {text}",
            "You are a coding agent. Use the tools, make small edits, run the tests after each.",
            {"tools": [{"type": "function", "function": {"name": name, "parameters": {"type": "object",
              "properties": {"path": {"type": "string"}, "text": {"type": "string"}}, "required": ["path"]}}}
              for name in ("read_file", "edit_file", "run_tests")]},
        ),
    ),
}  # fmt: skip
_TOPICS = ("tides", "printing presses", "vaccines", "sorting networks", "rice farming", "suspension bridges", "jazz",
           "tax returns", "glaciers", "compilers", "silk roads", "bees", "batteries", "haiku", "aqueducts")  # fmt: skip
_WORDS = """the harbour was quiet that year and every ship that came brought letters spices salt iron or news from far
away while people on the quay counted barrels argued about prices and waited for the evening bell""".split()  # noqa: SIM905


def make_prompts(kind: str, number: int, estimator: Estimates, rng: Random) -> list[tuple[Prompt, float, float]]:
    """`number` prompts of a class, each with its answers' log-median and spread; the estimator is warmed first."""
    warm = [_make(kind, rng) for _ in range(min(number, 150))]
    for features, template, median in warm:
        teach(estimator, features, template.task, _draw(median, template.within, rng))
    made = [_make(kind, rng) for _ in range(number)]
    return [
        (Prompt(features, estimator.estimate(features), template.task, kind, NO_HINTS), median, template.within)
        for features, template, median in made
    ]


def teach(estimator: Estimates, features: Features, task: Task, tokens: int) -> None:
    """One finished request, as the gateway's observers see it."""
    estimate = estimator.estimate(features)
    estimator.observe(
        Outcome(
            request_id="warm",
            result=Result.OK,
            status=200,
            started=0.0,
            ended=1.0,
            features=features,
            estimate=estimate,
            decision=Decision(model=MODEL, pool="warm", reason=Reason.ONLY_POOL),
            usage=Usage(prompt_tokens=features.input_tokens, completion_tokens=tokens),
            finish_reason="stop",
            attempts=1,
        )
    )


def features_of(body: Mapping[str, Any]) -> Features:
    """What the request path sees of a body."""
    return extract(parse_body(orjson.dumps(body)), Api.CHAT, NO_HINTS)


def answer_tokens(log_median: float, spread: float, rng: Random) -> int:
    return _draw(log_median, spread, rng)


def _make(kind: str, rng: Random) -> tuple[Features, Template, float]:
    template = rng.choice(CLASSES[kind])
    words = [rng.choice(_WORDS) for _ in range(rng.randrange(30, 160))]
    user = template.user.format(topic=rng.choice(_TOPICS), text=" ".join(words))
    messages = [{"role": "system", "content": template.system}] if template.system else []
    messages.append({"role": "user", "content": user})
    body = {"model": MODEL, "messages": messages, "stream": True, **(template.extra or {})}
    return features_of(body), template, math.log(template.median) + template.between * rng.gauss(0.0, 1.0)


def _draw(log_median: float, spread: float, rng: Random) -> int:
    return max(1, round(math.exp(log_median + spread * rng.gauss(0.0, 1.0))))


Chooser = Callable[[Random], str]


def chooser(shares: Mapping[str, float]) -> Chooser:
    """Draws a class by its share."""
    kinds: Sequence[str] = list(shares)
    weights = list(shares.values())
    return lambda rng: rng.choices(kinds, weights)[0]
