"""The comparison of arms on real engines: what it asks and sends is the same for every arm, and its figures add up."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from gateway.bench.rows import Row
from gateway.policy.load import load_policy
from gateway.simulate.mixed import in_order, poisson
from gateway.types import PoolKind
from tests.benchmarks.gpu_arms import ARMS, Load, drive, parser
from tests.benchmarks.gpu_figures import figures, pooled
from tests.benchmarks.gpu_fleet import Card, Fleet, Running
from tests.benchmarks.gpu_logs import fit, met, paces, read
from tests.benchmarks.gpu_trace import asks as trace_asks
from tests.benchmarks.gpu_trace import predicted
from tests.benchmarks.gpu_traffic import asks, parse_shares
from tests.benchmarks.prompts_trace import Arrival
from tests.sim.helpers import FAST, sim

CARDS = (Card("http://127.0.0.1:1", "http://127.0.0.1:2"), Card("http://127.0.0.1:3", "http://127.0.0.1:4"))
FLEET = Fleet(CARDS, "gemma-4-e4b", "h200/e4b", 2)


def _row(tag: str, total: float, *, tokens: int, pool: str = "plain", error: str | None = None) -> Row:
    return Row(label="", tag=tag, sent=0.0, first=0.1, last=total, total=total, tokens=tokens, pool=pool, error=error)


class TestPolicies:
    @pytest.mark.parametrize("arm", ARMS)
    def test_every_arm_uses_one_engine_of_each_card(self, arm: str, tmp_path: Path) -> None:
        """Each arm's policy is valid and has as many engines as there are cards, no two of one card."""
        path = tmp_path / "policy.yaml"
        path.write_text(yaml.safe_dump(FLEET.policy(arm)), "utf-8")

        policy = load_policy(str(path), {})

        used = [endpoint.url for pool in policy.pools.values() for endpoint in pool.endpoints]
        assert [sum(url in (card.plain, card.mtp) for url in used) for card in CARDS] == [1, 1]

    def test_the_fixed_arms_have_one_kind_and_the_others_both(self, tmp_path: Path) -> None:
        """All-plain and all-MTP cannot choose; the other arms can."""
        kinds = {}
        for arm in ARMS:
            path = tmp_path / f"{arm}.yaml"
            path.write_text(yaml.safe_dump(FLEET.policy(arm)), "utf-8")
            kinds[arm] = {pool.kind for pool in load_policy(str(path), {}).pools.values()}

        assert kinds.pop("all-plain") == {PoolKind.PLAIN}
        assert kinds.pop("all-MTP") == {PoolKind.MTP}
        assert all(found == {PoolKind.PLAIN, PoolKind.MTP} for found in kinds.values())

    def test_an_arm_may_start_from_a_measured_profile(self) -> None:
        """`fleet-measured` is `fleet` from another profile."""
        fleet = Fleet(CARDS, "gemma-4-e4b", "h200/e4b", 2, "mine.yaml")

        policy = fleet.policy("fleet-measured")

        assert policy["routing"] == {"objective": "fleet"}
        assert {pool["profile"] for pool in policy["pools"].values()} == {"mine.yaml"}
        assert fleet.policy("fleet")["pools"]["plain"]["profile"] == "h200/e4b"

    def test_a_card_needs_both_addresses(self) -> None:
        """One address alone is refused in the words of the option."""
        with pytest.raises(argparse.ArgumentTypeError, match="plain and the MTP"):
            Card.parse("http://127.0.0.1:1")


SHARES = {"short": 0.5, "prose": 0.25, "code": 0.25}


class TestTraffic:
    def test_the_same_seed_makes_the_same_requests(self) -> None:
        """Arms of one round get equal lists, another round a different one."""
        assert asks(poisson(5.0, 20.0, 1, SHARES), 1) == asks(poisson(5.0, 20.0, 1, SHARES), 1)
        assert poisson(5.0, 20.0, 1, SHARES) != poisson(5.0, 20.0, 2, SHARES)
        assert in_order(9, 1, SHARES) == in_order(9, 1, SHARES) != in_order(9, 2, SHARES)

    def test_the_kinds_come_at_about_their_shares_and_the_rate(self) -> None:
        """Arrivals lie within the time, near the rate, kinds near their shares, and tags tell the tokens asked for."""
        found = asks(poisson(20.0, 50.0, 0, SHARES), 0)

        assert 900 < len(found) < 1100
        assert all(0 <= ask.at < 50.0 for ask in found)
        assert 0.4 < sum(ask.tag == "short/8" for ask in found) / len(found) < 0.6
        assert 0.18 < sum(ask.tag.startswith("code/") for ask in found) / len(found) < 0.32
        assert all(ask.body["max_tokens"] == int(ask.tag.partition("/")[2]) for ask in found)

    @pytest.mark.parametrize("text", ["short", "verse=1", "short=-1,prose=2", "short=0"])
    def test_a_mix_without_sense_is_refused(self, text: str) -> None:
        """Kinds that there are not and shares that are none end in the option's own words."""
        with pytest.raises(argparse.ArgumentTypeError):
            parse_shares(text)


class TestFigures:
    def test_classes_and_their_shares(self) -> None:
        """Times are those of good rows; errors, answers that ended early and pools are counted."""
        rows = [
            _row("short/8", 0.2, tokens=8),
            _row("long/256", 2.0, tokens=256, pool="mtp"),
            _row("long/512", 1.0, tokens=100),
            _row("long/512", 9.0, tokens=0, error="timeout"),
        ]

        found = figures(rows)

        assert list(found) == ["long", "short", "all"]
        assert found["long"]["e2e_ms"]["mean"] == 1500.0
        assert found["long"]["share"] == {"mtp": 0.5, "plain": 0.5}
        assert (found["long"]["errors"], found["long"]["ended_early"]) == (1, 1)
        assert found["long"]["first_error"] == "timeout"
        assert found["short"]["tpot_ms"]["mean"] == pytest.approx(100 / 7, abs=0.01)

    def test_a_class_without_a_good_row_has_no_times(self) -> None:
        """Nothing but errors gives counts and no times."""
        found = figures([_row("long/256", 1.0, tokens=0, error="refused")])

        assert found["all"]["e2e_ms"] is None
        assert found["all"]["requests"] == found["all"]["errors"] == 1

    def test_rounds_are_pooled_by_request(self) -> None:
        """A round with more requests weighs more; regret adds up; each round's mean is kept."""
        rounds = [
            {
                "tokens_per_s": tokens,
                "gateway_cpu": 0.1,
                "regret_s": {"saved": 1.5, "lost": 0.5},
                "classes": figures(rows),
                "rows": rows,
            }
            for tokens, rows in (
                (100.0, [_row("short/8", 1.0, tokens=8)]),
                (300.0, [_row("short/8", 2.0, tokens=8), _row("short/8", 3.0, tokens=8)]),
            )
        ]

        found = pooled(rounds)

        assert found["classes"]["short"]["e2e_ms"]["mean"] == 2000.0
        assert found["tokens_per_s"] == 200.0
        assert found["regret_s"] == {"saved": 3.0, "lost": 1.0}
        assert [one["all"] for one in found["rounds"]] == [1000.0, 2500.0]


def _line(end: float, first: float, total: float, tokens: int) -> str:
    told = datetime.fromtimestamp(end, UTC).isoformat().replace("+00:00", "Z")
    about = "pool=mtp reason=faster endpoint=http://e task=chat predicted=9 input=9"
    times = f"output={tokens} finish=length first_ms={first} total_ms={total} attempts=1"
    return f"{told} info    request id=a result=ok status=200 model=m {about} {times}\n"


class TestLogs:
    def test_steps_are_found_again(self) -> None:
        """Answers made with 7 ms a step where eight or fewer run and 21 ms for more are told apart by their graphs."""
        lines, start = [], 1000.0
        for batch in (1, 2, 4, 5, 8, 9, 10, 8, 9, 4):
            step = 0.021 if batch in (5, 9, 10) else 0.007
            total = 0.05 + 299 / 1.71 * step
            lines += [_line(start + total, 50.0, 1000 * total, 300)] * batch
            start += 10.0

        answers = list(read(iter(lines)))
        seen = met(answers, 2, (1, 2, 3, 6, 12, 16, 24, 32, 48), {})

        assert len(answers) == len(seen) == 60
        assert {round(s.batch) for s in seen} == {1, 2, 4, 5, 8, 9, 10}
        assert paces(seen) == pytest.approx((7.0, 21.0), rel=0.01)
        assert fit(seen, graphs=True)[2] > 0.99 > 0.9 > fit(seen, graphs=False)[2]

    def test_other_lines_are_none(self) -> None:
        """Starts, probes and requests that failed say nothing of a step."""
        assert not list(
            read(iter(["2026-01-01T00:00:00Z info    Started\n", _line(1.0, 1, 2, 3).replace("=ok", "=no")]))
        )


ROWS = [Arrival(0.3 * at, words, tokens) for at, (words, tokens) in enumerate([(60, 9), (700, 3), (2500, 40)] * 8)]


class TestTrace:
    def test_arms_get_the_same_requests_and_only_told_ones_a_cap(self, tmp_path: Path) -> None:
        """Texts, times and classes are those of the stretch; a length is the engine's to know, or told as a cap."""
        path = tmp_path / "trace.csv"
        lines = [f"{row.at},{row.words},{row.tokens}" for row in ROWS]
        path.write_text("\n".join(["t_s,input_tokens,output_tokens", *lines]))
        words = ["--card", "http://a,http://b", "--model", "e4b", "--trace", str(path), "--seconds", "4"]
        options = parser().parse_args(words)

        hidden, told = (Load(rate=5.0).asks(options, 0, arm) for arm in ("fleet", "fleet-told"))

        assert [ask.tag for ask in hidden][:3] == ["0 to 500/9", "500 to 2000/3", "2000 to 4000/40"]
        assert [(ask.at, ask.tag, ask.body["messages"]) for ask in hidden] == [
            (ask.at, ask.tag, ask.body["messages"]) for ask in told
        ]
        assert all("max_tokens" not in ask.body for ask in hidden)
        assert [ask.body["max_tokens"] for ask in told] == [row.tokens for row in ROWS[: len(told)]]
        assert hidden != Load(rate=5.0).asks(options, 1, "fleet")
        assert FLEET.policy("all-MTP-told") == FLEET.policy("all-MTP") != FLEET.policy("fleet-told")

    async def test_an_engine_ends_where_the_trace_does(self) -> None:
        """Told or not, an answer has the trace's length, and its prompt about the trace's."""
        async with sim(FAST) as server:
            running = Running("fleet", int(server.url.rpartition(":")[2]), 0)
            rows = [
                row
                for told in (False, True)
                for row in await drive(running, "e4b", trace_asks(ROWS[:3], 0, "code", told=told))
            ]

        assert [(row.error, row.tokens) for row in rows] == [(None, tokens) for tokens in (9, 3, 40)] * 2
        assert [row.prompt_tokens for row in rows] == [pytest.approx(n, rel=0.15, abs=40) for n in (60, 700, 2500)] * 2

    def test_the_simulator_plays_what_was_measured(self) -> None:
        """Every cell gets a time, the same each time, and two engines that draft code beat two plain ones."""
        arms = ("all-plain", "all-MTP", "fleet", "fleet-told")
        cells = [{"arm": arm, "rate": 4.0, "classes": {"all": {"e2e_ms": {"mean": 1.0}}}} for arm in arms]
        about = {"seconds": 4.0, "first_round": 0, "rounds": 2, "warm_up": 2.0, "wishes": "code", "profile": "h200/e4b"}

        first, again = (list(predicted({"about": about, "cells": cells}, ROWS)) for _ in range(2))

        assert first == again
        assert [(arm, rate) for arm, rate, _, _ in first] == [(arm, 4.0) for arm in arms]
        plain, drafting = (said for _, _, said, _ in first[:2])
        assert 0.0 < drafting < plain
