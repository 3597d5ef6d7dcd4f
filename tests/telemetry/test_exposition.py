"""The page parser: what it finds, and that no page breaks it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.exposition import Layout, Selector
from gateway.telemetry.vllm import PageReader

Labels = tuple[tuple[str, str], ...]


def _keep(name: str, labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def _read(page: bytes, *names: str) -> list[tuple[str, Labels, float]]:
    selector = Selector(names, _keep)
    selector.read(page)
    # The second reading goes through what the first has remembered.
    return [(series.name, series.meaning, value) for series, value in selector.read(page).items()]


def test_finds_wanted_names_with_and_without_total() -> None:
    """A counter's `_total` is optional, and names that only begin alike are left alone."""
    page = b'# TYPE a counter\na_total{x="1"} 2\nb 3\na_totals 4\nab{x="1"} 5\na_bucket{le="1"} 6\nb_created 7\n'

    assert _read(page, "a", "b") == [("a", (("x", "1"),), 2.0), ("b", (), 3.0)]


def test_labels_may_hold_anything() -> None:
    """Escaped quotes, backslashes, line breaks, braces, blanks and other scripts are part of a label's value."""
    page = 'a{m="say \\"hi\\" {x} ",n="c:\\\\tmp\\n",o="東京"} 1\n'.encode()

    assert _read(page, "a") == [("a", (("m", 'say "hi" {x} '), ("n", "c:\\tmp\n"), ("o", "東京")), 1.0)]


def test_openmetrics_lines_with_timestamps_and_exemplars() -> None:
    """Timestamps, exemplars, blanks and carriage returns around a sample do not hide or change it."""
    page = (
        b'a_total{x="1"} 17.0 1520879607.789 # {trace_id="oHg5SJYRHA0"} 0.67 1520879607.1\r\n'
        b'b {x="2"}  3 \r\nc\t4\n  \n\nd{} 5\n# EOF'
    )

    found = _read(page, "a", "b", "c", "d")

    assert [(name, value) for name, _, value in found] == [("a", 17.0), ("b", 3.0), ("c", 4.0), ("d", 5.0)]


def test_not_a_number_and_infinity_are_handed_on() -> None:
    """Whoever reads the page says what an infinite gauge means; the parser only reads."""
    values = [value for _, _, value in _read(b'a{x="1"} NaN\na{x="2"} +Inf\na{x="3"} -Inf\na{x="4"} 1e-3\n', "a")]

    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, 0.001]


def test_the_later_of_two_equal_lines_holds() -> None:
    """A series given twice counts once, also where its labels are in another order or its name has `_total`."""
    assert _read(b'a{x="1",y="2"} 1\na_total{y="2",x="1"} 5\n', "a") == [("a", (("x", "1"), ("y", "2")), 5.0)]


def test_broken_lines_are_not_seen_and_the_others_are() -> None:
    """A page cut in the middle of a line, or with nonsense between, gives what is whole."""
    page = b'a{x="1} 1\na{x="2"}\na{x="3"} one\na{x="4"} 4\na{x="5" 5\n\xff\xfe\x00\na{x="6"} 1_0x\na{x="7'

    assert _read(page, "a") == [("a", (("x", "4"),), 4.0)]


def test_a_page_of_new_labels_each_time_is_forgotten() -> None:
    """What is remembered of label sets is bounded, whatever a back end makes up."""
    selector = Selector(["a"], _keep)
    for page in range(3):
        lines = b"".join(b'a{x="%d-%d"} 1\n' % (page, i) for i in range(9000))
        assert len(selector.read(lines)) == 9000

    assert len(selector._by_head) == 0


@given(st.binary(max_size=400))
def test_no_bytes_raise(page: bytes) -> None:
    """Any bytes at all give a snapshot."""
    assert PageReader().read(page, 0.0).at == 0.0


_NAMES = st.sampled_from(["vllm:num_requests_running", "vllm:prompt_tokens_total", "vllm:kv_cache_usage_perc", "x"])
_JUNK = st.text(alphabet='{}"\\=,# \t\r\n_total0123456789.eNaInf+-東', max_size=40)


@given(st.lists(st.builds(lambda n, a, b: f"{n}{a}{b}", _NAMES, _JUNK, _JUNK), max_size=8))
def test_no_line_that_looks_like_a_sample_raises(lines: list[str]) -> None:
    """Lines that begin as wanted ones do, and go on as they like, raise nothing and give no negative count."""
    snapshot = PageReader().read("\n".join(lines).encode(), 0.0)

    assert all(0 <= value < math.inf for reading in snapshot.readings for value in reading.counters.values())


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), _TEXT, max_size=4), st.floats())
def test_what_is_written_is_read(labels: dict[str, str], value: float) -> None:
    """Any labels and any value come back as they were, escaped by Prometheus' rules."""
    escaped = {n: v.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for n, v in labels.items()}
    inner = ",".join(f'{name}="{text}"' for name, text in escaped.items())

    (found,) = _read(f"a{{{inner}}} {value!r}\n".encode(), "a")

    assert dict(found[1]) == labels
    assert found[2] == value or math.isnan(value)


_LINES = st.lists(
    st.sampled_from(['a{x="1"} ', 'a{x="2"} ', "b ", 'noise{x="1"} ', "# HELP a b", 'a{x="1" } ', "a_total ", ""]),
    max_size=6,
)


@given(st.lists(st.tuples(_LINES, st.integers(0, 9)), max_size=12))
def test_a_remembered_layout_changes_nothing(pages: list[tuple[list[str], int]]) -> None:
    """A series of pages that keep, move, add and lose lines reads the same with and without a memory of the last."""
    selector, layout = Selector(["a", "b"], _keep), Layout[Labels]()
    for lines, value in pages:
        page = "\n".join(f"{line}{value}" for line in lines).encode()

        # A wanted line in an unwanted one's place, all else alike, is the one thing that may wait for the next scan.
        remembered, scanned = selector.read(page, layout), selector.read(page)
        assert remembered.items() <= scanned.items()
        assert remembered == scanned or len(layout._rows) < len(scanned)


def test_a_sample_in_an_unwanted_lines_place_is_found_soon() -> None:
    """Pages that differ in one such line are scanned now and then, so that it is not overlooked for long."""
    selector, layout = Selector(["a", "b"], _keep), Layout[Labels]()
    selector.read(b"a 1\nnoise 1\n", layout)

    assert any(len(selector.read(b"a 1\nb 1\n", layout)) == 2 for _ in range(16))
