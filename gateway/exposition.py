"""The `/metrics` page: of this process, or summed over the worker processes that share a port.

With several workers, prometheus-client keeps every value in files of one directory per `gateway serve`, so that any
worker can answer for all. Gauges of workers that died are left out here; their counters stay, since a counter must
never fall. These files cannot hold exemplars: a page shows those of the worker that answers, in the summed buckets.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest, openmetrics
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.samples import Exemplar

from gateway.tally import Series

DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
OPENMETRICS = "application/openmetrics-text"
NO_EXEMPLARS: Mapping[Series, Exemplar] = MappingProxyType({})


@contextmanager
def shared_by_workers(env: MutableMapping[str, str]) -> Iterator[None]:
    """Gives the workers that the block starts a directory of their own, and removes it afterwards.

    Two gateways on one host never share one: each would wipe or sum the other's values.
    """
    with tempfile.TemporaryDirectory(prefix="gateway-metrics-") as folder:
        env[DIRECTORY] = folder
        try:
            yield
        finally:
            del env[DIRECTORY]


def worker_number(folder: Path) -> int:
    """The lowest number that no other living worker of this gateway has; a restarted one gets its old number back.

    The number is a file lock that lasts as long as the process.
    """
    for number in count():
        file = os.open(folder / f"worker-{number}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
        else:
            return number
    raise AssertionError("counting does not end")


@dataclass(frozen=True, slots=True)
class Both:
    """A registry's families together with families that are already collected."""

    registry: CollectorRegistry
    families: Sequence[Metric]
    live: Collection[tuple[str, str]]

    def collect(self) -> Iterator[Metric]:
        for family in self.registry.collect():
            if family.type == "gauge":
                family.samples = [sample for sample in family.samples if self._stands(sample.labels)]
            yield family
        yield from self.families

    def _stands(self, labels: Mapping[str, str]) -> bool:
        """False for the gauge of an endpoint that has gone, which the files of the worker processes keep."""
        return "endpoint" not in labels or (labels.get("pool", ""), labels["endpoint"]) in self.live


@dataclass(frozen=True, slots=True)
class WithExemplars:
    """A registry of sums over workers, with exemplars in its histograms' buckets."""

    registry: Any
    exemplars: Mapping[Series, Exemplar]

    def collect(self) -> Iterator[Metric]:
        for family in self.registry.collect():
            if family.type == "histogram":
                family.samples = [
                    sample._replace(exemplar=self.exemplars.get((family.name, frozenset(sample.labels.items()))))
                    for sample in family.samples
                ]
            yield family


def page(
    registry: CollectorRegistry,
    families: Sequence[Metric],
    accept: str,
    live: Collection[tuple[str, str]],
    exemplars: Mapping[Series, Exemplar] = NO_EXEMPLARS,
) -> tuple[bytes, str]:
    """The exposition and its content type: OpenMetrics, which alone can carry exemplars, if `accept` asks for it.

    `families` are this process's own and never summed, since every worker sees the same back ends. `exemplars` are its
    own too. `live` holds (pool, endpoint) for every endpoint that there is now.
    """
    folder = os.environ.get(DIRECTORY)
    if folder:
        forget_dead(Path(folder))
        registry = CollectorRegistry()
        MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
    everything: Any = Both(registry, families, live)
    if OPENMETRICS in accept:
        if folder and exemplars:
            everything = WithExemplars(everything, exemplars)
        # All our names are valid as they are; the default's escaping takes the colon out of samples' names only.
        body: bytes = openmetrics.exposition.generate_latest(everything, escaping="allow-utf-8")  # type: ignore[no-untyped-call]
        return body, openmetrics.exposition.CONTENT_TYPE_LATEST
    # The page is the same in version 1.0.0 of the text format, whose name older readers refuse.
    return generate_latest(everything), CONTENT_TYPE_PLAIN_0_0_4


def forget_dead(folder: Path) -> None:
    """Takes the gauges of processes that have ended out of the sums."""
    for file in folder.glob("gauge_live*_*.db"):
        pid = int(file.stem.rpartition("_")[2])
        if not alive(pid):
            mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]


def alive(pid: int) -> bool:
    """Whether a process of that id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
