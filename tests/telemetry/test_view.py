"""The view: ages, load, who drafts, totals, and following the pools."""

from __future__ import annotations

import logging

import pytest

from gateway.telemetry.drafting import Disagreement
from tests.telemetry.helpers import FakeEndpoint, drafting, engine, pool, rig

A, B = "http://a", "http://b"


def _load(running: float, waiting: float = 0.0) -> str:
    return engine(num_requests_running=running, num_requests_waiting=waiting)


def test_a_stale_snapshot_is_none() -> None:
    """A snapshot counts up to the pool's `stale_after` and is unknown after it, for load as well."""
    r = rig(pool("plain", A, stale_after=10.0))
    r.page(A, _load(5.0, 2.0))
    r.clock.now += 10.0
    at_the_limit, load = r.view.snapshot(A), r.view.pool_load("plain")
    r.clock.now += 0.1

    assert at_the_limit is not None
    assert (load.in_flight, load.waiting, load.fresh) == (7.0, 2.0, 1)
    assert r.view.snapshot(A) is None
    assert (r.view.pool_load("plain").in_flight, r.view.pool_load("plain").fresh) == (0.0, 0)


def test_own_requests_since_the_scrape_are_counted() -> None:
    """HEALTH-05: within one polling window each request of ours is in the load at once, and none twice."""
    r = rig(pool("plain", A))
    source = r.pools.pools[0].endpoints[0]
    source.in_flight = 3
    r.page(A, _load(5.0), own=3)
    before = r.view.pool_load("plain").in_flight
    source.in_flight += 8

    assert (before, r.view.others(A)) == (5.0, 2.0)
    assert r.view.pool_load("plain").in_flight == 13.0
    source.in_flight = 0
    assert r.view.pool_load("plain").in_flight == 2.0


def test_a_pools_load_is_that_of_all_its_endpoints() -> None:
    """Loads add up, and an endpoint without telemetry adds our own requests only."""
    r = rig(pool("plain", A, B, "http://c"))
    r.page(A, _load(4.0, 1.0))
    r.page(B, _load(2.0, 0.0))
    r.pools.pools[0].endpoints[2].in_flight = 6
    load = r.view.pool_load("plain")

    assert (load.in_flight, load.waiting, load.running, load.fresh) == (13.0, 1.0, 6.0, 2)


def test_unknown_load_is_not_idle_and_unknown_pools_are_empty() -> None:
    """SCRAPE-01: a page without the gauges leaves the load to our own count."""
    r = rig(pool("plain", A))
    r.page(A, engine(prompt_tokens_total=5.0))

    assert r.view.pool_load("plain").fresh == 0
    assert r.view.pool_load("none").in_flight == 0.0
    assert r.view.snapshot("http://nowhere") is None


def test_a_drafting_engine_in_a_plain_pool_is_said_once_per_change(caplog: pytest.LogCaptureFixture) -> None:
    """Policy and engine differ: one warning, a standing entry, one line when it is over."""
    r = rig(pool("plain", A))
    with caplog.at_level(logging.INFO, "gateway.telemetry"):
        for steps in (1, 2, 3):
            r.page(A, drafting(steps, 0.5, 0.25))
        standing = r.view.disagreements()
        r.page(A, _load(1.0))

    assert standing == (Disagreement("plain", A, 0, True, 2),)
    assert "is plain, but the engine drafts 2 tokens" in standing[0].message
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert r.view.disagreements() == ()


@pytest.mark.parametrize(
    ("page", "says"),
    [(_load(1.0), "no speculative-decoding counters"), (drafting(5, 0.5, 0.3, 0.2, 0.1), "drafts 4 tokens")],
)
def test_a_drafting_pool_that_does_not_or_otherwise(page: str, says: str) -> None:
    """SCRAPE-04: an mtp pool without the counters, or with another k, is said."""
    r = rig(pool("mtp", A, k=2))
    r.page(A, page)

    assert [says in found.message for found in r.view.disagreements()] == [True]


def test_agreement_and_unknown_are_silent() -> None:
    """A page that tells nothing (logging of statistics off) contradicts nobody."""
    r = rig(pool("mtp", A, k=2), pool("plain", B))
    r.page(A, drafting(0, 0.0, 0.0))
    r.page(B, "http_requests_total 5\n")

    assert r.view.disagreements() == ()


def test_acceptance_on_a_page_of_several_models_is_that_of_the_pools_own() -> None:
    """SCRAPE-02: two engines of the model are summed and another model left out. If no name is ours, all count; and
    every model's counters are passed on under its own name."""
    counts = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")

    def page(steps: float, *models: str) -> str:
        share = {"e4b": 0.5, "other": 0.1}
        return "".join(
            engine(model, rank, **{f"spec_decode_{c}_total": n for c, n in zip(counts, numbers, strict=True)})
            for model in models
            for rank in ("0", "1")
            for numbers in [(steps, 2 * steps, 2 * steps * share.get(model, 0.3))]
        )

    both = rig(pool("mtp", "http://a", k=2))
    for steps in (0.0, 1000.0):
        both.page("http://a", page(steps, "other", "e4b"))
    found = both.checklist.reports()[0].acceptance
    assert found is not None
    assert found.drafts == 2000.0
    assert found.rate == pytest.approx(0.5)
    assert {model: counts["drafts"] for model, counts in both.view.spec_totals().items()} == {"other": 2e3, "e4b": 2e3}

    unnamed = rig(pool("mtp", "http://a", k=2), model="alias")
    for steps in (0.0, 1000.0):
        unnamed.page("http://a", page(steps, "other", "e4b"))
    found = unnamed.checklist.reports()[0].acceptance
    assert found is not None
    assert found.drafts == 4000.0


def test_totals_survive_restarts_and_removal() -> None:
    """The re-exported counters never fall: not by a restart, not when an endpoint goes, nor when it comes back."""
    r = rig(pool("mtp", A, B, k=2))
    mtp = r.pools.pools[0]
    seen = []

    def note() -> None:
        seen.append(r.view.spec_totals()["e4b"]["drafts"])

    r.page(A, drafting(100, 0.5, 0.25))
    r.page(B, drafting(1000, 0.5, 0.25))
    note()
    r.page(A, drafting(7, 0.5, 0.25))
    note()
    mtp.endpoints = [FakeEndpoint(A)]
    r.view.match()
    note()
    mtp.endpoints = [FakeEndpoint(A), FakeEndpoint(B)]
    r.view.match()
    note()
    r.page(B, drafting(1001, 0.5, 0.25))
    note()

    assert seen == [1100, 1107, 1107, 1107, 1108]


def test_totals_of_many_removed_endpoints_are_bounded_and_kept() -> None:
    """Endpoints that come and go for months cost bounded memory and lose no count."""
    r = rig(pool("mtp", "http://0", k=1))
    for number in range(400):
        r.pools.pools[0].endpoints = [FakeEndpoint(f"http://{number}")]
        r.view.match()
        r.page(f"http://{number}", drafting(1, 1.0))

    assert r.view.spec_totals()["e4b"]["drafts"] == 400
    assert len(r.view._gone) == 256


def test_an_interval_that_is_off_has_no_record() -> None:
    """A pool without telemetry is not scraped; its load is our own requests."""
    r = rig(pool("plain", A, interval=None))
    r.pools.pools[0].endpoints[0].in_flight = 4

    assert dict(r.view.endpoints()) == {}
    assert r.view.pool_load("plain").in_flight == 4.0


def test_one_url_in_two_pools_is_one_record() -> None:
    """It is scraped once, at the shorter interval, and counts in both pools."""
    r = rig(pool("one", A, interval=5.0), pool("two", A, interval=1.0))
    r.page(A, _load(3.0))
    (record,) = r.view.endpoints().values()

    assert record.target.interval == 1.0
    assert [r.view.pool_load(name).in_flight for name in ("one", "two")] == [3.0, 3.0]


def test_statistics_name_age_and_error() -> None:
    """The operator's page shows how old the figures are and why there are no newer ones."""
    r = rig(pool("plain", A))
    r.page(A, _load(3.0))
    r.view.endpoints()[A].fail("status 500")
    r.clock.now += 12.0
    (row,) = r.view.statistics()

    assert (row["age"], row["error"], row["fresh"], row["running"]) == (12.0, "status 500", False, None)
