"""The simulated engine on a clock of the test's own."""

from __future__ import annotations

import pytest

from gateway.profiles import get_profile
from gateway.sim.engine import Engine, EngineSettings, Event
from gateway.sim.sequence import Ask, Sequence
from gateway.types import Task


def engine(k: int = 0, *, model: str = "e4b", **settings: int | bool) -> Engine:
    return Engine(get_profile("h200", model), EngineSettings(k=k, **settings))  # type: ignore[arg-type]


def ask(tokens: int = 64, *, prompt: int = 256, task: Task = Task.CHAT, seed: int = 0, **more: object) -> Ask:
    return Ask(prompt_tokens=prompt, output_tokens=tokens, task=task, seed=seed, **more)  # type: ignore[arg-type]


def play(engine: Engine, now: float = 0.0) -> tuple[float, list[Event]]:
    """Steps until idle; the end time and every event."""
    events: list[Event] = []
    while (stepped := engine.step(now)) is not None:
        now, new = stepped
        events.extend(new)
    return now, events


def tpot(sequence: Sequence) -> float:
    assert sequence.first_token is not None
    assert sequence.last_token is not None
    return (sequence.last_token - sequence.first_token) / (sequence.generated - 1)


def test_a_lone_plain_request_takes_its_prefill_and_a_step_a_token() -> None:
    """The total time is the profile's, and each event has one token."""
    one = engine()
    sequence = one.submit(ask(32), 0.0)

    end, events = play(one)

    assert [event.tokens for event in events] == [1] * 32
    assert sequence.finish == "stop"
    assert end == pytest.approx(0.1632, rel=0.05)


def test_an_idle_engine_has_nothing_to_do() -> None:
    """No work, no step."""
    assert engine().begin(0.0) is None
    assert engine().commit() == []


@pytest.mark.parametrize(("k", "task", "measured"), [(0, Task.CHAT, 17.4), (2, Task.CHAT, 12.0), (2, Task.CODE, 8.6)])
def test_a_full_moe_batch_reproduces_measured_tpot(k: int, task: Task, measured: float) -> None:
    """26B at 64 streams comes within 10 % of the time per output token that was measured on whole requests."""
    moe = engine(k, model="26b-a4b")
    sequences = [moe.submit(ask(512 if task is Task.CHAT else 256, task=task, seed=i), 0.0) for i in range(64)]

    play(moe)

    mean = sum(tpot(sequence) for sequence in sequences) / len(sequences)
    assert mean * 1000 == pytest.approx(measured, rel=0.10)


def test_drafting_emits_up_to_k_plus_one_and_counts_what_it_accepts() -> None:
    """Every output token is accounted for, and the acceptance by position is near the profile's."""
    drafting = engine(2)
    sequences = [drafting.submit(ask(400, seed=i), 0.0) for i in range(32)]

    _, events = play(drafting)

    spec = drafting.counters.spec
    assert {event.tokens for event in events} == {1, 2, 3}
    assert spec.draft_tokens == 2 * spec.drafts
    assert sum(spec.accepted_per_position) == spec.accepted_tokens == sum(s.accepted_tokens for s in sequences)
    assert [count / spec.drafts for count in spec.accepted_per_position] == pytest.approx([0.47, 0.24], abs=0.03)
    assert drafting.counters.generation_tokens == sum(event.tokens for event in events) == 32 * 400


def test_drift_scales_acceptance() -> None:
    """A drafter that no longer fits accepts less, position by position."""
    drafting = engine(2)
    drafting.drift = 0.3
    for seed in range(32):
        drafting.submit(ask(400, seed=seed), 0.0)

    play(drafting)

    spec = drafting.counters.spec
    assert [n / spec.drafts for n in spec.accepted_per_position] == pytest.approx([0.141, 0.072], abs=0.02)


def test_the_same_seed_gives_the_same_run() -> None:
    """Nothing but seeds decides the draws."""
    runs = []
    for _ in range(2):
        drafting = engine(3, seed=7)
        drafting.submit(ask(100, seed=1), 0.0)
        runs.append([event.tokens for event in play(drafting)[1]])

    assert runs[0] == runs[1]


def test_a_joining_prefill_stalls_the_batch() -> None:
    """The step that a newcomer's prompt shares is the second after its arrival, and longer by the profile's stall."""
    one = engine()
    one.submit(ask(100), 0.0)
    now = 0.0
    for _ in range(5):
        stepped = one.step(now)
        assert stepped is not None
        before, now = now, stepped[0]
    newcomer, times = one.submit(ask(100), (before + now) / 2), []
    while newcomer.first_token is None:
        stepped = one.step(now)
        assert stepped is not None
        times.append(stepped[0] - now)
        now = stepped[0]

    alone, shared = times
    assert shared - alone == pytest.approx(get_profile("h200", "e4b").prefill_stall_seconds(256), rel=0.01)


def test_seats_are_limited_and_the_rest_waits() -> None:
    """`max_num_seqs` run; the others wait and run later."""
    small = engine(max_num_seqs=2)
    sequences = [small.submit(ask(10), 0.0) for _ in range(5)]
    small.begin(0.0)

    assert (small.running, small.waiting) == (2, 3)
    small.commit()
    play(small, 1.0)
    assert all(sequence.generated == 10 for sequence in sequences)


def test_long_prompts_are_prefilled_in_chunks() -> None:
    """A prompt beyond the token budget takes several steps, the first token comes with the last."""
    small = engine(max_num_batched_tokens=512)
    small.submit(ask(1, prompt=1200), 0.0)

    steps = 0
    now = 0.0
    while (stepped := small.step(now)) is not None:
        now = stepped[0]
        steps += 1

    assert steps == 3


def test_an_abort_frees_everything_at_once() -> None:
    """Running, waiting, and amid a step: an aborted sequence gets no more tokens and holds no blocks."""
    small = engine(max_num_seqs=1)
    running, waiting = small.submit(ask(), 0.0), small.submit(ask(), 0.0)
    small.begin(0.0)

    assert small.abort(running, 0.0)
    assert small.abort(waiting, 0.0)
    assert not small.abort(waiting, 0.0)
    assert small.commit() == []
    assert (small.running, small.waiting, small.kv.used) == (0, 0, 0)
    assert small.counters.finished["abort"] == 2


def test_a_full_cache_preempts_and_still_finishes() -> None:
    """When blocks run out the youngest starts over; nothing is lost and every block comes back."""
    small = engine(2, kv_blocks=100)
    sequences = [small.submit(ask(512, seed=i), 0.0) for i in range(6)]

    play(small)

    assert small.counters.preemptions > 0
    assert [sequence.generated for sequence in sequences] == [512] * 6
    assert small.kv.used == 0


def test_a_repeated_prompt_hits_the_prefix_cache() -> None:
    """The second of two equal prompts computes only what is not in whole blocks, and its first token is faster."""
    cached = engine()
    hashes = tuple(range(1, 126))
    first = cached.submit(ask(1, prompt=2000, block_hashes=hashes), 0.0)
    now, _ = play(cached)
    second = cached.submit(ask(1, prompt=2000, block_hashes=hashes), now)
    end, _ = play(cached, now)

    assert (first.cached, second.cached) == (0, 1984)
    assert (cached.kv.queries, cached.kv.hits) == (4000, 1984)
    assert end - now < now


@pytest.mark.parametrize("settings", [{"k": -1}, {"k": 17}, {"max_num_seqs": 0}, {"k": 2, "max_num_batched_tokens": 2}])
def test_impossible_settings_are_refused(settings: dict[str, int]) -> None:
    """An engine that could never step is not built."""
    with pytest.raises(ValueError, match=r"k must|max_num"):
        EngineSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (100_000, 200_000)])
def test_a_sequence_that_cannot_run_is_refused(prompt: int, output: int) -> None:
    """Empty or larger than the cache: an error at submission, not an endless wait."""
    with pytest.raises(ValueError, match=r"sequence"):
        engine().submit(ask(output, prompt=prompt), 0.0)
