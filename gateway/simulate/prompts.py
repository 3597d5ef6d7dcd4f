"""Synthetic request bodies by class, in English and Japanese, with the actual lengths of their answers.

Each class has templates, as applications do. Answer lengths are log-normal in two levels: a prompt's median varies
around its template's, an answer's length around its prompt's median. The gateway's estimator sees only the bodies. It
is warmed with the outcomes of other prompts of the same templates, like a gateway that has run for a while.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random
from typing import Any, Protocol

import orjson

from gateway.request.features import extract
from gateway.request.parse import parse_body
from gateway.simulate.job import Prompt
from gateway.types import NO_HINTS, Api, Decision, Estimate, Features, Outcome, Reason, Result, Task, Usage

MODEL = "model"


class Estimates(Protocol):
    """The interface of the gateway's estimator."""

    def estimate(self, features: Features) -> Estimate: ...

    def observe(self, outcome: Outcome) -> None: ...

    def snapshot(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Template:
    """An application's prompt with placeholders `{topic}` and `{text}`."""

    task: Task
    median: float
    """Median answer length in tokens."""
    between: float
    """Standard deviation of the log-length between prompts."""
    within: float
    """The same between answers to one prompt."""
    user: str
    system: str = ""
    extra: Mapping[str, Any] | None = None


_LABEL = "Read the message and answer with one word: billing, shipping, returns or other.\n\n{text}"
_FEELING_JA = Template(
    Task.CLASSIFICATION, 2, 0.3, 0.2, "次の文の感情を「肯定」「否定」の一語で答えてください。\n\n{text}"
)
_HISTORY_JA = Template(Task.LONG_FORM, 560, 0.4, 0.25, "{topic}について、歴史と現状を詳しく説明してください。{text}")
CLASSES: Mapping[str, tuple[Template, ...]] = {
    "label": (
        Template(Task.CLASSIFICATION, 2, 0.2, 0.2, _LABEL, "You sort customers' messages."),
        _FEELING_JA,
        Template(
            Task.MULTIPLE_CHOICE, 1.5, 0.2, 0.2,
            "Question on {topic}: {text}\nA. yes\nB. no\nC. both\nD. neither\nAnswer with the letter only.",
        ),
        Template(Task.SHORT_QA, 8, 0.6, 0.4, "In a few words: what is the main subject of this?\n\n{text}"),
    ),
    "long": (
        Template(Task.LONG_FORM, 620, 0.4, 0.25, "Write a detailed essay on {topic} for an adult reader. {text}"),
        Template(Task.CHAT, 380, 0.5, 0.3, "Explain {topic} step by step, with examples. {text}"),
        _HISTORY_JA,
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
_JAPANESE: Mapping[str, tuple[Template, ...]] = {
    "label": (
        _FEELING_JA,
        Template(
            Task.MULTIPLE_CHOICE, 1.5, 0.2, 0.2,
            "質問（{topic}）: {text}\nA. はい\nB. いいえ\nC. 両方\nD. どちらでもない\n記号だけで答えてください。",
        ),
        Template(Task.SHORT_QA, 10, 0.6, 0.4, "次の文の主題を十字以内で答えてください。\n\n{text}"),
    ),
    "long": (
        _HISTORY_JA,
        Template(Task.CHAT, 420, 0.5, 0.3, "{topic}の仕組みを、例を挙げながら順を追って説明してください。{text}"),
    ),
    "answer": (
        Template(Task.CHAT, 210, 0.8, 0.4, "こんにちは。{topic}のことで悩んでいます。{text} どう思いますか？"),
        Template(Task.SUMMARIZATION, 130, 0.4, 0.25, "次の文章を三文で要約してください。\n\n{text} {text}"),
        Template(Task.TRANSLATION, 90, 0.3, 0.15, "次の文章を日本語に訳してください。\n\n{text}"),
    ),
}  # fmt: skip
KINDS = (*(name for name in CLASSES if name != "agent"), *(f"{name}-ja" for name in _JAPANESE))
"""The classes for mixes."""
_TOPICS_JA = ("潮の満ち引き", "活版印刷", "ワクチン", "稲作", "吊り橋", "確定申告", "氷河", "養蜂", "蓄電池", "俳句")
_TOPICS = ("tides", "printing presses", "vaccines", "sorting networks", "rice farming", "suspension bridges", "jazz",
           "tax returns", "glaciers", "compilers", "silk roads", "bees", "batteries", "haiku", "aqueducts")  # fmt: skip
_WORDS = """the harbour was quiet that year and every ship that came brought letters spices salt iron or news from far
away while people on the quay counted barrels argued about prices and waited for the evening bell""".split()  # noqa: SIM905
_WORDS_JA = """その年の港は静かで 船が着くたびに 遠くの便りと 塩や鉄や香辛料が 運ばれてきた。 岸では人々が 樽を数え
値段を言い争い 夕方の鐘を待っていた。 朝になると 市場が開き""".split()  # noqa: SIM905


def make_prompts(kind: str, number: int, estimator: Estimates, rng: Random) -> list[tuple[Prompt, float, float]]:
    """Warms the estimator, then makes `number` prompts of a class: (prompt, log-median, log-spread of its answers)."""
    warm = [_make(kind, rng) for _ in range(min(number, 150))]
    for features, template, median in warm:
        teach(estimator, features, template.task, answer_tokens(median, template.within, rng.gauss(0.0, 1.0)))
    made = [_make(kind, rng) for _ in range(number)]
    return [
        (Prompt(features, estimator.estimate(features), template.task, kind, NO_HINTS), median, template.within)
        for features, template, median in made
    ]


def teach(estimator: Estimates, features: Features, task: Task, tokens: int) -> None:
    """Reports one finished request to the estimator."""
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
    """The features that the request path extracts from a body."""
    return extract(parse_body(orjson.dumps(body)), Api.CHAT, NO_HINTS)


def answer_tokens(log_median: float, spread: float, deviate: float) -> int:
    """The length of one answer in tokens, log-normal around its prompt's median; `deviate` is standard normal."""
    tokens = round(math.exp(log_median + spread * deviate))
    return tokens if tokens > 1 else 1


def _make(kind: str, rng: Random) -> tuple[Features, Template, float]:
    """`kind` is a class, or a class in Japanese such as `label-ja`."""
    name, _, japanese = kind.partition("-")
    template = rng.choice((_JAPANESE if japanese else CLASSES)[name])
    number = rng.randrange(30, 160)
    if japanese:
        text = "".join(rng.choice(_WORDS_JA) for _ in range(number // 3))
    else:
        text = " ".join(rng.choice(_WORDS) for _ in range(number))
    user = template.user.format(topic=rng.choice(_TOPICS_JA if japanese else _TOPICS), text=text)
    messages = [{"role": "system", "content": template.system}] if template.system else []
    messages.append({"role": "user", "content": user})
    body = {"model": MODEL, "messages": messages, "stream": True, **(template.extra or {})}
    # With so few words unrelated requests look like one conversation; `workload.agent` numbers its conversations.
    features = replace(features_of(body), thread_key=0)
    return features, template, math.log(template.median) + template.between * rng.gauss(0.0, 1.0)


Chooser = Callable[[Random], str]


def chooser(shares: Mapping[str, float]) -> Chooser:
    """A function that draws a class by its share."""
    kinds: Sequence[str] = list(shares)
    bounds = list(accumulate(shares.values()))
    total, last = bounds[-1], len(kinds) - 1
    return lambda rng: kinds[bisect(bounds, rng.random() * total, 0, last)]
