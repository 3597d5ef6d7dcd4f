"""The engine of jumps against the engine of steps, and its own corners."""

from __future__ import annotations

import math
from random import Random

import pytest

from gateway.sim.engine import Engine, EngineSettings
from gateway.sim.sequence import Ask
from gateway.simulate.job import Job
from gateway.types import Task
from tests.simulate.worlds import E4B, engine, job, play, poisson


def stepped(jobs: list[Job], k: int) -> list[tuple[float, float]]:
    """The same jobs through the step-by-step engine: times from arrival to the first and the last token."""
    one = Engine(E4B, EngineSettings(k=k, prefix_caching=False, kv_blocks=10**6))
    now, pending, running = 0.0, list(jobs), []
    while pending or one.running or one.waiting:
        while pending and pending[0].at <= now:
            first = pending.pop(0)
            asked = first.prompt.features.input_tokens
            ask = Ask(prompt_tokens=asked, output_tokens=first.tokens, task=first.prompt.task, seed=len(pending))
            running.append((first.at, one.submit(ask, first.at)))
        step = one.step(now)
        now = step[0] if step else pending[0].at
    return [(_time(sequence.first_token) - at, _time(sequence.ended) - at) for at, sequence in running]


def _time(known: float | None) -> float:
    assert known is not None
    return known


@pytest.mark.parametrize(("k", "rate"), [(0, 4.0), (0, 20.0), (2, 4.0), (2, 16.0)])
def test_jumps_end_where_steps_end(k: int, rate: float) -> None:
    """First tokens and whole answers of both engines agree within 3 % in the mean, at light and heavy load, with and
    without drafting."""
    jobs = poisson(300, (8, 64, 300)).at_rate(rate)
    expected = stepped(jobs, k)
    done = play(engine(k), poisson(300, (8, 64, 300)).at_rate(rate))

    assert len(done) == 300
    assert sum(one.first - one.at for one in done) == pytest.approx(sum(first for first, _ in expected), rel=0.03)
    assert sum(one.ended - one.at for one in done) == pytest.approx(sum(whole for _, whole in expected), rel=0.03)


def test_a_lone_request_takes_its_prefill_and_its_steps() -> None:
    """No queue, no neighbours: the profile's own times."""
    (done,) = play(engine(), [job(5.0, 101)])

    assert done.first - 5.0 == pytest.approx(E4B.prefill_seconds(256))
    assert done.ended - done.first == pytest.approx(100 * E4B.step_seconds(1, 0, 307))


@pytest.mark.parametrize(("number", "k"), [(1, 0), (8, 0), (8, 2), (40, 2)])
def test_a_newcomer_waits_for_the_step_that_is_fixed(number: int, k: int) -> None:
    """Beside answers that run, the first token comes after the rest of a step, a whole one and the prompt's own; with
    arrivals all over a step that is the profile's mean."""
    waits, draws = [], 20
    for draw in range(draws):
        one = engine(k)
        for _ in range(number):
            one.submit(job(0.0, 100), 0.0)
        while one._joining or one._next:
            one.advance()
        start, step = one._from, one._each
        newcomer = job(start + (5 + (draw + 0.5) / draws) * step, 8)
        one.submit(newcomer, newcomer.at)
        while not newcomer.first:
            one.advance()
        waits.append(newcomer.first - newcomer.at)

        # The second step after the one it came in.
        assert newcomer.first - start == pytest.approx(8 * step + E4B.prefill_stall_seconds(256, k), rel=0.02)
    assert sum(waits) / draws == pytest.approx(E4B.ttft(256, number, k), rel=0.07)


def test_who_comes_while_a_prompt_is_fixed_joins_one_step_later() -> None:
    """One step each for two that come in neighbouring steps, one step for two that come in the same."""
    firsts = []
    for apart in (0.2, 1.0):
        one = engine()
        one.submit(job(0.0, 400), 0.0)
        one.advance()
        first, second = (job(one._from + (3.4 + later) * one._each, 8) for later in (0.0, apart))
        for newcomer in (first, second):
            while one.next_at < newcomer.at:
                one.advance()
            one.submit(newcomer, newcomer.at)
        while not second.first:
            one.advance()
        firsts.append(second.first - first.first)

    assert firsts[0] == 0.0
    assert firsts[1] > E4B.prefill_stall_seconds(256)


def test_seats_are_respected() -> None:
    """The request that finds no seat waits for one."""
    done = play(engine(seats=2), [job(0.0, 100), job(0.0, 50), job(0.0, 10)])

    assert [one.tokens for one in done] == [50, 10, 100]
    assert done[1].first > done[0].ended


def test_the_cache_is_respected_and_a_giant_still_runs_alone() -> None:
    """A request that does not fit beside others waits; one that never fits runs when the engine is empty."""
    done = play(engine(kv_tokens=1000), [job(0.0, 100), job(0.0, 900), job(0.0, 100)])

    assert [one.tokens for one in done] == [100, 900, 100]
    assert done[1].first > done[0].ended


def test_long_prompts_are_computed_in_pieces() -> None:
    """A prompt beyond the token budget takes several steps, together as long as if computed in one."""
    done = play(engine(), [job(0.0, 400), job(0.5, 5, input_tokens=40_000)])
    long = next(one for one in done if one.tokens == 5)
    (alone,) = play(engine(), [job(0.0, 5, input_tokens=40_000)])
    ((first, _),) = stepped([job(0.0, 5, input_tokens=40_000)], 0)

    assert long.first - 0.5 > E4B.prompt_seconds(40_000)
    assert alone.first == pytest.approx(E4B.prefill_seconds(40_000))
    assert first == pytest.approx(E4B.prefill_seconds(40_000))


def test_a_later_turn_pays_for_its_attention_over_the_cached_ones() -> None:
    """What is cached is not computed again, but new tokens see it."""
    first, turn = (job(at, 5, input_tokens=tokens) for at, tokens in ((0.0, 12_000), (9.0, 14_000)))
    first.thread = turn.thread = 1
    play(engine(), [first, turn])

    assert turn.cached == 12_005
    assert turn.first - 9.0 == pytest.approx(E4B.prefill_seconds(0) + E4B.prompt_seconds(1_995, 12_005))
    assert turn.first - 9.0 > 1.5 * E4B.prefill_seconds(1_995)


def test_a_batch_size_table_drops_drafting_in_large_batches() -> None:
    """With K = 0 above 4 streams a batch of 8 runs at the plain speed and the drafter's tax."""
    jobs = [job(0.0, 300) for _ in range(8)]
    table, plain, drafting = engine(2, k_by_batch=((4, 2), (256, 0))), engine(), engine(2)
    means = [sum(one.ended for one in play(of, [job(0.0, 300) for _ in jobs])) / 8 for of in (table, plain, drafting)]

    assert means[1] < means[0] < 1.2 * means[1]
    assert means[2] < means[1]


def test_better_drafts_take_fewer_steps() -> None:
    """Acceptance decides, not the profile's."""
    ends = [play(engine(2, quality=q), [job(0.0, 500, Random(3))])[0].ended for q in (0.1, 1.0, 1.5)]

    assert ends[0] > ends[1] > ends[2]


def test_a_drafter_that_stops_fitting_slows_what_runs() -> None:
    """Steps to go are counted anew when the acceptance changes."""
    slow, steady = engine(2), engine(2)
    for of in (slow, steady):
        of.submit(job(0.0, 500), 0.0)
        of.advance()
    slow.speeds.set_quality(0.05)
    slow.retune()
    slow.submit(job(0.1, 2), 0.1)
    steady.submit(job(0.1, 2), 0.1)

    assert _last(slow) > 1.3 * _last(steady)


def _last(of: object) -> float:
    ended = 0.0
    while of.busy:  # type: ignore[attr-defined]
        for one in of.advance():  # type: ignore[attr-defined]
            ended = one.ended
    return ended


def test_a_conversation_finds_its_prefix() -> None:
    """The second turn computes only what is new."""
    one = engine()
    first, second = job(0.0, 10, input_tokens=8000), job(60.0, 10, input_tokens=8200)
    first.thread = second.thread = 7
    play(one, [first, second])

    assert (first.cached, second.cached) == (0, 8010)
    assert second.first - second.at < 0.5 * (first.first - first.at)


def test_neighbours_on_one_gpu_slow_each_other() -> None:
    """Time slices: half the speed while the other one works."""
    alone = play(engine(), [job(0.0, 400)])[0].ended
    first, second = engine(), engine()
    first.neighbours, second.neighbours = (second,), (first,)
    second.submit(job(0.0, 4000), 0.0)
    first.submit(job(0.0, 400), 0.0)
    ended = 0.0
    while first.busy:
        nearest = min((first, second), key=lambda one: one.next_at)
        ended = max([ended, *(one.ended for one in nearest.advance() if one.tokens == 400)])

    assert ended == pytest.approx(2 * alone, rel=0.05)


def test_counters_show_the_mean_acceptance_length() -> None:
    """What a scrape would say is what the profile says."""
    one = engine(2)
    play(one, [job(0.1 * at, 200, Random(at), task=Task.CODE) for at in range(50)])

    assert one.accepted / one.drafts == pytest.approx(E4B.mean_acceptance_length(Task.CODE, 2), rel=0.01)


def test_an_idle_engine_has_no_next_event() -> None:
    """Nothing to do is infinitely far away."""
    assert engine().next_at == math.inf
