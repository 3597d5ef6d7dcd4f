"""A streamed answer as a row, summaries, questions, and the page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import count
from pathlib import Path

import pytest

from gateway.bench.client import BenchError, accepted
from gateway.bench.rows import Reading, Row
from gateway.bench.short import letter_of, prompts_of, sign_test
from gateway.bench.sources import data, own_questions, published, read_questions
from gateway.bench.summary import Side, Spread, latencies
from gateway.figures.html import page
from gateway.figures.report import Plot, Report, Series, Table
from gateway.types import SpecSample
from gateway.upstream.client import Headers, Take, pour_by_reading


class Script:
    """An answer that comes in given pieces."""

    def __init__(self, pieces: list[bytes], status: int = 200, headers: Headers | None = None) -> None:
        self.status = status
        self.headers: Headers = headers or []
        self.ended = False
        self._pieces = iter(pieces)

    async def read(self) -> bytes:
        return next(self._pieces, b"")

    async def pour(self, take: Take) -> bool:
        return await pour_by_reading(self, take)

    def hasten(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        self.ended = True


async def row_of(pieces: list[bytes], status: int = 200, headers: Headers | None = None) -> Row:
    """The row of an answer whose n-th piece comes at n seconds."""
    ticks = count(1)
    reading = Reading(lambda: float(next(ticks)))
    error = await reading.read(Script(pieces, status, headers))
    return reading.row("plain", "t", 0.0, error)


def chunk(text: str) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % text.encode()


ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}\n\ndata: [DONE]\n\n'


async def test_tokens_are_those_of_the_usage() -> None:
    """One chunk may hold several tokens; the first token's time is that of the first content."""
    row = await row_of([ROLE, chunk("日"), chunk("本語で"), USAGE], headers=[(b"x-gateway-pool", b"mtp")])

    assert (row.tokens, row.prompt_tokens, row.text, row.pool, row.error) == (5, 7, "日本語で", "mtp", None)
    assert (row.first, row.last) == (2.0, 3.0)
    assert row.tpot == pytest.approx(0.25)


async def test_pieces_may_be_cut_anywhere() -> None:
    """Events are found however the bytes come."""
    raw = ROLE + chunk("ab") + chunk("cd") + USAGE
    row = await row_of([raw[i : i + 1] for i in range(len(raw))])

    assert (row.text, row.tokens) == ("abcd", 5)


@pytest.mark.parametrize(
    ("pieces", "status", "told"),
    [
        ([b'{"error":{"message":"no such\\nthing"}}'], 404, "HTTP 404: no such thing"),
        ([b'{"error":"Unauthorized"}'], 401, "HTTP 401: Unauthorized"),
        ([b"upstream down"], 502, "HTTP 502: upstream down"),
        ([ROLE, b'data: {"error":{"message":"engine died"}}\n\n'], 200, "engine died"),
        ([b"data: {broken\n\n"], 200, "not JSON"),
        ([b"data: [DONE]\n\n"], 200, "without tokens"),
    ],
)
async def test_what_goes_wrong_is_told_in_its_own_words(pieces: list[bytes], status: int, told: str) -> None:
    """A failed row has no speed."""
    row = await row_of(pieces, status)

    assert told in (row.error or "")
    assert row.speed is None
    assert row.tpot is None


async def test_a_simulated_engine_shows_in_its_answers() -> None:
    """Also through a gateway that does not know yet."""
    row = await row_of([b'data: {"choices":[{"delta":{"content":"a"}}],"system_fingerprint":"x-simulated"}\n\n', USAGE])

    assert row.simulated


def test_a_spread_is_median_and_quartiles() -> None:
    """Missing values do not count; of nothing there is no spread."""
    spread = Spread.of([4.0, None, 1.0, 2.0, 3.0, 5.0])

    assert spread == Spread(3.0, 2.0, 4.0, 5)
    assert Spread.of([None]) is None


def test_failed_rows_only_count_as_errors() -> None:
    """They are in no median."""
    good = Row(label="p", tag="", sent=0, first=0.5, last=1.5, total=2.0, tokens=11)
    side = Side.of([good, Row(label="p", tag="", sent=0, total=99.0, error="x")])

    assert (side.rows, side.errors, side.first_error) == (2, 1, "x")
    assert side.total == Spread(2.0, 2.0, 2.0, 1)
    assert latencies([good], (50,)) == {"ttft_p50_ms": 500.0, "tpot_p50_ms": 100.0, "e2e_p50_ms": 2000.0}


def test_sixty_questions_of_our_own_in_two_languages() -> None:
    """Thirty each, in turns, each with three examples that are never asked; every letter is right often."""
    asked = prompts_of(own_questions(), 200)
    answers = [a.question.answer for a in asked]

    assert len(asked) == 60
    assert [a.question.language for a in asked[:4]] == ["ja", "en", "ja", "en"]
    assert all(answers.count(letter) >= 10 for letter in "ABCDE")
    assert all(a.prompt.count("A. ") == 4 for a in asked)
    assert len({a.question.text for a in asked}) == 60


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        (" B", "B"),
        ("答えはCです", "C"),
        ("Ｄ", "D"),
        ("Answer: E.", "E"),
        ("**A**", "A"),
        ("a fan", "B"),
        ("no idea", None),
        ("", None),
    ],
)
def test_reads_the_letter_of_an_answer(text: str, letter: str | None) -> None:
    """A letter, also full-width and inside Japanese, or the choice's own words."""
    assert letter_of(text, ("a stove", "a fan", "a blanket", "a candle", "a coat")) == letter


def test_the_sign_test_is_exact() -> None:
    """Equal wins say nothing; eight to nothing says something."""
    assert sign_test(0, 0) == sign_test(3, 3) == 1.0
    assert sign_test(0, 8) == pytest.approx(2 / 256)


@pytest.mark.parametrize("content", ["{}\n", "nonsense\n", "", '{"question": "q", "label": 9}\n'])
def test_a_wrong_question_file_is_named_with_its_line(tmp_path: Path, content: str) -> None:
    """The message says what a line must have."""
    path = tmp_path / "q.jsonl"
    path.write_text(content, "utf-8")

    with pytest.raises(BenchError, match=r"q\.jsonl"):
        read_questions(path)


@pytest.mark.parametrize("name", ["longform", "short", "depth", "slices", "breakeven", "load"])
def test_published_tables_are_whole(name: str) -> None:
    """Every row has its columns, and the note says source, hardware and k."""
    table = published(name)

    assert all(len(row) == len(table.columns) for row in table.rows)
    assert re.match(r"Source: .+; hardware: .+; k: ", table.note)
    assert data("published").keys() >= {name}


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_needs_nothing_else_and_escapes_what_it_shows() -> None:
    """Inline SVG, no scripts, no links, light and dark; names from outside are text."""
    evil = "<script>alert(1)</script>"
    plots = (
        Plot(evil, "x", "y", (Series(evil, ((1.0, 2.0), (1024.0, 0.5))),), log_x=True, level=1.0),
        Plot(
            "bars",
            "x",
            "y",
            (Series("a", ((0.0, 3.0),)), Series("b", ((0.0, 4.0),), published=True)),
            categories=("ja",),
        ),
        Plot("logarithmic", "x", "y", (Series("a", ((1.0, 0.01), (2.0, 9.0))),), log_y=True),
        Plot("nothing", "x", "y", ()),
    )
    table = Table(evil, ("a|b",), ((evil,),), note=evil)
    report = Report(name="n", title=evil, intro=evil, findings=(evil,), tables=(table,), plots=plots, simulated=("p",))
    text = page(report, stopped="interrupted")
    tags = Tags()
    tags.feed(text)

    assert tags.seen.count("svg") == 3
    assert not {"script", "link", "img"} & set(tags.seen)
    assert tags.links == []
    assert "prefers-color-scheme: dark" in text
    assert "SIMULATED" in text
    assert "nan" not in text
    assert "a\\|b" in report.markdown()


def test_acceptance_comes_from_the_answers_where_all_tell_it() -> None:
    """Counters of a shared engine would count others' drafts; they stand in where an answer is silent."""
    told = Row(label="", tag="", sent=0, spec=SpecSample(10, 20, 5, (4, 1)))
    silent = Row(label="", tag="", sent=0)
    before = {"drafts": 100.0, "draft_tokens": 200.0, "accepted_tokens": 50.0}
    after = {"drafts": 110.0, "draft_tokens": 220.0, "accepted_tokens": 60.0}
    own, counted = accepted([told, told], before, after), accepted([told, silent], before, after)

    assert own is not None
    assert (own.drafts, own.mean_length, own.positions) == (20, 1.5, (0.4, 0.1))
    assert counted is not None
    assert counted.mean_length == 2.0
    assert accepted([silent], {}, {}) is None
