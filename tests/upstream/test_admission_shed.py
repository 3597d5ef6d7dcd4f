"""Shedding before the process runs out of requests' memory or of files."""

from __future__ import annotations

import re
import resource

import pytest

from gateway.errors import NothingAvailable
from gateway.upstream import shed
from gateway.upstream.shed import RESERVE, Shedder, open_files, raise_file_limit
from tests.upstream.live import policy_of, still


def test_more_requests_than_the_cap_are_refused() -> None:
    """OPS-03: 503 with Retry-After beyond it, and a count of them."""
    shedder = Shedder(2)
    shedder.check(2)

    with pytest.raises(NothingAvailable) as caught:
        shedder.check(3)
    assert (caught.value.retry_after, shedder.shed) == (1, 1)


def test_refusals_are_told_once_for_as_long_as_they_go_on(caplog: pytest.LogCaptureFixture) -> None:
    """The client and the log learn which limit it is; a quiet second ends it, and the next time is told again."""
    for shedder, told in (
        (Shedder(2), "at most 2 at one time (server.max_requests)"),
        (Shedder(2000, files=1000), "at most 468 at one time (half of the open files, ulimit -n)"),
    ):
        caplog.clear()
        for _ in range(2):
            for _ in range(3):
                with pytest.raises(NothingAvailable, match=re.escape(told)):
                    shedder.check(3000)
                shedder.look()
            shedder.look()
        assert [told in record.getMessage() for record in caplog.records] == [True, True]


def test_the_limit_on_files_bounds_the_cap() -> None:
    """OPS-02: a request takes two files, so that 1024 allow fewer requests than one might think."""
    assert Shedder(8192, files=1024).limit == (1024 - RESERVE) // 2
    assert Shedder(100, files=1024).limit == 100
    assert Shedder(100, files=10).limit == 1


def test_open_files_are_counted_when_many_requests_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle clients hold files that no request shows; short of them, new requests are refused until that is over."""
    shedder = Shedder(8192, files=1000)
    shedder.check(300)
    monkeypatch.setattr(shed, "open_files", lambda: 990)
    shedder.look()
    with pytest.raises(NothingAvailable, match="open files"):
        shedder.check(1)
    monkeypatch.setattr(shed, "open_files", lambda: 100)
    shedder.look()

    shedder.check(1)


def test_the_system_tells_how_many_files_are_open() -> None:
    """One more open file is one more."""
    before = open_files()
    with open(__file__):
        assert open_files() == before + 1


def test_the_soft_limit_is_lifted_as_far_as_the_hard_one_allows(caplog: pytest.LogCaptureFixture) -> None:
    """OPS-02: at start, with a warning that names the number to ask for where it is not enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert raise_file_limit(200) == 200 * 2 + RESERVE
        assert not caplog.records
        if hard != resource.RLIM_INFINITY:
            assert raise_file_limit(hard) == hard
            assert str(hard * 2 + RESERVE) in caplog.text
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_policy_sets_the_cap() -> None:
    """A reload changes it at once."""
    pools = still(policy_of({"p": ["http://a:1"]}))
    assert pools.shedder.cap == 8192
    pools.apply(policy_of({"p": ["http://a:1"]}, "server: {max_requests: 5}"))

    assert pools.shedder.cap == 5
