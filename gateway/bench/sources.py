"""The data shipped with the benchmarks: published tables, prompts, questions. Loaded on use, not at import."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import yaml

from gateway.bench.client import BenchError
from gateway.figures.report import Table

LETTERS = "ABCDE"
SHOTS = 3
_WORDS = 12.0
"""Approximate tokens of a filler sentence."""


@cache
def data(name: str) -> Any:
    """Loads one of the YAML files in `data/`."""
    return yaml.safe_load(files("gateway.bench").joinpath("data", f"{name}.yaml").read_text("utf-8"))


def published(measurement: str) -> Table:
    """The published results of a benchmark, with source, hardware and k."""
    about = data("published")[measurement]
    note = (
        f"Source: {about['source']}; hardware: {about['hardware']}; k: {about['k']}; {about['method']}. {about['note']}"
    )
    return Table(
        "Published", tuple(about["columns"]), tuple(tuple(row) for row in about["rows"]), " ".join(note.split())
    )


def published_dict(measurement: str) -> dict[str, Any]:
    about: dict[str, Any] = data("published")[measurement]
    return about


def published_speedup(measurement: str, model: str) -> float | None:
    """The published speed-up of the model behind a served name; None if there is none."""
    for size, value in data("published")[measurement]["speedup"].items():
        if size in model.lower():
            return float(value)
    return None


def longform_prompts(language: str) -> list[str]:
    about = data("prompts")["longform"][language]
    return [about["ask"].format(topic=topic) for topic in about["topics"]]


def class_prompts(name: str) -> list[str]:
    """Prompts of a class with its own acceptance rate: prose, math, code or json."""
    prompts: list[str] = data("prompts")["classes"][name]
    return prompts


def filler(tokens: float, rng: Random) -> str:
    """Text of about `tokens` tokens, different at every draw, so that it is in no prefix cache."""
    sentences = data("prompts")["filler"]
    count = max(1, round(tokens / _WORDS))
    return f"{rng.randrange(10**6)}. " + " ".join(rng.choice(sentences) for _ in range(count))


@dataclass(frozen=True, slots=True)
class Question:
    """A question with five choices; `answer` is a letter."""

    language: str
    text: str
    choices: tuple[str, ...]
    answer: str

    def lines(self, answered: bool) -> str:
        japanese = self.language == "ja"
        ask, choices, answer = ("質問", "選択肢", "回答") if japanese else ("Question", "Choices", "Answer")
        listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, self.choices, strict=True))
        return f"{ask}: {self.text}\n{choices}:\n{listed}\n{answer}:" + (f" {self.answer}" if answered else "")


def prompt_of(question: Question, shots: list[Question]) -> str:
    """The 3-shot prompt: instruction, examples with answers, the question."""
    head = (
        "質問に対する正しい選択肢を選び、記号（A〜E）だけを答えてください。"
        if question.language == "ja"
        else "Choose the right one of the choices and answer with its letter (A to E) only."
    )
    return "\n\n".join([head, *(shot.lines(True) for shot in shots), question.lines(False)])


def own_questions() -> list[Question]:
    """The built-in questions, Japanese then English; the first three of each language are the examples."""
    return [
        Question(language, row["q"], tuple(row["c"]), row["a"])
        for language, rows in data("questions").items()
        for row in rows
    ]


def read_questions(path: Path) -> list[Question]:
    """A JCommonsenseQA file: JSON lines with question, choice0 to choice4 and label (0 to 4). Raises BenchError."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BenchError(f"{path}: {error}") from error
    questions = [_question(f"{path}:{number}", line) for number, line in enumerate(lines, start=1) if line.strip()]
    if len(questions) <= SHOTS:
        raise BenchError(f"{path}: {len(questions)} questions; more than {SHOTS} are needed")
    return questions


def _question(place: str, line: str) -> Question:
    try:
        row = json.loads(line)
        choices = tuple(str(row[f"choice{index}"]) for index in range(5))
        return Question("ja", str(row["question"]), choices, LETTERS[int(row["label"])])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BenchError(
            f"{place}: not a JCommonsenseQA line (question, choice0 to choice4, label): {error}"
        ) from error
