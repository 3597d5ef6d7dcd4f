"""Trains the shipped prior: `python -m gateway.estimate.train --data FILE [--out FILE] [--seed N]`.

FILE has one JSON object per line with `source`, `group`, `task`, `messages`, `params` and `output_tokens`. Each source
is weighted by the square root of its row count. Spread and margins are learned from leave-one-source-out errors,
because errors on known sources say nothing about new ones. The same data and seed give the same file, byte for byte, on
one machine. Needs numpy (extra `train`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The matrices are small: BLAS threads only wait for each other, up to twenty times as long on shared cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import orjson
from numpy.typing import NDArray

from gateway.errors import GatewayError
from gateway.estimate.boost import Floats, Settings, Trees, grow, ridge, softmax_fit
from gateway.estimate.expert import SETTLED
from gateway.estimate.model import LEARNED_SHARE, SETTLED_SHARE, TASKS
from gateway.estimate.signals import SIZE, log2p, signals
from gateway.request.features import extract
from gateway.request.parse import parse_body
from gateway.types import Api, Features, Task

_LARGEST_LEAF = 127
"""Leaves are stored as integers of one signed byte, in units of `leaf`."""
_TASK_SCALE = 200.0
_FLOOR = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """One request and the known length of its answer."""

    features: Features
    tokens: int
    task: Task
    source: str
    group: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows as arrays. `x`: rows x features; lengths are log2(1 + tokens)."""

    x: NDArray[np.float32]
    start: Floats
    settled: NDArray[np.bool_]
    actual: Floats
    source: NDArray[np.str_]
    task: NDArray[np.int64]

    def weights(self, rows: NDArray[np.int64]) -> Floats:
        """Weights by which each source counts with the square root of its row count; mean 1."""
        _, inverse, count = np.unique(self.source[rows], return_inverse=True, return_counts=True)
        weight = 1.0 / np.sqrt(count[inverse])
        return weight / float(weight.mean())

    def location(self, trees: Trees, rows: NDArray[np.int64]) -> Floats:
        """The prior's location of some rows, as `Prior.guess` computes it."""
        share = np.where(self.settled[rows], SETTLED_SHARE, LEARNED_SHARE)
        return np.maximum(0.3, self.start[rows] + share * trees.predict(self.x[rows]))


def read_rows(path: Path, model: str = "model") -> list[Row]:
    """Reads a data file; requests pass through the same feature extraction as live ones.

    Raises OSError, or ValueError with the line that is wrong.
    """
    rows: list[Row] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                rows.append(_row(orjson.loads(line), model))
            except KeyError as error:
                raise ValueError(f"line {number}: there is no {error}") from error
            except (TypeError, AttributeError) as error:
                raise ValueError(f"line {number}: a value of the wrong kind ({error})") from error
            except (ValueError, GatewayError) as error:
                raise ValueError(f"line {number}: {error}") from error
    return rows


def _row(record: dict[str, Any], model: str) -> Row:
    body = {"model": model, "messages": record["messages"], **(record.get("params") or {})}
    return Row(
        features=extract(parse_body(orjson.dumps(body)), Api.CHAT),
        tokens=int(record["output_tokens"]),
        task=Task(record["task"]),
        source=record["source"],
        group=record["group"],
    )


def table_of(rows: Iterable[Row]) -> Table:
    """The rows as arrays."""
    rows = list(rows)
    found = [signals(row.features) for row in rows]
    return Table(
        x=_unpacked([s.bits for s in found]),
        start=np.array([s.start for s in found]),
        settled=np.array([s.case in SETTLED for s in found]),
        actual=np.array([log2p(row.tokens) for row in rows]),
        source=np.array([row.source for row in rows]),
        task=np.array([TASKS.index(row.task) for row in rows]),
    )


def _unpacked(bits: list[int]) -> NDArray[np.float32]:
    """rows x features, from one integer per row."""
    width = -(-SIZE // 8)
    packed = np.frombuffer(b"".join(row.to_bytes(width, "little") for row in bits), np.uint8).reshape(len(bits), width)
    return np.unpackbits(packed, axis=1, count=SIZE, bitorder="little").astype(np.float32)


def grow_on(table: Table, rows: NDArray[np.int64], seed: int, settings: Settings | None = None) -> Trees:
    """Grows trees on some rows, with the error of the expert's guess as the target."""
    target = table.actual[rows] - table.start[rows]
    return grow(table.x[rows], target, table.weights(rows), settings or Settings(), seed)


def left_out(
    table: Table, seed: int, settings: Settings | None = None, tick: Callable[[], None] = lambda: None
) -> dict[str, Trees]:
    """For each source, trees trained without it. Calls `tick` after each source."""
    found: dict[str, Trees] = {}
    for source in np.unique(table.source):
        found[str(source)] = grow_on(table, np.flatnonzero(table.source != source), seed, settings)
        tick()
    return found


def errors_on_new_sources(table: Table, trees: dict[str, Trees]) -> Floats:
    """Actual length minus location, log2; each row is judged by the trees trained without its source."""
    error = np.empty(len(table.actual))
    for source, grown in trees.items():
        rows = np.flatnonzero(table.source == source)
        error[rows] = table.actual[rows] - table.location(grown, rows)
    return error


def model_data(
    table: Table, rows: NDArray[np.int64], trees: Trees, error: Floats, seed: int, *, task_steps: int = 300
) -> dict[str, Any]:
    """The model file's content. `trees` are trained on `rows`; `error` has held-out errors of the whole table."""
    x = table.x[rows]
    size = np.abs(error[rows])
    bias, weights = ridge(x, np.log(size + _FLOOR), 60.0)
    spread = np.clip(np.exp(bias + x @ weights), 0.15, 3.0)
    # The exponential of a fitted log is near the median; scale it to the mean absolute error, which defines the spread.
    scale = float(size.sum() / spread.sum())
    bias += float(np.log(scale))
    ratio = error[rows] / np.clip(spread * scale, 0.15, 3.0)
    margins = {
        task.value: round(float(np.quantile(ratio[table.task[rows] == i], 0.9)), 3)
        for i, task in enumerate(TASKS)
        if np.count_nonzero(table.task[rows] == i) >= 10
    }
    leaf = float(np.abs(trees.leaves).max()) / _LARGEST_LEAF
    task_bias, task_weights = softmax_fit(x, table.task[rows], len(TASKS), table.weights(rows), steps=task_steps)
    return {
        "size": SIZE,
        "seed": seed,
        "base": round(trees.base, 6),
        "leaf": leaf,
        "trees": [
            {"bits": bits.tolist(), "leaves": np.round(leaves / leaf).astype(int).tolist()}
            for bits, leaves in zip(trees.bits, trees.leaves, strict=True)
        ],
        "spread": {"bias": round(bias, 5), "weights": np.round(weights, 4).tolist()},
        "tasks": {
            "bias": np.round(task_bias, 4).tolist(),
            "weights": np.clip(np.round(task_weights * _TASK_SCALE), -4000, 4000).astype(int).tolist(),
        },
        "margins": margins,
    }


def train(
    rows: list[Row], seed: int = 0, settings: Settings | None = None, tick: Callable[[], None] = lambda: None
) -> bytes:
    """Trains on all rows and returns the model file."""
    table = table_of(rows)
    everything = np.arange(len(rows))
    error = errors_on_new_sources(table, left_out(table, seed, settings, tick))
    data = model_data(table, everything, grow_on(table, everything, seed, settings), error, seed)
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gateway.estimate.train", description="Trains the shipped prior.")
    parser.add_argument(
        "--data", type=Path, required=True, help="requests with known output lengths, one JSON object a line"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "data" / "prior.json")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    model = train(read_rows(options.data), options.seed)
    options.out.write_bytes(model)
    print(f"{options.out}: {len(model)} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
