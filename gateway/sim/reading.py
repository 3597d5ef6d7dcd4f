"""What the simulated model makes of a request: which task, which language, how long an answer.

These rules are the simulation's own and deliberately share nothing with the gateway's estimator, which would
otherwise be judged by itself. Lengths are drawn, log-normally, around a median per task.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from random import Random

from gateway.types import Task

# Median tokens of an answer and the spread of their logarithm.
_LENGTHS: dict[Task, tuple[float, float]] = {
    Task.CLASSIFICATION: (1, 0.0),
    Task.MULTIPLE_CHOICE: (1, 0.0),
    Task.EXTRACTION: (12, 0.5),
    Task.SHORT_QA: (16, 0.6),
    Task.MATH: (150, 0.5),
    Task.CODE: (260, 0.6),
    Task.CHAT: (160, 0.8),
    Task.SUMMARIZATION: (90, 0.5),
    Task.REWRITING: (80, 0.5),
    Task.TRANSLATION: (50, 0.3),
    Task.LONG_FORM: (550, 0.4),
    Task.TOOL_CALL: (30, 0.3),
    Task.STRUCTURED_JSON: (50, 0.4),
    Task.REASONING: (400, 0.5),
    Task.UNKNOWN: (120, 0.8),
}

_CUES: tuple[tuple[Task, re.Pattern[str]], ...] = tuple(
    (task, re.compile(pattern, re.IGNORECASE | re.DOTALL))
    for task, pattern in (
        (
            Task.MULTIPLE_CHOICE,
            r"\n\s*\(?[A-E1-5１-５][).．:：、）].*\n\s*\(?[B-E2-5２-５][).．:：、）]|one letter|which option"
            r"|選択肢|选项|보기",
        ),
        (
            Task.CLASSIFICATION,
            r"\bclassif|\bsentiment\b|\bspam or|one word|one label|which (category|label)|yes or no|true or false"
            r"|分類して|分類しな|感情を?判定|はいかいいえ|ラベルだけ|分类|情感|분류|감정",
        ),
        (Task.TRANSLATION, r"\btranslat|翻訳|英訳|和訳|に訳して|翻译|번역"),
        (Task.SUMMARIZATION, r"\bsummar|\btl;?dr\b|要約|まとめて|总结|摘要|요약"),
        (Task.EXTRACTION, r"\bextract\b|抜き出|抽出|提取|추출"),
        (Task.REWRITING, r"\brewrite|\bparaphras|\bproofread|書き直|書き換え|校正|改写|고쳐"),
        (
            Task.CODE,
            r"```|\b(write|implement|fix|refactor)\b.{0,60}\b(code|function|class|script|program|query|test)\b"
            r"|\bpython\b|\bjavascript\b|\bsql\b|コードを|関数を|実装して|プログラム|代码|函数|코드|함수",
        ),
        (
            Task.LONG_FORM,
            r"\bessay\b|\bstory\b|\bin detail\b|\bdetailed\b|\barticle\b|\breport on\b|\bexplain\b|\bcomprehensive"
            r"|詳しく|説明して|解説|物語|エッセイ|小論文|详细|解释|作文|자세히|설명",
        ),
        (Task.MATH, r"\bhow many\b|\bcalculate\b|\bsolve\b|\d\s*[-+*/×÷]\s*\d|計算|いくつ|いくら|计算|多少|계산"),
        (Task.SHORT_QA, r"^.{0,60}[?？]\s*$|^(who|when|where|what is|what's)\b.{0,80}$"),
    )
)

_COUNTED = re.compile(
    r"(\d{1,5})\s*[- ]?(words?|characters?|sentences?|lines?|tokens?|文字|字|語|文で|行|个字|자|단어)", re.IGNORECASE
)
_TOKENS_PER_UNIT = {"w": 1.2, "語": 1.2, "단": 1.2, "s": 16.0, "文で": 14.0, "l": 12.0, "行": 14.0, "t": 1.0, "c": 0.25}
_TOKENS_PER_CHARACTER = 0.6

_ASKED_LANGUAGE = (
    ("ja", re.compile(r"in japanese|into japanese|日本語(で|に)|和訳", re.IGNORECASE)),
    ("en", re.compile(r"in english|into english|英語(で|に)|英訳|用英[语文]|영어로", re.IGNORECASE)),
    ("zh", re.compile(r"in chinese|into chinese|中国語(で|に)|用中文|중국어로", re.IGNORECASE)),
    ("ko", re.compile(r"in korean|into korean|韓国語(で|に)|用韩[语文]|한국어로", re.IGNORECASE)),
)
_HEAD = 4000
"""Characters looked at from either end; the ask stands at one of them."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is to be answered."""

    task: Task
    language: str
    tokens: int
    exact: bool = False
    """The length was asked for by number, so the answer keeps to it."""


def read(instruction: str, rng: Random) -> Reading:
    """Task, language and length of the answer to a plain instruction."""
    text = instruction if len(instruction) <= 2 * _HEAD else instruction[:_HEAD] + "\n" + instruction[-_HEAD:]
    task = next((task for task, cue in _CUES if cue.search(text)), Task.CHAT)
    language = language_of(text)
    wish = _wish(text)
    if wish is not None and task not in (Task.CLASSIFICATION, Task.MULTIPLE_CHOICE):
        return Reading(task, language, max(1, round(wish * rng.uniform(0.9, 1.1))), exact=True)
    return Reading(task, language, length(task, rng))


def length(task: Task, rng: Random) -> int:
    """Draws an answer's length in tokens."""
    median, spread = _LENGTHS[task]
    return max(1, round(median * math.exp(rng.gauss(0.0, spread))))


def language_of(text: str) -> str:
    """The language asked for, else the text's by its script: `en`, `ja`, `zh` or `ko`."""
    for language, asked in _ASKED_LANGUAGE:
        if asked.search(text):
            return language
    if re.search(r"[\u3040-\u30ff]", text):
        return "ja"
    if re.search(r"[\uac00-\ud7af]", text):
        return "ko"
    return "zh" if re.search(r"[\u4e00-\u9fff]", text) else "en"


def _wish(text: str) -> float | None:
    """An explicit length, in tokens."""
    match = _COUNTED.search(text)
    if match is None:
        return None
    unit = match[2].lower()
    per_unit = _TOKENS_PER_UNIT.get(unit, _TOKENS_PER_UNIT.get(unit[0], _TOKENS_PER_CHARACTER))
    return min(int(match[1]) * per_unit, 8192.0)
