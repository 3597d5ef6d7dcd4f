"""`gateway simulate --plan`: how many slices, what they cost, and what happens to them."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.simulate import command
from gateway.simulate.plan import Fleet, Need, Slo, best, fewest, find_plan, fleets, highest_rate, nearest, try_fleet
from gateway.simulate.planning import mix_of, slo_of
from gateway.simulate.study import Card, study
from gateway.types import Task
from tests.simulate.worlds import poisson

LONG = poisson(400, (300, 500), task=Task.CODE)
MIXED = poisson(500, (4, 400))


def need(rate: float, **more: object) -> Need:
    slo = more.pop("slo", Slo(ttft=1.0, tpot=0.08))
    made = {"workload": MIXED, "rate": rate, "profile": "g4-slice", "model": "e4b", "slo": slo, "depths": (2,)} | more
    return Need(**made)  # type: ignore[arg-type]


def test_more_traffic_needs_more_slices() -> None:
    """The plan grows with the rate, and one slice less would not do."""
    plans = {rate: list(find_plan(need(rate))) for rate in (1.0, 6.0, 14.0)}
    sizes = [found.fleet.slices for tried in plans.values() if (found := best(tried))]

    assert sizes == sorted(sizes)
    assert sizes[0] == 1
    assert sizes[-1] > 2
    smaller = [one for one in plans[14.0] if one.fleet.slices < sizes[-1]]
    assert not any(one.keeps for one in smaller)


def test_long_code_wants_mtp_and_the_deeper_draft() -> None:
    """Where drafts are accepted, a fleet of drafting engines is the plan, at more than one draft a step."""
    found = best(list(find_plan(need(3.0, workload=LONG, depths=(1, 2)))))

    assert found is not None
    assert found.fleet.mtp > found.fleet.plain
    assert found.fleet.k == 2


def test_where_nothing_keeps_the_limits_there_is_no_plan() -> None:
    """A limit below a step's time cannot be kept by any number of slices; the nearest is told."""
    tried = list(find_plan(need(2.0, slo=Slo(tpot=0.001), most=2)))

    assert best(tried) is None
    assert nearest(tried).within < 0.9
    assert {one.fleet.slices for one in tried} == {1, 2}


def test_a_fleet_that_falls_behind_does_not_pass_in_a_short_run() -> None:
    """Above capacity the queue grows over the run, so its last quarter misses a limit that the whole might keep."""
    over = need(40.0, slo=Slo(e2e=40.0), most=1)

    assert not try_fleet(over, Fleet(1, 0, 0)).keeps


def test_splits_cover_both_ends() -> None:
    """From all plain to all MTP, and for many slices a spread of splits."""
    assert fleets(2, (1, 2)) == [Fleet(2, 0, 0), Fleet(1, 1, 1), Fleet(1, 1, 2), Fleet(0, 2, 1), Fleet(0, 2, 2)]
    many = fleets(40, (2,))
    assert (many[0].plain, many[-1].mtp, len(many)) == (40, 40, 9)
    assert all(fleet.slices == 40 for fleet in many)


def test_plain_slices_that_must_be_there_are_there() -> None:
    """Requests that drafting engines refuse have somewhere to go in every fleet that is tried."""
    tried = list(find_plan(need(6.0, least_plain=1)))

    assert all(one.fleet.plain >= 1 for one in tried)
    assert best(tried) is not None
    assert fleets(1, (2,), 1) == [Fleet(1, 0, 0)]


def test_a_mix_of_ones_own_may_be_in_two_languages() -> None:
    """Shares by class; a class in Japanese ends in -ja."""
    spec = mix_of("label=0.7, long-ja=0.3")

    assert spec.shares == {"label": 0.7, "long-ja": 0.3}
    assert spec.mixed
    for text in ("poems=1", "label=-1", "label=x"):
        with pytest.raises(argparse.ArgumentTypeError):
            mix_of(text)


def test_the_highest_rate_is_where_the_limits_end() -> None:
    """It keeps them there and misses them well above."""
    found = highest_rate(need(1.0), Fleet(1, 1, 2))

    assert found is not None
    assert found.keeps
    assert not try_fleet(need(1.3 * found.rate), Fleet(1, 1, 2)).keeps


def test_whole_cards_are_paid() -> None:
    """Cost per million output tokens: the card's hour over what it makes in an hour."""
    card = Card(4, 3.6)

    assert card.per_million(1, 1000.0) == card.per_million(4, 1000.0) == pytest.approx(1.0)
    assert card.per_million(5, 1000.0) == pytest.approx(2.0)
    assert Card(4).per_million(2, 1000.0) == pytest.approx(1e6 / 3.6e6)


def test_a_study_has_its_what_ifs_and_each_slice_of_a_card() -> None:
    """A burst needs more, a lost slice is played, and every further slice of a paid card makes tokens cheaper."""
    ticks: list[int] = []
    found = study(need(5.0), Card(4, 2.0), 3.0, lambda: ticks.append(1))
    data = found.as_dict()

    assert found.plan is not None
    burst, *lost = found.what_ifs
    assert burst.played.rate == 15.0
    assert burst.needed is not None
    assert burst.needed.fleet.slices > found.plan.fleet.slices
    assert {row.played.fleet.slices for row in lost} == {found.plan.fleet.slices - 1}
    costs = [row["cost_per_million_output_tokens"] for row in data["card"]]
    assert [row["slices_in_use"] for row in data["card"]] == [1, 2, 3, 4]
    assert costs == sorted(costs, reverse=True)
    assert len(ticks) >= len(found.tried)
    rates = [row["rate"] for row in data["loads"]]
    assert rates == sorted(rates)


def test_capacity_bounds_the_search() -> None:
    """No fleet is tried that could not carry the rate, nor more than allowed."""
    low, high = need(0.5), need(20.0)

    assert fewest(low) == 1
    assert 2 <= fewest(high) <= 16
    assert fewest(replace(high, most=2)) == 2


@pytest.mark.parametrize("text", ["ttft=1", "speed=1s", "ttft=0s", "", "ttft=1s;tpot=2s"])
def test_limits_that_make_no_sense_are_refused(text: str) -> None:
    """By name and with an example."""
    with pytest.raises(argparse.ArgumentTypeError, match="ttft="):
        slo_of(text)


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.main(parser.parse_args(words))


def test_the_command_plans_for_japanese_and_compares_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One page with plots, everything labelled simulated."""
    page = tmp_path / "plan.html"
    words = ["--plan", "--rate", "2", "--traffic", "japanese", "--models", "e4b,26b-a4b", "--requests", "300"]
    assert run(*words, "--depths", "2", "--card-price", "2.5", "--html", str(page), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    text = page.read_text("utf-8")

    assert [plan["model"] for plan in told["plans"]] == ["e4b", "26b-a4b"]
    assert all(plan["plan"]["keeps_limits"] for plan in told["plans"])
    assert any("--least-plain" in line for line in told["findings"])
    assert told["simulated"] is True
    assert text.count("<svg") == 5
    assert "SIMULATED" in text
    assert "Other models, simulated" in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--profiles", "h200,g4-slice"], "one profile and one traffic"),
        (["--traffic", "mooncake"], "--traces FOLDER"),
        (["--traffic", "half", "--mix", "long=1"], "give one of them"),
        (["--least-plain", "3", "--most-slices", "2"], "more slices than"),
    ],
)
def test_mistakes_are_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 and the remedy."""
    assert run("--plan", *words) == 1
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [["--rate", "0"], ["--depths", "0"], ["--burst", "1"], ["--card-price", "-1"]])
def test_wrong_figures_are_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """argparse's exit code, with what was expected."""
    with pytest.raises(SystemExit) as stopped:
        run("--plan", *words)
    assert stopped.value.code == 2
    assert "above" in capsys.readouterr().err or words[0] == "--depths"


def test_a_number_of_slices_out_of_range_names_the_range(capsys: pytest.CaptureFixture[str]) -> None:
    """The two ends, not a list of every number between."""
    with pytest.raises(SystemExit):
        run("--plan", "--most-slices", "0")
    assert "a whole number from 1 to 64" in capsys.readouterr().err


def test_a_page_of_something_that_has_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Before hours of playing, not after."""
    assert run("--suite", "arms", "--html", "page.html") == 2
    assert capsys.readouterr().err == "gateway simulate: --html goes with --plan or --validate\n"
