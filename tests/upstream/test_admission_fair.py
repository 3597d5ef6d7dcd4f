"""The order of the queue: priorities, keys, sizes; checked by example and against a model."""

from __future__ import annotations

from collections import Counter
from weakref import WeakSet

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.upstream.fair import PATIENCE, ROUNDS, FairQueue, Work, bounded
from gateway.upstream.places import Places


class Item:
    def __init__(
        self,
        name: str,
        work: float | Work = 1.0,
        key: str | None = None,
        priority: int = 0,
        order: tuple[str, ...] = ("p",),
        places: int = 1,
    ) -> None:
        self.name = name
        expected = work if isinstance(work, Work) else Work(work)
        self.work = expected.mean
        self.key = key
        self.priority = priority
        self.order = order
        self.works = expected.in_each(order)
        self.places = places

    def __repr__(self) -> str:
        return self.name


def queue_of(*items: Item) -> FairQueue[Item]:
    queue: FairQueue[Item] = FairQueue()
    for item in items:
        queue.add(item)
    return queue


def serve(queue: FairQueue[Item], *pools: str) -> Item:
    item = queue.first(pools or ("p",))
    assert item is not None
    queue.serve(item)
    return item


def drain(queue: FairQueue[Item], *pools: str) -> list[str]:
    return [serve(queue, *pools).name for _ in range(len(queue))]


class TestOrder:
    def test_first_come_first_served_among_equals(self) -> None:
        """One key, one size: a plain FIFO."""
        assert drain(queue_of(*(Item(str(n)) for n in range(5)))) == ["0", "1", "2", "3", "4"]

    def test_higher_priority_goes_first(self) -> None:
        """Whatever came before, and however short it is."""
        queue = queue_of(Item("low", 0.1), Item("high", 100.0, priority=5), Item("mid", priority=1))

        assert drain(queue) == ["high", "mid", "low"]

    def test_a_wall_of_one_key_delays_no_other_key(self) -> None:
        """Fairness: the newcomer waits for the one that is served now, not for the thousand before it."""
        queue = queue_of(*(Item(f"wall-{n}", key="a") for n in range(1000)))
        serve(queue)
        queue.add(Item("newcomer", key="b"))

        assert serve(queue).name == "newcomer"

    def test_keys_get_equal_work_rather_than_equal_counts(self) -> None:
        """A key of ten-second requests gets one for ten of a key of one-second requests."""
        queue = queue_of(
            *(Item("long", 10.0, key="a") for _ in range(50)), *(Item("short", 1.0, key="b") for _ in range(500))
        )
        served = Counter(serve(queue).name for _ in range(110))

        assert abs(served["long"] - 10) <= 1

    def test_a_short_request_passes_a_wall_of_long_ones_of_its_own_key(self) -> None:
        """None that has just come goes before it."""
        queue = queue_of(*(Item(f"long-{n}", 60.0) for n in range(1000)))
        serve(queue)
        queue.add(Item("short", 0.5))

        assert serve(queue).name == "short"

    def test_short_ones_without_end_do_not_starve_a_long_one(self) -> None:
        """The long one's turn comes once `PATIENCE` times its own work has been served, however many keep coming."""
        queue = queue_of(Item("long", 1.0))
        served = []
        while "long" not in served:
            queue.add(Item("short", 0.1))
            served.append(serve(queue).name)

        assert len(served) == pytest.approx(PATIENCE * 1.0 / 0.1, rel=0.15)

    def test_a_large_fleet_still_serves_the_short_ones_first(self) -> None:
        """With many places much is served in little time, so that more may pass: `ROUNDS` times its work for each."""
        queue = queue_of(Item("long", 1.0, places=1000))
        served = []
        while "long" not in served:
            queue.add(Item("short", 1.0 / 3, places=1000))
            served.append(serve(queue).name)

        assert len(served) == pytest.approx(ROUNDS * 1000 * (1.0 - 1.0 / 3) * 3, rel=0.05)

    def test_an_idle_key_saves_nothing_up(self) -> None:
        """A key that comes back after a thousand requests of others shares equally from then on."""
        queue = queue_of(Item("b", key="b"), *(Item("a", key="a") for _ in range(2000)))
        for _ in range(1000):
            serve(queue)
        for _ in range(100):
            queue.add(Item("b", key="b"))

        assert abs(Counter(serve(queue).name for _ in range(100))["a"] - 50) <= 1

    def test_a_pool_takes_the_first_that_it_may_serve(self) -> None:
        """Spill-over: entries that fit no free pool are passed over and keep their place."""
        queue = queue_of(Item("1", order=("p",)), Item("2", order=("q", "p")), Item("3", order=("q",)))

        assert serve(queue, "q").name == "2"
        assert queue.first(("r",)) is None
        assert drain(queue, "p", "q") == ["1", "3"]

    def test_a_pool_takes_first_what_is_least_work_there(self) -> None:
        """Of two that are alike on average, the drafting pool takes the one that drafts help, and leaves the other."""
        prose, code = (
            Item(name, Work(2.0, {"plain": 2.0 + more, "mtp": 2.0 - more}), order=("plain", "mtp"))
            for name, more in (("prose", -0.5), ("code", 0.5))
        )

        assert serve(queue_of(prose, code), "mtp").name == "code"
        assert serve(queue_of(code, prose), "plain").name == "prose"
        assert Work(2.0, {"mtp": 1.0}).in_each(("new", "mtp")) == (2.0, 1.0)

    def test_a_key_is_charged_alike_whichever_pool_served_it(self) -> None:
        """Whoever's requests the cheap pool happened to take has no turn more for it."""
        queue: FairQueue[Item] = FairQueue()
        for key in ("a", "b"):
            for _ in range(20):
                queue.add(Item(key, Work(2.0, {"p": 3.0, "q": 1.0}), key, order=("p", "q")))
        served = Counter(serve(queue, pool).name for pool in "pq" * 10)

        assert abs(served["a"] - served["b"]) <= 1

    def test_a_removed_entry_leaves_no_trace(self) -> None:
        """CANCEL-06: it is neither served nor charged."""
        gone = Item("gone", 1000.0, key="a")
        queue = queue_of(gone, Item("stays", key="a"), Item("other", key="b"))
        queue.remove(gone)

        assert drain(queue) == ["stays", "other"]
        assert list(queue) == []

    def test_those_who_leave_from_the_middle_do_not_pile_up(self) -> None:
        """Clients that come and go behind one that waits on: the queue holds on to a few of them at most."""
        queue = queue_of(Item("first", 0.001))
        held: WeakSet[Item] = WeakSet()
        for n in range(1000):
            item = Item(str(n), 10.0)
            held.add(item)
            queue.add(item)
            queue.remove(item)
        del item

        assert len(held) <= 2
        assert drain(queue) == ["first"]

    def test_keys_that_came_once_are_forgotten(self) -> None:
        """Memory: ten thousand keys of one request each leave few behind."""
        queue: FairQueue[Item] = FairQueue()
        for number in range(10_000):
            queue.add(Item("x", key=str(number)))
            serve(queue)

        assert len(queue._levels[0].keys) < 200

    def test_nonsense_in_the_expected_work_does_no_harm(self) -> None:
        """Whatever an estimate says, a request has some work and an end."""
        queue = queue_of(Item("huge", 1e300), Item("usual", 1.0), Item("none", -5.0), Item("tiny", 1e-300))

        assert drain(queue) == ["none", "tiny", "usual", "huge"]


class TestPlaces:
    def test_the_key_that_fills_the_queue_gives_way(self) -> None:
        """Its newest goes, not its oldest."""
        places: Places[Item] = Places()
        hog = [Item(str(n), key="hog") for n in range(5)]
        for item in hog:
            places.add(item, "p")

        assert places.displaced_by(Item("new", key="small"), "p") is hog[-1]

    def test_the_key_at_fault_is_told_so(self) -> None:
        """With others waiting, the largest key's own newcomer is the one that is refused."""
        places: Places[Item] = Places()
        for name in ("hog", "hog", "small"):
            places.add(Item("x", key=name), "p")
        new = Item("new", key="hog")

        assert places.displaced_by(new, "p") is new

    def test_a_single_key_displaces_nobody(self) -> None:
        """It is the queue that is full, then, and no one's fault."""
        places: Places[Item] = Places()
        for _ in range(3):
            places.add(Item("x"), "p")

        assert places.displaced_by(Item("new"), "p") is None

    def test_higher_priority_displaces_lower(self) -> None:
        """And never the other way round."""
        places: Places[Item] = Places()
        low = Item("low", key="a")
        places.add(Item("high", key="a", priority=5), "p")
        places.add(low, "p")

        assert places.displaced_by(Item("new", key="b", priority=1), "p") is low
        assert places.displaced_by(Item("new", key="b", priority=-1), "p") is None


def work_at(item: Item, pool: str) -> float:
    return bounded(item.works[item.order.index(pool)])


SECONDS = st.floats(0.0, 1e6)
ITEMS = st.builds(
    Item,
    name=st.just("x"),
    work=SECONDS | st.builds(lambda p, q: Work((p + q) / 2, {"p": p, "q": q}), SECONDS, SECONDS),
    key=st.sampled_from([None, "a", "b", "c"]),
    priority=st.integers(0, 2),
    order=st.sampled_from([("p",), ("q",), ("p", "q"), ("q", "p")]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(ITEMS, st.sampled_from(["p", "q", "pq", "remove"])), max_size=60))
def test_nothing_is_lost_served_twice_or_out_of_order(steps: list[Item | str]) -> None:
    """Against a model: an entry comes out once, by a pool that may serve it, never before a higher priority, nor before
    an earlier one of its key that is no longer than itself in that pool."""
    queue: FairQueue[Item] = FairQueue()
    model: list[Item] = []
    for step in steps:
        if isinstance(step, Item):
            queue.add(step)
            model.append(step)
        elif step == "remove":
            if model:
                queue.remove(model.pop(len(model) // 2))
        else:
            found = queue.first(tuple(step))
            fitting = [item for item in model if set(item.order) & set(step)]
            if found is None:
                assert not fitting
                continue
            assert found in fitting
            assert found.priority == max(item.priority for item in fitting)
            before = fitting[: fitting.index(found)]
            earlier = [item for item in before if (item.key, item.priority) == (found.key, found.priority)]
            assert any(
                not any(pool in item.order and work_at(item, pool) <= work_at(found, pool) for item in earlier)
                for pool in set(step) & set(found.order)
            )
            queue.serve(found)
            model.remove(found)
        assert len(queue) == len(model)
    assert {id(item) for item in queue} == {id(item) for item in model}
