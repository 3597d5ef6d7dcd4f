"""What the text of a request says about its answer."""

# ruff: noqa: E501  (rows of a table)

from __future__ import annotations

import pytest

from gateway.request.features import extract
from gateway.request.parse import parse_body
from gateway.types import Api, Hints, Place, Task
from tests.request.helpers import Message, chat, user


class TestSignals:
    @pytest.mark.parametrize(
        ("text", "low", "high"),
        [
            ("Describe rust in 200 words.", 240, 300),
            ("Write a 3,000-word essay on tides", 3800, 4200),
            ("Answer yes or no: is it red?", 1, 3),
            ("Give me a top 5 list: name 5 ideas for lunch.", 90, 150),
            ("Explain it in at least 500 words.", 700, 900),
            ("Explain it in one sentence.", 20, 35),
            ("200字程度で説明してください。", 120, 180),
            ("3文で説明してください。", 80, 120),
            ("一言で答えてください。", 1, 8),
            ("「はい」か「いいえ」で答えてください。", 1, 3),
            ("用三句话概括这个故事。", 60, 100),
            ("请写一篇800字的作文。", 480, 700),
            ("세 문장으로 설명해 주세요.", 80, 120),
            ("Beschreibe es in 100 Wörtern.", 150, 190),
            ("Décris-le en deux phrases.", 50, 70),
            ("Descríbelo en 50 palabras.", 70, 90),
        ],
    )
    def test_reads_wishes_in_tokens(self, text: str, low: int, high: int) -> None:
        """Explicit wishes about length are read in eight languages."""
        wish = chat(user(text)).wish

        assert wish is not None
        assert low <= wish <= high

    @pytest.mark.parametrize(
        "text",
        [
            "Discuss this 6,000-word article with me.",
            "What is the length of a line segment from 2 to 10?",
            "Here is the 12 page report. Why is it so dry?",
            "第二文の主語を説明してください。",
            "三十六計とは何か説明してください。",
        ],
    )
    def test_leaves_other_numbers_alone(self, text: str) -> None:
        """The length of the input is not a wish about the output."""
        assert chat(user(text)).wish is None

    @pytest.mark.parametrize(
        ("prompt", "tokens"),
        [
            ("Q: 2+2?\nA: 4\n\nQ: 3+3?\nA: 6\n\nQ: 5+5?\nA:", (1, 2)),
            ("質問：空の色は？\n回答：青\n\n質問：草の色は？\n回答：緑\n\n質問：雪の色は？\n回答：", (1, 3)),
            ("Input: cat\nOutput: a small animal that purrs and sleeps\n\nInput: dog\nOutput: a loyal animal that barks at night"
             "\n\nInput: owl\nOutput:", (6, 12)),
            ("red -> colour\ncat -> animal\noak ->", (1, 3)),
        ],
    )  # fmt: skip
    def test_measures_the_examples_answers(self, prompt: str, tokens: tuple[int, int]) -> None:
        """The examples' answers inside one prompt tell the answer's length, in any language."""
        few_shot = chat(user(prompt)).few_shot

        assert few_shot is not None
        assert tokens[0] <= few_shot <= tokens[1]

    def test_measures_long_examples_over_several_lines(self) -> None:
        """Worked examples with steps in between make a long answer likely."""
        worked = "A: Let's think step by step.\nFirst: we add two and two, which is four.\nThen: we double it, which is eight.\n"
        prompt = f"Solve.\n\nQ: one?\n{worked}\nQ: two?\n{worked}\nQ: three?\nA: Let's think step by step."
        few_shot = chat(user(prompt)).few_shot

        assert few_shot is not None
        assert few_shot > 24

    def test_takes_short_even_turns_for_examples(self) -> None:
        """Assistant turns of like length are examples; the latest answer is kept beside them."""
        turns: list[Message] = []
        for word in ("red", "green", "blue"):
            turns += [user(f"label {word}"), {"role": "assistant", "content": "colour"}]
        features = chat(*turns, user("label oak"))

        assert features.few_shots == 3
        assert features.few_shot is not None
        assert features.few_shot <= 2

    @pytest.mark.parametrize(
        ("text", "language"),
        [
            ("潮はなぜ満ちるのですか", "ja"), ("为什么会涨潮", "zh"), ("밀물은 왜 생기나요", "ko"), ("почему бывает прилив", "ru"),
            ("لماذا يحدث المد", "ar"), ("ทำไมน้ำขึ้น", "th"), ("ज्वार क्यों आता है", "hi"), ("γιατί έχουμε παλίρροια", "el"),
            ("למה יש גאות", "he"), ("why is there a tide", "en"), ("warum gibt es die Flut", "de"),
            ("pourquoi est-ce que la mer monte", "fr"), ("por qué sube la marea en el puerto", "es"),
            ("perché la marea sale nel porto", "it"), ("por que a maré sobe e não desce", "pt"), ("123 456", "und"),
        ],
    )  # fmt: skip
    def test_knows_the_language(self, text: str, language: str) -> None:
        """Scripts and frequent words give the language."""
        assert chat(user(text)).language == language

    def test_finds_the_ask_at_either_end_of_a_document(self) -> None:
        """The ask is found at the start, at the end, or in the system prompt."""
        document = "The pier was long. Boats came and went, and nobody counted them. " * 60
        label = {"role": "system", "content": "Classify the text as calm or busy. Answer with only the label."}

        assert chat(user(f"{document}\n\nSummarize the text above.")).place is Place.END
        assert chat(user(f"Summarize the text below.\n\n{document}")).place is Place.START
        assert chat(label, user("The pier was long and empty.")).place is Place.SYSTEM

    def test_measures_code(self) -> None:
        """A turn that is mostly a code block has a high share of code, prose has none."""
        code = "Fix this:\n```python\n" + "def f(x):\n    return x\n" * 20 + "```"

        assert chat(user(code)).code_share > 0.8
        assert chat(user("The tide (they say) is out; nothing moves.\n" * 5)).code_share < 0.2

    def test_takes_hints(self) -> None:
        """A client's hints are kept beside what the text says."""
        body = parse_body(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')
        features = extract(body, Api.CHAT, Hints(task=Task.CODE, output_tokens=700))

        assert (features.hint_task, features.hint_tokens) == (Task.CODE, 700)
