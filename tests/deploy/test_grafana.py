"""The dashboards: their form, and that every panel shows something of a gateway under load."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.observed import TOP, Prometheus, loaded, prometheus

FILES = sorted((TOP / "deploy/grafana/dashboards").glob("*.json"))
KINDS = {"row", "stat", "timeseries", "state-timeline", "heatmap", "table"}
UNITS = {"short", "s", "percentunit", "reqps"}
COLUMNS = 24
VARIABLES = {"$__rate_interval": "10s", "$model": ".*", "$pool": ".*"}

Dashboard = dict[str, Any]


def load(file: Path) -> Dashboard:
    found: Dashboard = json.loads(file.read_text("utf-8"))
    return found


def queries(board: Dashboard) -> list[tuple[str, str]]:
    """Title and expression of every query."""
    return [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", ())]


each = pytest.mark.parametrize("board", [load(file) for file in FILES], ids=[file.stem for file in FILES])


def test_there_are_four_with_names_of_their_own() -> None:
    """Overview, MTP, estimator, endpoints; a uid is Grafana's key for links."""
    assert [file.stem for file in FILES] == ["endpoints", "estimator", "mtp", "overview"]
    uids = [load(file)["uid"] for file in FILES]
    assert len(set(uids)) == len(uids)
    assert all(re.fullmatch(r"[\w-]{1,40}", uid) for uid in uids)


@each
def test_a_dashboard_has_the_form_that_grafana_reads(board: Dashboard) -> None:
    """Fields with the types of Grafana's dashboard schema, version 41; no id, which belongs to one Grafana."""
    assert "id" not in board
    assert (board["schemaVersion"], board["editable"]) == (41, True)
    assert board["tags"] == ["mtp-gateway"]
    assert set(board["time"]) == {"from", "to"}
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names[0] == "datasource"
    used = set(re.findall(r"\$(\w+)", json.dumps([target for _, target in queries(board)]))) - {"__rate_interval"}
    assert used <= set(names)
    for variable in board["templating"]["list"][1:]:
        assert variable["type"] == "query"
        assert variable["allValue"] == ".*"


@each
def test_every_panel_is_whole(board: Dashboard) -> None:
    """A kind that Grafana has built in, a title, words that explain it, a unit, and queries with names."""
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in board["panels"]:
        assert panel["type"] in KINDS
        assert panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["description"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert panel["targets"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [{"value": None}])
        assert steps[0]["value"] is None


@each
def test_panels_do_not_overlap(board: Dashboard) -> None:
    """They fit the grid of 24 columns."""
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        cells = set(
            itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        )
        assert not cells & taken
        taken |= cells


async def test_every_query_returns_data(tmp_path: Path) -> None:
    """A Prometheus that scrapes a loaded gateway answers each of them with at least one sample."""
    async with loaded(tmp_path) as url, prometheus(url, tmp_path) as server:
        await server.until('count_over_time(up{job="gateway"}[1m]) >= 8')
        await server.until("gateway_mtp_tpot_improvement_ratio")
        missing = [
            (title, expr) for file in FILES for title, expr in queries(load(file)) if not await _has(server, expr)
        ]
        recorded = await server.query('count({__name__=~"gateway:.*"})')

    assert missing == []
    assert recorded


async def _has(server: Prometheus, expression: str) -> bool:
    """Whether the query has a sample, now or within a few scrapes."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    for _ in range(5):
        if await server.query(expression):
            return True
        await asyncio.sleep(0.5)
    return False
