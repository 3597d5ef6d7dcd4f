"""Hot reload on real files. `sleep` is a script: each pause of the watcher runs the next step."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

from gateway.policy.load import PolicyInvalid, load_policy
from gateway.policy.schema import Policy
from gateway.policy.watch import INTERVAL, PolicyWatcher

TEMPLATE = 'pools: {plain: {endpoints: ["http://a:1"]}}\nmodels: {m: {pools: [plain]}}\nrouting: {threshold: %d}\n'
BROKEN = "pools: {plain: [\n"


class Watched:
    """A watcher over a file, what it reported, and what to do in its pauses."""

    def __init__(self, path: Path, *, fresh: bool = True) -> None:
        self.path = path
        if fresh:
            path.write_text(TEMPLATE % 1)
        self.changes: list[Policy] = []
        self.failures: list[PolicyInvalid] = []
        self.restored = 0
        self.in_pauses: list[Callable[[], object]] = []
        self.pauses = 0
        self.slept = 0.0
        self.taken_at: list[float] = []
        """Of each change, how long the watcher had slept by then."""
        self.now = 100.0
        self.changed = asyncio.Event()
        self.watcher = PolicyWatcher(
            path,
            {},
            load_policy(path, {}),
            on_change=self.change,
            on_failure=self.failures.append,
            on_restored=self.restore,
            wall=lambda: self.now,
            sleep=self.pause,
        )

    def change(self, policy: Policy) -> None:
        self.changes.append(policy)
        self.taken_at.append(self.slept)
        self.changed.set()

    def restore(self) -> None:
        self.restored += 1

    async def pause(self, seconds: float) -> None:
        assert seconds > 0
        self.pauses += 1
        self.slept += seconds
        if self.in_pauses:
            self.in_pauses.pop(0)()
        await asyncio.sleep(0)

    def thresholds(self) -> list[int]:
        return [policy.routing.threshold for policy in self.changes]


def replace_by_rename(path: Path, text: str) -> None:
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


async def test_an_unchanged_file_changes_nothing(tmp_path: Path) -> None:
    """Touching the file is no change: content decides."""
    watched = Watched(tmp_path / "p.yaml")

    os.utime(watched.path, (1, 1))
    await watched.watcher.poll()

    assert watched.changes == []
    assert watched.watcher.state.ok == 0


async def test_an_edit_in_place_is_taken_once(tmp_path: Path) -> None:
    """The new policy is handed over once, and the state tells version and time."""
    watched = Watched(tmp_path / "p.yaml")

    watched.path.write_text(TEMPLATE % 2)
    watched.now = 200.0
    await watched.watcher.poll()
    await watched.watcher.poll()

    state = watched.watcher.state
    assert watched.thresholds() == [2]
    assert state.version == watched.changes[0].version_hash
    assert (state.loaded_at, state.ok, state.failed, state.last_error) == (200.0, 1, 0, None)


async def test_kubernetes_link_swap_is_taken(tmp_path: Path) -> None:
    """RELOAD-01: policy.yaml -> ..data/policy.yaml, and `..data` is swapped for another directory."""
    for number in (1, 2):
        (tmp_path / f"..v{number}").mkdir()
        (tmp_path / f"..v{number}" / "policy.yaml").write_text(TEMPLATE % number)
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    watched = Watched(tmp_path / "policy.yaml", fresh=False)

    (tmp_path / "..data_tmp").symlink_to("..v2")
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")
    await watched.watcher.poll()

    assert watched.thresholds() == [2]


async def test_every_save_by_rename_is_taken(tmp_path: Path) -> None:
    """RELOAD-02: three saves by rename, three reloads."""
    watched = Watched(tmp_path / "p.yaml")

    for number in (2, 3, 4):
        replace_by_rename(watched.path, TEMPLATE % number)
        await watched.watcher.poll()

    assert watched.thresholds() == [2, 3, 4]
    assert watched.watcher.state.ok == 3


async def test_a_broken_file_keeps_the_old_policy_and_is_reported_once(tmp_path: Path) -> None:
    """RELOAD-03, YAML-02: each distinct broken content is reported once; a good one afterwards is taken."""
    watched = Watched(tmp_path / "p.yaml")
    version = watched.watcher.state.version

    for text in (BROKEN, BROKEN, TEMPLATE % 2 + "routing: {}\n"):
        watched.path.write_text(text)
        await watched.watcher.poll()
    state = watched.watcher.state

    assert watched.changes == []
    assert len(watched.failures) == 2
    assert (state.version, state.failed) == (version, 2)
    assert "duplicate key `routing`" in (state.last_error or "")

    watched.path.write_text(TEMPLATE % 3)
    await watched.watcher.poll()

    assert watched.thresholds() == [3]
    assert watched.watcher.state.last_error is None


async def test_undoing_a_mistake_needs_no_reload(tmp_path: Path) -> None:
    """Back at the policy in use the error is gone, which counts as ok and is told once; nothing is reloaded."""
    watched = Watched(tmp_path / "p.yaml")
    version = watched.watcher.state.version

    watched.path.write_text(BROKEN)
    await watched.watcher.poll()
    watched.path.write_text(TEMPLATE % 1)
    await watched.watcher.poll()
    await watched.watcher.poll()

    state = watched.watcher.state
    assert watched.changes == []
    assert (state.last_error, state.version, state.failed) == (None, version, 1)
    assert (state.ok, watched.restored) == (1, 1)


async def test_a_half_written_file_is_not_taken(tmp_path: Path) -> None:
    """RELOAD-06: the first half, valid or not, gives way to the whole that follows within the settling time."""
    watched = Watched(tmp_path / "p.yaml")
    first, second = (TEMPLATE % 64)[:-3], (TEMPLATE % 64)[-3:]

    def append() -> None:
        with watched.path.open("a") as file:
            file.write(second)

    watched.path.write_text(first)
    watched.in_pauses.append(append)
    await watched.watcher.poll()

    assert watched.failures == []
    assert watched.thresholds() == [64]
    assert watched.pauses == 2


async def test_a_file_that_never_rests_is_taken_as_well(tmp_path: Path) -> None:
    """RELOAD-01: a script that writes a whole new policy before each look delays none of them beyond 2 s."""
    watched = Watched(tmp_path / "p.yaml")
    for number in range(2, 40):
        watched.in_pauses.append(partial(replace_by_rename, watched.path, TEMPLATE % number))

    while watched.in_pauses:
        await watched.pause(INTERVAL)
        await watched.watcher.poll()
    waited = [later - earlier for earlier, later in pairwise([0.0, *watched.taken_at])]

    assert watched.thresholds()[-1] == 39
    assert len(watched.changes) > 5
    assert max(waited) < 2.0
    assert watched.failures == []


async def test_a_file_that_is_written_slowly_is_taken_once(tmp_path: Path) -> None:
    """RELOAD-06: it never rests either, and each of its beginnings is a policy of its own."""
    watched = Watched(tmp_path / "p.yaml")

    def append() -> None:
        with watched.path.open("a") as file:
            file.write("# and more\n")

    watched.path.write_text(TEMPLATE % 2)
    watched.in_pauses += [append] * 20
    await watched.watcher.poll()

    assert watched.thresholds() == [2]
    assert watched.changes[0].version_hash == load_policy(watched.path, {}).version_hash


async def test_a_beginning_met_in_a_file_that_never_rests_is_not_taken(tmp_path: Path) -> None:
    """RELOAD-06: it is looked at once more a moment later, by when the rest of it has come."""
    watched = Watched(tmp_path / "p.yaml")
    beginning = (TEMPLATE % 456)[: -len("6\n")]
    watched.in_pauses += [
        lambda: watched.path.write_text(TEMPLATE % 3),
        lambda: watched.path.write_text(beginning),
        lambda: watched.path.write_text(TEMPLATE % 456),
    ]

    watched.path.write_text(TEMPLATE % 2)
    await watched.watcher.poll()

    assert watched.thresholds() == [456]


async def test_a_file_that_is_gone_for_a_moment_is_no_failure(tmp_path: Path) -> None:
    """A gap between unlink and create, as some editors leave it, goes unnoticed."""
    watched = Watched(tmp_path / "p.yaml")

    watched.path.unlink()
    watched.in_pauses.append(lambda: watched.path.write_text(TEMPLATE % 2))
    await watched.watcher.poll()

    assert watched.failures == []
    assert watched.thresholds() == [2]


async def test_a_file_that_stays_gone_is_reported_once(tmp_path: Path) -> None:
    """The policy in use goes on until there is a file again."""
    watched = Watched(tmp_path / "p.yaml")

    watched.path.unlink()
    await watched.watcher.poll()
    await watched.watcher.poll()
    state = watched.watcher.state

    assert len(watched.failures) == 1
    assert state.failed == 1
    assert "no such file" in (state.last_error or "")

    watched.path.write_text(TEMPLATE % 2)
    await watched.watcher.poll()

    assert watched.thresholds() == [2]


async def test_a_policy_that_cannot_be_applied_does_not_end_the_watch(tmp_path: Path) -> None:
    """A consumer's error is reported like an invalid file, and the next edit is taken."""
    watched = Watched(tmp_path / "p.yaml")
    wanted = watched.change

    def refuse(policy: Policy) -> None:
        if policy.routing.threshold == 2:
            raise RuntimeError("no")
        wanted(policy)

    watcher = PolicyWatcher(
        watched.path,
        {},
        load_policy(watched.path, {}),
        on_change=refuse,
        on_failure=watched.failures.append,
        wall=lambda: 0.0,
        sleep=watched.pause,
    )
    version = watcher.state.version

    watched.path.write_text(TEMPLATE % 2)
    await watcher.poll()

    assert "could not be applied: RuntimeError" in str(watched.failures[0])
    assert (watcher.state.version, watcher.state.failed) == (version, 1)

    watched.path.write_text(TEMPLATE % 3)
    await watcher.poll()

    assert watched.thresholds() == [3]


async def test_run_follows_the_file_until_cancelled(tmp_path: Path) -> None:
    """The loop notices a change by itself, and leaves no task behind."""
    watched = Watched(tmp_path / "p.yaml")
    before = asyncio.all_tasks()

    task = asyncio.create_task(watched.watcher.run())
    replace_by_rename(watched.path, TEMPLATE % 2)
    await asyncio.wait_for(watched.changed.wait(), 60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert watched.thresholds() == [2]
    assert asyncio.all_tasks() == before
