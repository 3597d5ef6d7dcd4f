"""The picture of predicted against actual lengths."""

from __future__ import annotations

from xml.etree import ElementTree

from gateway.bench.scatter import scatter
from gateway.bench.scores import Judged
from gateway.types import Api, Estimate, Features, Task

FEATURES = Features(api=Api.CHAT, model="m")


def judged(predicted: float, actual: int) -> Judged:
    estimate = Estimate(
        task=Task.CHAT, output_tokens=predicted, p50=predicted, p90=predicted, confidence=0.5, source="prior"
    )
    return Judged(0, FEATURES, estimate, actual, Task.CHAT)


def test_draws_one_panel_a_protocol_in_few_bytes() -> None:
    """The picture is well-formed, names its panels with their rows, and does not grow with the number of rows."""
    rows = [judged(float(i % 700), i * 7 % 3000) for i in range(4000)]
    picture = scatter({"cold": rows, "warm": rows[:100]})
    root = ElementTree.fromstring(picture)

    assert root.tag.endswith("svg")
    assert "cold (4,000 rows)" in picture
    assert "warm (100 rows)" in picture
    assert len(picture) < 60_000


def test_a_right_prediction_lies_on_the_diagonal() -> None:
    """A row whose length was known lands in a cell whose lower left corner is on the diagonal."""
    picture = scatter({"cold": [judged(64.0, 64)]})
    path = next(line for line in picture.split("\n") if "fill-opacity" in line)
    x, y = (float(part) for part in path.split('d="M')[1].split("h")[0].split(" "))

    assert abs(x + 8.0 - (288.0 - y)) < 0.11


def test_nothing_judged_is_an_empty_panel() -> None:
    """Without rows the axes stand alone."""
    assert "fill-opacity" not in scatter({"cold": []})
