"""Speed curves: what they learn from outcomes, how fast, and what they do not let themselves be told."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from random import Random

import pytest

from gateway.profiles import Profile, get_profile
from gateway.routing.curve import Curve
from gateway.routing.curves import Curves
from gateway.types import CostTerms, Decision, Features, Outcome, PoolCost, PoolKind, PoolLoad, Reason, Result, Task
from tests.routing.worlds import G4, MODEL, Clock, estimate, outcome, request, slower

POOL = "mtp"


class Lab:
    """One curve, and an engine that answers by the profile `truth` beside a chosen number of others."""

    def __init__(self, truth: Profile = G4, k: int = 2, start: Profile = G4) -> None:
        self.clock = Clock()
        self.curves = Curves(self.clock)
        self.curve = self.curves.curve(POOL, MODEL, start, k)
        self.truth = truth
        self.k = k
        self.rng = Random(5)

    def serve(
        self,
        number: int,
        tokens: int = 200,
        others: int = 4,
        task: Task = Task.CHAT,
        noise: float = 0.1,
        features: Features | None = None,
        **more: object,
    ) -> None:
        features = features or request()
        for _ in range(number):
            self.clock.now += 0.5
            self.curves.observe(self.outcome(features, tokens, others, task, noise, **more))

    def outcome(
        self, features: Features, tokens: int, others: int, task: Task, noise: float, **more: object
    ) -> Outcome:  # fmt: skip
        factor = self.rng.uniform(1 - noise, 1 + noise)
        each = self.truth.tpot(task, others + 1, self.k) * factor
        first = self.truth.ttft(features.input_tokens, others, self.k) * factor
        begun = CostTerms(others, 0.0, first, 0.0, 0.0, 0.0)
        costs = (PoolCost(POOL, PoolKind.MTP, 1.0, None, begun),)
        decision = Decision(model=MODEL, pool=POOL, reason=Reason.FASTER, costs=costs)
        given = {"tokens": tokens, "each": each, "first": first, **more}
        return outcome(features, estimate(tokens, task), decision, now=self.clock.now, **given)  # type: ignore[arg-type]

    def per_token(self, others: int = 4, task: Task = Task.CHAT) -> float:
        return self.curve.decode_seconds(1001, task, others) / 1000


@pytest.mark.parametrize("factor", [0.5, 2.0, 3.0])
def test_a_wrong_profile_is_corrected_within_forty_requests(factor: float) -> None:
    """SPEC-06: the measured speed counts, not the profile's."""
    lab = Lab(slower(G4, factor))
    lab.serve(40)

    assert lab.per_token() == pytest.approx(lab.truth.tpot(Task.CHAT, 5, 2), rel=0.1)


def test_what_is_learned_at_one_load_holds_at_others_until_they_are_seen() -> None:
    """The height of the curve is learned before its shape."""
    lab = Lab(slower(G4, 2.0))
    before = lab.per_token(others=40)
    lab.serve(60)

    assert lab.per_token(others=40) > 1.5 * before


def test_answers_in_one_piece_teach_as_well() -> None:
    """Without a stream only the total time is known; it is shared between both curves."""
    lab = Lab(slower(G4, 2.0))
    lab.serve(80, features=request(stream=False))

    assert lab.per_token() == pytest.approx(lab.truth.tpot(Task.CHAT, 5, 2), rel=0.12)


def test_one_outlier_moves_little() -> None:
    """A request that hung for an hour says something about itself, not about the pool."""
    lab = Lab()
    lab.serve(60)
    before = lab.per_token()
    lab.serve(1, each=20.0)

    assert lab.per_token() == pytest.approx(before, rel=0.03)


def test_a_restart_with_other_speed_is_noticed_and_the_past_forgotten() -> None:
    """A curve that is wrong is forgotten within some requests, not averaged away over hundreds."""
    lab = Lab()
    lab.serve(200)
    lab.truth = slower(G4, 2.0)
    lab.serve(30)

    assert lab.curve.tpot.changes >= 1
    assert lab.per_token() == pytest.approx(lab.truth.tpot(Task.CHAT, 5, 2), rel=0.15)


def test_steady_noise_is_no_change() -> None:
    """No alarm over two thousand requests that are just noisy."""
    lab = Lab()
    lab.serve(2000, noise=0.3)

    assert lab.curve.tpot.changes == 0


def test_uncertainty_falls_with_observations_and_rises_again_in_silence() -> None:
    """What is not measured for long is not known any more, and the profile counts again."""
    lab = Lab(slower(G4, 2.0))
    cold = lab.curve.uncertainty
    lab.serve(50)
    warm, learned = lab.curve.uncertainty, lab.per_token()
    lab.clock.now += 6 * 3600
    lab.curves.observe(outcome(request(), estimate(10), Decision(model="x", pool="x", reason=Reason.TIE)))

    assert warm < 0.3 * cold
    assert lab.curve.uncertainty > 0.9 * cold
    assert lab.per_token() < 0.8 * learned


@pytest.mark.parametrize(
    "spoil",
    [
        {"result": Result.BACKEND_ERROR},
        {"attempts": 2},
        {"usage": None},
        {"sent_upstream": None},
        {"decision": None},
        {"features": None},
    ],
)
def test_failed_retried_and_uncounted_requests_teach_nothing(spoil: dict[str, object]) -> None:
    """What cannot be measured, or is another endpoint's fault, does not count."""
    lab = Lab(slower(G4, 4.0))
    before = lab.per_token()
    for _ in range(20):
        seen = lab.outcome(request(), 200, 4, Task.CHAT, 0.0)
        lab.curves.observe(replace(seen, **spoil))  # type: ignore[arg-type]

    assert lab.per_token() == before


def test_measured_acceptance_scales_the_time_per_token() -> None:
    """What counters say about drafts holds for every task, and for nothing without a drafter."""
    lab = Lab()
    before = lab.per_token()
    lab.curves.accept(POOL, 1.1)
    plain = Lab(k=0)
    plain.curves.accept(POOL, 1.1)

    assert lab.per_token() > 1.4 * before
    assert plain.per_token() == pytest.approx(G4.tpot(Task.CHAT, 5, 0), rel=0.01)


@pytest.mark.parametrize("length", [0.0, 0.99, 3.5, float("nan"), float("inf")])
def test_impossible_acceptance_is_ignored(length: float) -> None:
    """Counters that were misread do not reach the decision."""
    lab = Lab()
    before = lab.per_token()
    lab.curves.accept(POOL, length)

    assert lab.per_token() == before


def test_another_process_hears_what_one_has_learned() -> None:
    """A replica that starts knows what the others know; hearing twice is hearing once."""
    lab, other = Lab(slower(G4, 2.0)), Lab()
    lab.serve(60)
    for _ in range(3):
        other.curves.merge({"a": lab.curves.snapshot(), "own": b"not even read"}, own="own")

    assert other.per_token() == pytest.approx(lab.per_token(), rel=0.1)
    assert other.curve.uncertainty < 0.5 * Lab().curve.uncertainty


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"format": 1, "at": 1}',
        b'{"format": 2, "at": 1, "curves": {"mtp\\u001fgemma-4-e4b": 5}}',
    ],
)
def test_broken_snapshots_say_nothing(blob: bytes) -> None:
    """A snapshot of another version, or half of one, is passed over."""
    lab = Lab()
    before = lab.per_token()
    lab.curves.merge({"a": blob})

    assert lab.per_token() == before


def test_what_a_replica_knew_that_is_gone_fades() -> None:
    """Its last snapshot stays in the store, and must not outweigh for ever what the living find out since."""
    gone, here = Lab(slower(G4, 3.0)), Lab()
    gone.serve(60)
    last = {f"gone-{number}": gone.curves.snapshot(at=1000.0) for number in range(5)}
    here.curves.merge({**last, "here": here.curves.snapshot(at=1000.0)}, own="here")
    soon = here.per_token()
    here.serve(60)
    here.curves.merge({**last, "here": here.curves.snapshot(at=1000.0 + 7200.0)}, own="here")

    assert soon > 2.0 * Lab().per_token()
    assert here.per_token() == pytest.approx(here.truth.tpot(Task.CHAT, 5, 2), rel=0.1)


def test_a_snapshot_for_another_depth_says_nothing() -> None:
    """What was learned with k=2 is not true of k=4."""
    lab, other = Lab(slower(G4, 2.0)), Lab(k=4)
    lab.serve(60)
    before = other.per_token()
    other.curves.merge({"a": lab.curves.snapshot()})

    assert other.per_token() == before
    assert set(json.loads(lab.curves.snapshot())) == {"format", "at", "curves"}


def test_a_reload_keeps_what_was_learned_unless_k_changed() -> None:
    """The same pool, model, profile and k are the same curve."""
    lab = Lab()

    assert lab.curves.curve(POOL, MODEL, G4, 2) is lab.curve
    assert lab.curves.curve(POOL, MODEL, G4, 3) is not lab.curve


def test_the_number_of_curves_is_bounded() -> None:
    """Policies that come and go do not fill the memory."""
    curves = Curves(Clock())
    for at in range(1100):
        curves.curve(f"pool{at}", MODEL, G4, 0)

    assert sum(1 for _ in curves) == 1024


def test_imposed_time_grows_with_those_who_run_and_is_nothing_on_an_idle_pool() -> None:
    """`fleet` counts what a request does to others: its prompt stalls them, its tokens slow their steps."""
    curve: Curve = Lab().curve
    imposed = [curve.terms(200, Task.CHAT, 256, PoolLoad(up=1, in_flight=n)).imposed for n in (0, 1, 8, 64)]

    assert imposed[0] == 0.0
    assert imposed == sorted(imposed)
    assert imposed[2] > 8 * G4.prefill_stall_seconds(0, 2)


def test_a_prompt_right_behind_another_shares_its_pause() -> None:
    """It stalls others by its tokens only; long prompts hide the pause anyway, and unknown times mean the average."""
    lab = Lab()

    def imposed(since: float | None, prompt: int = 64) -> float:
        return lab.curve.terms(2, Task.CHAT, prompt, PoolLoad(up=1, in_flight=2, since=since)).imposed

    assert imposed(0.0) == imposed(10.0) == imposed(None)
    lab.serve(40, tokens=20, others=2)
    between = [imposed(since) for since in (0.0, 0.02, 0.04, 10.0, 20.0)]
    assert between == sorted(between)
    assert between[-1] == between[-2] > imposed(None) > 2.0 * between[0]
    assert imposed(0.0, 8000) == imposed(10.0, 8000)


def test_a_cached_prefix_is_time_saved() -> None:
    """Tokens that are in the prefix cache are not computed."""
    curve = Lab().curve
    load = PoolLoad(up=1, in_flight=2)
    cold, warm = curve.terms(50, Task.CHAT, 8000, load), curve.terms(50, Task.CHAT, 8000, load, cached=7000)

    assert cold.first - warm.first == pytest.approx(warm.saved, rel=0.01)
    assert warm.saved == pytest.approx(7000 / G4.prefill.tokens_per_second, rel=0.01)


def test_a_long_prompts_attention_counts_in_its_own_time_and_in_the_others() -> None:
    """Twice the tokens are more than twice the work, for whoever sent them and for whoever runs beside them."""
    h200 = get_profile("h200", "e4b")
    idle, busy = PoolLoad(up=1, in_flight=0), PoolLoad(up=1, in_flight=8)

    def cost(tokens: int, load: PoolLoad, cached: float = 0.0) -> CostTerms:
        return Lab(h200, 0, h200).curve.terms(1, Task.CHAT, tokens, load, cached)

    none, one, two = (cost(tokens, busy) for tokens in (1, 10_000, 20_000))
    assert cost(20_000, idle).first == pytest.approx(h200.prefill_seconds(20_000))
    assert two.first - none.first == pytest.approx(h200.prompt_seconds(20_000), rel=0.01)
    assert two.first - none.first > 2.3 * (one.first - none.first)
    assert two.imposed - none.imposed > 2.3 * (one.imposed - none.imposed)

    warm = cost(20_000, idle, cached=19_000)
    assert warm.first == pytest.approx(h200.prefill_seconds(0) + h200.prompt_seconds(1_000, 19_000))
    assert warm.first == pytest.approx(Lab(h200, 0, h200).curve.first_seconds(1_000, 0, 19_000))
    assert warm.saved == pytest.approx(h200.prompt_seconds(19_000))


def test_a_pool_of_long_prompts_knows_what_share_of_its_time_they_take() -> None:
    """The arithmetic of those that joined, so more than ten times as much for prompts ten times as long."""
    h200 = get_profile("h200", "e4b")
    shares = []
    for tokens in (1_000, 10_000):
        lab = Lab(h200, 0, h200)
        lab.serve(200, tokens=20, features=request(input_tokens=tokens))
        shares.append(lab.curve.mix.prompts)

    assert shares[1] > 0.9 * h200.prompt_seconds(10_000) / 0.5
    assert shares[1] / shares[0] == pytest.approx(h200.prompt_seconds(10_000) / h200.prompt_seconds(1_000), rel=0.05)


def test_pools_on_the_same_hardware_believe_half_of_each_other() -> None:
    """A machine that is twice as slow as its profile is so for the pool that has served nothing yet, too."""
    lab = Lab(slower(G4, 2.0))
    other = lab.curves.curve("plain", MODEL, G4, 0)
    elsewhere = lab.curves.curve("far", MODEL, replace(G4, hardware="other"), 0)
    before = other.decode_seconds(100, Task.CHAT, 0), elsewhere.decode_seconds(100, Task.CHAT, 0)
    lab.serve(60)

    assert 1.1 * before[0] < other.decode_seconds(100, Task.CHAT, 0) < 1.6 * before[0]
    assert elsewhere.decode_seconds(100, Task.CHAT, 0) == before[1]


def test_a_profile_read_anew_is_the_same_profile() -> None:
    """A reload that reads a profile from its file again keeps what was learned."""
    lab = Lab()

    assert lab.curves.curve(POOL, MODEL, replace(G4), 2) is lab.curve


def test_a_plain_pools_speed_is_told_once_it_has_been_learned() -> None:
    """For the drafting pool's kind of requests; a profile alone is no comparison, and a drafting pool is not plain."""
    lab = Lab(slower(G4, 1.5), k=0)
    drafting = lab.curves.curve("other", MODEL, G4, 2)
    ask = {"plain": POOL, "drafting": "other", "model": MODEL, "tokens": 200.0, "running": 4.0}
    assert lab.curves.plain_speed(**ask) is None  # type: ignore[arg-type]

    lab.serve(60, noise=0.0)
    drafting.mix = copy(lab.curve.mix)
    found = lab.curves.plain_speed(**ask)  # type: ignore[arg-type]
    assert found is not None
    assert found[0] == pytest.approx(1.5 * G4.tpot(Task.CHAT, 5, 0), rel=0.05)
    assert 0.0 < found[1] < 0.05

    drafting.mix.context = 8000.0
    longer = lab.curves.plain_speed(**ask)  # type: ignore[arg-type]
    assert longer is not None
    assert longer[0] > 1.02 * found[0]
    assert lab.curves.plain_speed("other", POOL, MODEL, 200.0, 4.0) is None
    assert lab.curves.plain_speed("none", POOL, MODEL, 200.0, 4.0) is None
