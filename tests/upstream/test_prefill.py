"""Prompts before one engine: no more than it can get to, shortest first, and nobody is held up for long."""

from __future__ import annotations

import asyncio
import math

from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.prefill import LONGEST, SLACK, Prefill, Prompt
from tests.upstream.live import Clock


class Engine:
    """An engine's prompts, and the order in which they were sent."""

    def __init__(self, limit: int, expected: float = 1.0) -> None:
        self.clock = Clock()
        self.prefill = Prefill(self.clock, limit)
        self.sent: list[str] = []
        self._expected = expected

    def come(self, name: str, tokens: int, *, stream: bool = True, key: str | None = None, priority: int = 0) -> None:
        prompt = Prompt(tokens, lambda: self._expected, stream)
        if self.prefill.take(name, prompt):
            self.sent.append(name)
        else:
            self.prefill.add(name, prompt, lambda: self.sent.append(name), priority, key)

    def computed(self, name: str) -> None:
        self.prefill.left(name)


class TestRoom:
    def test_prompts_go_on_at_once_below_the_limit(self) -> None:
        """As long as the engine gets to them soon, nothing waits."""
        engine = Engine(100)
        for name in "abc":
            engine.come(name, 30)

        assert (engine.sent, engine.prefill.tokens, engine.prefill.waiting) == (["a", "b", "c"], 90, 0)

    def test_beyond_it_they_wait_until_enough_are_computed(self) -> None:
        """A first byte tells that a prompt is computed."""
        engine = Engine(100)
        for name in "abcd":
            engine.come(name, 40)

        assert (engine.sent, engine.prefill.waiting) == (["a", "b"], 2)
        engine.computed("a")
        assert (engine.sent, engine.prefill.tokens, engine.prefill.waiting) == (["a", "b", "c"], 80, 1)

    def test_a_prompt_beyond_the_limit_goes_alone(self) -> None:
        """It can never fit, so it is sent once nothing else is there, and the next one after it."""
        engine = Engine(100)
        engine.come("small", 10)
        engine.come("huge", 500)
        engine.computed("small")
        engine.come("next", 10)

        assert engine.sent == ["small", "huge"]
        engine.computed("huge")
        assert engine.sent == ["small", "huge", "next"]

    def test_without_a_limit_nothing_waits(self) -> None:
        """`prefill: 0` in the policy's limits."""
        engine = Engine(0)
        for at in range(50):
            engine.come(str(at), 10_000)

        assert len(engine.sent) == 50

    def test_a_raised_limit_counts_at_once(self) -> None:
        """A reload lets those go on for whom there is room now."""
        engine = Engine(100)
        for name in "abc":
            engine.come(name, 60)
        engine.prefill.limit = 0
        engine.prefill.serve()

        assert engine.sent == ["a", "b", "c"]


class TestOrder:
    def test_the_shortest_prompt_goes_first(self) -> None:
        """A label does not wait for documents that came before it."""
        engine = Engine(100)
        engine.come("running", 100)
        for name, tokens in (("document", 90), ("page", 60), ("label", 5)):
            engine.come(name, tokens)
        engine.computed("running")

        assert engine.sent == ["running", "label", "page"]

    def test_the_first_in_turn_is_not_passed_by_what_fits(self) -> None:
        """Else prompts that fit into the rest of the room would keep a longer one out for good."""
        engine = Engine(100)
        engine.come("running", 80)
        engine.come("page", 40)
        engine.come("paper", 60)
        engine.computed("running")

        assert engine.sent == ["running", "page", "paper"]
        engine.come("label", 5)
        assert engine.prefill.waiting == 1

    def test_a_long_prompt_has_its_turn_although_short_ones_keep_coming(self) -> None:
        """Its patience is measured in tokens that were served meanwhile."""
        engine = Engine(1000)
        engine.come("running", 1000)
        engine.come("document", 900)
        served = 0
        while "document" not in engine.sent:
            engine.come(f"label {served}", 600)
            engine.computed("running" if not served else engine.sent[-1])
            served += 1
            assert served < 1000

        assert served > 10

    def test_keys_share_and_priority_goes_first(self) -> None:
        """A wall of one key's prompts does not keep another key waiting, and priority passes both."""
        engine = Engine(100)
        engine.come("running", 100)
        for at in range(5):
            engine.come(f"wall {at}", 100, key="one")
        engine.come("other", 100, key="two")
        engine.come("urgent", 100, key="one", priority=1)
        for _ in range(3):
            engine.computed(engine.sent[-1])

        assert engine.sent == ["running", "urgent", "wall 0", "other"]


class TestNobodyIsLost:
    def test_who_leaves_gives_up_the_turn(self) -> None:
        """A client that leaves while it waits is not sent, and one that leaves after makes room."""
        engine = Engine(100)
        for name in "abc":
            engine.come(name, 100)
        engine.computed("b")
        assert engine.prefill.waiting == 1
        engine.computed("a")

        assert engine.sent == ["a", "c"]
        engine.computed("c")
        assert (engine.prefill.tokens, engine.prefill.waiting) == (0, 0)

    def test_a_whole_answer_waits_for_its_turn_and_then_holds_nobody_up(self) -> None:
        """Its first byte is its last, long after the prompt was computed: counting it would leave the engine idle."""
        engine = Engine(100)
        for at in range(5):
            engine.come(f"whole {at}", 100, stream=False)
        assert (len(engine.sent), engine.prefill.tokens) == (5, 0)
        engine.come("stream", 100)
        engine.come("late", 50, stream=False)
        engine.come("next", 100)
        assert engine.prefill.waiting == 2
        engine.computed("stream")

        assert engine.sent[5:] == ["stream", "late", "next"]

    def test_a_stream_without_a_byte_holds_others_up_for_a_bounded_time(self) -> None:
        """A lost request costs a few times what was expected of it, however long its own limit is."""
        engine = Engine(100, expected=2.0)
        engine.come("lost", 100)
        engine.come("next", 100)

        assert engine.prefill.opens_at() == engine.clock.now + 2.0 * SLACK
        engine.clock.pass_(2.0 * SLACK)
        engine.prefill.serve()
        assert engine.sent == ["lost", "next"]

    async def test_a_timer_lets_them_go_when_nothing_is_heard(self) -> None:
        """Nothing comes from the engine, and the waiting request goes on all the same."""
        prefill = Prefill(asyncio.get_running_loop().time, 100)
        assert prefill.take("lost", Prompt(100, lambda: 0.0, stream=True))
        assert not prefill.take("next", Prompt(100, lambda: 0.0, stream=True))

        async with asyncio.timeout(60):
            await prefill.wait("next", Prompt(100, lambda: 0.0, stream=True))
        assert not prefill.holds("next")

    async def test_what_is_sent_later_and_lost_is_noticed_in_its_own_time(self) -> None:
        """The timer was set for another prompt, of which much more was expected."""
        prefill = Prefill(asyncio.get_running_loop().time, 100)
        slow, quick = (Prompt(100, lambda: 1000.0, stream=True), Prompt(100, lambda: 0.0, stream=True))
        assert prefill.take("slow", slow)
        waiting = asyncio.create_task(prefill.wait("lost", quick))
        while not prefill.waiting:
            await asyncio.sleep(0)
        last = asyncio.create_task(prefill.wait("last", quick))
        while prefill.waiting < 2:
            await asyncio.sleep(0)
        prefill.left("slow")

        async with asyncio.timeout(60):
            await asyncio.gather(waiting, last)

    def test_nothing_known_is_no_licence_to_hold_others_up_for_ever(self) -> None:
        """Without an expectation a lost prompt counts for a minute."""
        engine = Engine(100, expected=math.inf)
        engine.come("lost", 100)
        engine.come("next", 100)
        engine.clock.pass_(LONGEST)
        engine.prefill.serve()

        assert engine.sent == ["lost", "next"]

    @given(st.lists(st.tuples(st.integers(1, 300), st.booleans(), st.integers(0, 3))))
    def test_counts_are_those_of_who_is_there(self, steps: list[tuple[int, bool, int]]) -> None:
        """Whatever comes and leaves in whatever order: all are sent or waiting, the limit holds, and all ends at 0."""
        engine, there = Engine(200), dict[str, int]()
        for at, (tokens, comes, which) in enumerate(steps):
            if comes or not there:
                there[str(at)] = tokens
                engine.come(str(at), tokens)
            else:
                name = list(there)[which % len(there)]
                del there[name]
                engine.computed(name)
            sent = [name for name in there if not engine.prefill.holds(name)]
            assert engine.prefill.tokens == sum(there[name] for name in sent)
            assert engine.prefill.waiting == len(there) - len(sent)
            assert engine.prefill.tokens <= 200 or len(sent) == 1
        for name in there:
            engine.computed(name)

        assert (engine.prefill.tokens, engine.prefill.waiting) == (0, 0)
