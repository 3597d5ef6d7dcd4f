"""The hosts run's parts that need no root: what counts as a failure, and the configuration of nginx."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.benchmarks.chaos_answers import Judged, Verdict
from tests.benchmarks.chaos_clients import Record
from tests.benchmarks.hosts import Result, table
from tests.benchmarks.hosts_fleet import CONFIG, GATEWAYS, HOSTS, NGINX, POLICY
from tests.benchmarks.hosts_network import Network

NAUGHT = {"gateways": 0, "redis": 0, "back ends": 0}


def record(started: float, verdict: Verdict = Verdict.OK) -> Record:
    return Record("m-1", "label", started, started + 1, Judged(verdict, "why"), started + 0.5)


def test_a_clean_run_has_no_violations() -> None:
    """Every answer whole, every count naught, every stop with 0, the new back end used."""
    result = Result(1, {"calm": (0, 10)}, [record(1)], {"gateway-1": [0]}, 3, dict(NAUGHT))

    assert result.violations() == []
    assert "1 requests, 0 failed" in table(result.object())


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.OK])
def test_every_other_answer_is_a_failure(verdict: Verdict) -> None:
    """Nothing but a whole answer counts as one."""
    result = Result(1, {"calm": (0, 10)}, [record(1), record(2, verdict)], {}, 3, dict(NAUGHT))

    assert result.violations() == ["1 of 2 requests failed"]
    assert result.object()["phases"]["calm"]["failed"] == 1
    assert "why" in table(result.object())


def test_what_is_left_over_is_a_failure() -> None:
    """A count that stays, a status, a new back end that nobody found, a traceback, a run without requests."""
    result = Result(1, {}, [], {"gateway-2": [0, 1]}, 0, {**NAUGHT, "redis": 2}, 1)

    assert len(result.violations()) == 5


def test_the_policy_and_the_names_fit_together() -> None:
    """Names of the policy are those that the network resolves; every upstream of nginx is a gateway's host."""
    assert set(re.findall(r"http://([\w.]+):8000", POLICY)) == {"plain.pools", "mtp.pools"}
    assert tuple(re.findall(r"server (\S+):8080", CONFIG.read_text("utf-8"))) == GATEWAYS
    assert len({Network(HOSTS).address(host) for host in HOSTS}) == len(HOSTS)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx here")
def test_nginx_takes_the_configuration(tmp_path: Path) -> None:
    """`nginx -t` on the file that operators copy, with addresses for the hosts' names."""
    config = tmp_path / "site.conf"
    config.write_text(re.sub(r"gateway-\d:", "127.0.0.1:", CONFIG.read_text("utf-8")))
    main = tmp_path / "nginx.conf"
    main.write_text(NGINX.format(config=config).replace("user root;", ""))
    done = subprocess.run(
        ["nginx", "-t", "-p", tmp_path, "-c", main], capture_output=True, text=True, timeout=30, check=False
    )

    assert done.returncode == 0, done.stderr
