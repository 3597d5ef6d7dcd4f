"""The evaluation protocols of the estimator: which rows train the prior, which are streamed, which are judged.

cold           one source left out of the prior's training; no updates; all its rows are judged
warm           same prior; the source is streamed in file order with updates; its second half is judged
grouped        8 folds by group; prior and history learn from seven; the eighth is judged
new template   the rows of a system prompt with over 100 rows are left out, then streamed; requests 21-100 are judged
traces         lengths and prefix hashes only; one pass; every request is predicted before it is learned
"""

from __future__ import annotations

import csv
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from gateway.bench.scores import Judged
from gateway.estimate.boost import Settings, Trees
from gateway.estimate.estimator import Estimator
from gateway.estimate.model import Prior, load_prior
from gateway.estimate.train import Row, Table, errors_on_new_sources, grow_on, left_out, model_data, table_of
from gateway.request.features import extract
from gateway.request.parse import parse_body
from gateway.types import Api, Features, Outcome, Result, Task, Usage

FOLDS = 8
TASK_STEPS = 60
"""Training steps of the task model here; the shipped model is trained longer."""
Tick = Callable[[str], None]


def finished(features: Features, tokens: int) -> Outcome:
    """The outcome of a request that ended without a cut-off."""
    usage = Usage(prompt_tokens=features.input_tokens, completion_tokens=tokens)
    return Outcome(
        request_id="", result=Result.OK, status=200, started=0.0, ended=1.0,
        features=features, usage=usage, finish_reason="stop",
    )  # fmt: skip


class Trained:
    """The priors of all protocols on one data set, trained on demand."""

    def __init__(self, rows: list[Row], settings: Settings, seed: int, tick: Tick) -> None:
        self.rows = rows
        self.table: Table = table_of(rows)
        self._settings, self._seed = settings, seed
        self.without: dict[str, Trees] = left_out(self.table, seed, settings, lambda: tick("priors without a source"))
        self.error = errors_on_new_sources(self.table, self.without)

    def prior(self, train: NDArray[np.int64], trees: Trees | None = None) -> Prior:
        """A prior trained on the rows `train`."""
        grown = trees or grow_on(self.table, train, self._seed, self._settings)
        return Prior(model_data(self.table, train, grown, self.error, self._seed, task_steps=TASK_STEPS))


def cold_and_warm(trained: Trained, tick: Tick) -> tuple[list[Judged], list[Judged]]:
    """All rows judged cold, and the second half of each source judged warm."""
    cold: list[Judged] = []
    warm: list[Judged] = []
    for source, trees in trained.without.items():
        theirs = trained.table.source == source
        prior = trained.prior(np.flatnonzero(~theirs), trees)
        still, moving = Estimator(prior), Estimator(prior)
        rows = [int(i) for i in np.flatnonzero(theirs)]
        cold += [_judge(trained.rows, i, still) for i in rows]
        warm += list(_stream(trained.rows, rows, moving))[len(rows) // 2 :]
        tick("cold and warm")
    return cold, warm


def grouped(trained: Trained, seed: int, tick: Tick) -> list[Judged]:
    """Every row judged by an estimator that has learned from the other seven folds."""
    names, inverse = np.unique(np.array([row.group for row in trained.rows]), return_inverse=True)
    fold = np.random.default_rng(seed).integers(0, FOLDS, len(names))[inverse]
    found: list[Judged] = []
    for k in range(FOLDS):
        train = np.flatnonzero(fold != k)
        estimator = Estimator(trained.prior(train))
        # History learns from the errors of priors that have not seen the row: on its training rows a prior hardly errs.
        halves = [train[fold[train] % 2 == side] for side in (0, 1)]
        for known, new in (halves, halves[::-1]):
            other = Estimator(trained.prior(known))
            for _ in _stream(trained.rows, [int(i) for i in new], other):
                pass
            estimator.merge(other.snapshot())
        found += [_judge(trained.rows, int(i), estimator) for i in np.flatnonzero(fold == k)]
        tick("eight folds by group")
    return found


def new_template(trained: Trained, systems: list[str], at_least: int, tick: Tick) -> list[Judged]:
    """Requests 21 to 100 of each system prompt with more than `at_least` rows."""
    found: list[Judged] = []
    for system, count in Counter(systems).most_common():
        if not system or count <= at_least:
            continue
        theirs = np.array([s == system for s in systems])
        estimator = Estimator(trained.prior(np.flatnonzero(~theirs)))
        rows = [int(i) for i in np.flatnonzero(theirs)][:100]
        found += list(_stream(trained.rows, rows, estimator))[20:]
        tick("new templates")
    return found


def trace(path: Path, limit: int | None) -> list[Judged]:
    """Judges a recorded trace, which has no texts, by history only; each request is judged before it is learned."""
    estimator = Estimator(load_prior())
    found: list[Judged] = []
    with path.open(encoding="utf-8", newline="") as lines:
        for i, record in enumerate(csv.DictReader(lines)):
            if limit is not None and i >= limit:
                break
            features, tokens = _trace_features(record), int(record["output_tokens"])
            found.append(Judged(i, features, estimator.estimate(features), tokens, Task.UNKNOWN))
            estimator.observe(finished(features, tokens))
    return found


def _trace_features(record: dict[str, str]) -> Features:
    """Prefix blocks stand in for text keys: the first for system prompt and head, the last for the whole prompt."""
    keys = {name: int(record[name]) + 1 if record.get(name) else 0 for name in ("h0", "h1", "h2", "h_last")}
    return Features(
        api=Api.CHAT,
        model="trace",
        input_tokens=int(record["input_tokens"]),
        form_key=keys["h1"],
        head_key=keys["h2"],
        template_key=keys["h_last"],
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """Median milliseconds per request."""

    estimate_and_observe: float
    extract: float


def cost(rows: list[Row], prompts: list[dict[str, Any]], size: int, repeats: int) -> Cost:
    """CPU cost at a body size: prompts of the data, repeated up to `size` bytes, after learning the data."""
    estimator = Estimator(load_prior())
    for row in rows[:2000]:
        features = replace(row.features)
        estimator.estimate(features)
        estimator.observe(finished(features, row.tokens))
    learning: list[float] = []
    reading: list[float] = []
    for i in range(repeats):
        record = prompts[i % len(prompts)]
        body = orjson.dumps({"model": "model", "messages": _of_size(record["messages"], size)})
        begin = time.perf_counter()
        features = extract(parse_body(body), Api.CHAT)
        read = time.perf_counter()
        estimator.estimate(features)
        estimator.observe(finished(features, rows[i % len(rows)].tokens))
        learning.append(time.perf_counter() - read)
        reading.append(read - begin)
    return Cost(1000 * statistics.median(learning), 1000 * statistics.median(reading))


def _of_size(messages: list[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """The messages with the last one's text repeated until all are about `size` bytes."""
    last = messages[-1]
    text = last["content"]
    others = sum(len(m["content"].encode()) for m in messages[:-1])
    wanted = max(1, size - others)
    repeated = text * (wanted // max(1, len(text.encode())) + 1)
    cut = repeated.encode()[:wanted].decode("utf-8", "ignore")
    return [*messages[:-1], {**last, "content": cut}]


def _judge(rows: list[Row], i: int, estimator: Estimator) -> Judged:
    row = rows[i]
    return Judged(i, row.features, estimator.estimate(row.features), row.tokens, row.task)


def _stream(rows: list[Row], order: Iterable[int], estimator: Estimator) -> Iterator[Judged]:
    """Predicts and then learns each row in turn."""
    for i in order:
        yield _judge(rows, i, estimator)
        estimator.observe(finished(rows[i].features, rows[i].tokens))
