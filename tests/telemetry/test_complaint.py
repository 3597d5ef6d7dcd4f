"""What is wrong with a back end that answers, and what to do about it."""

from __future__ import annotations

import gzip
import logging

import pytest

from gateway.telemetry.complaint import complaint, in_words
from gateway.telemetry.identity import ServedModel, parse_models
from tests.servers import serve
from tests.telemetry.helpers import engine, pool
from tests.telemetry.scraping import answering, scraping

LIST = b'{"object": "list", "data": [{"id": "other", "max_model_len": 100}]}'


def told(reason: str | None, body: bytes, *missing: str, keyed: bool = False) -> str | None:
    return complaint(reason, body, parse_models(body), missing, keyed=keyed)


def test_a_missing_key_and_a_wrong_one() -> None:
    """The remedy is another one."""
    assert told("status 401", b"") == "status 401; it wants a key: give the endpoint an `api_key`"
    assert told("status 403", b"", keyed=True) == "status 403; it refuses the endpoint's `api_key`"


def test_the_cause_stays_what_it_is_called_elsewhere() -> None:
    """What to look at comes after it; a cause that says nothing more is left alone."""
    assert in_words("connect_failed", keyed=False).startswith("connect_failed; nothing listens there")
    assert in_words("status 418", keyed=True) == "status 418"


def test_another_server_than_vllm() -> None:
    """A page of HTML under the path of the list, or anything else that is no JSON."""
    assert "is HTML; check host and port" in (told(None, b"\n<!doctype html><h1>Welcome</h1>") or "")
    assert "is no JSON" in (told(None, b"") or "")


def test_a_name_that_it_does_not_serve() -> None:
    """Both names and both remedies; many names are cut short."""
    assert told(None, LIST, "e4b") == (
        "it does not serve `e4b` but `other`: set the pool's `model`, or the engine's --served-model-name"
    )
    many = [ServedModel(f"m{number}", None, None, None) for number in range(9)]
    assert "`m4`, ...:" in (complaint(None, LIST, many, ["e4b"], keyed=False) or "")


def test_what_is_in_order_or_unknown_is_no_complaint() -> None:
    """A served name, an empty list, and a server without the path."""
    assert told(None, LIST) is None
    assert told(None, b'{"data": []}', "e4b") is None
    assert told("status 404", b"") is None
    assert told("timeout", b"") is None


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (b"", "no vLLM metrics on the page; another server than vLLM answers there, or the engine runs with"),
        (b'process_start_time_seconds 1.7e9\npython_info{version="3.12"} 1\n', "no vLLM metrics on the page; another"),
        (b"\n<!doctype html>", "no vLLM metrics on the page, which is HTML; another server than vLLM answers there:"),
        (
            gzip.compress(engine(num_requests_running=1.0).encode()),
            "which is compressed; a proxy compresses it unasked",
        ),
    ],
)
async def test_a_page_without_metrics_is_no_telemetry(page: bytes, why: str, caplog: pytest.LogCaptureFixture) -> None:
    """SCRAPE-01: a 200 that tells nothing of the engine is an error with its remedy, said once, not fresh telemetry;
    the models are read all the same, and a page with metrics ends it."""
    pages = {"/metrics": lambda: page, "/v1/models": lambda: b'{"data": [{"id": "e4b"}]}'}
    async with (
        serve(answering(pages), lifespan="off") as url,
        scraping(pool("plain", url, interval=0.05)) as running,
    ):
        record = running.view.endpoints()[url]
        await running.until(lambda: record.errors > 2 and record.identity.models)
        told = record.statistics(0.0)
        assert why in (record.why() or "")
        assert (told["fresh"], told["scrapes"], told["running"]) == (False, 0, None)
        assert [row.getMessage() for row in caplog.records] == ["no telemetry from endpoint"]

        pages["/metrics"] = lambda: engine(num_requests_running=1.0).encode()
        await running.until(lambda: record.error is None)


def test_a_redirect_says_what_to_do() -> None:
    """The gateway follows none, since each request would pay for it."""
    assert "give the address that it redirects to" in in_words("status 307", keyed=False)


async def test_it_is_logged_once_with_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """However often the endpoint is asked; and again in order once the engine serves the name."""
    listed = [b"<html>Welcome</html>"]
    pages = {"/metrics": lambda: engine(num_requests_running=1.0).encode(), "/v1/models": lambda: listed[0]}
    with caplog.at_level(logging.INFO, "gateway.telemetry"):
        async with (
            serve(answering(pages), lifespan="off") as url,
            scraping(pool("plain", url, interval=0.05)) as running,
        ):
            record = running.view.endpoints()[url]
            await running.until(lambda: record.complaint)
            assert record.why() == record.complaint == record.statistics(0.0)["complaint"]
            record.wants_identity = True
            await running.until(lambda: not record.wants_identity)
            await running.scraped(url, times=2)
            listed[0] = b'{"data": [{"id": "e4b"}]}'
            record.wants_identity = True
            await running.until(lambda: record.complaint is None)

    said = [row.getMessage() for row in caplog.records]
    assert said == ["endpoint cannot serve as it is", "endpoint serves what the policy asks for"]
