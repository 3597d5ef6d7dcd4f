"""Speed profiles: the step-time model against the published and measured figures it stands for."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gateway.deployments.catalog import catalog
from gateway.profiles import (
    MAX_DRAFT_TOKENS,
    Acceptance,
    ProfileError,
    UnknownProfile,
    builtin_catalog,
    get_profile,
    match_profile,
    parse_catalog,
)
from gateway.types import Task

# Measured decode steps, milliseconds, by k and streams, at a context of about 384 (k even) or 320 (k odd) tokens.
H200_STEPS = {
    "e4b": {
        0: {1: 4.61, 4: 4.70, 16: 5.06, 64: 6.38, 128: 7.25, 256: 10.19},
        1: {1: 5.81, 4: 5.91, 16: 6.20, 64: 7.26, 128: 10.35, 256: 14.75},
        2: {1: 6.35, 4: 6.46, 16: 6.84, 64: 8.81, 128: 11.81, 256: 20.92},
        4: {1: 6.70, 4: 7.00, 16: 7.65, 64: 11.59, 128: 18.35, 256: 34.74},
    },
    "26b-a4b": {
        0: {1: 4.05, 4: 6.32, 16: 11.24, 64: 16.65, 128: 19.5, 256: 24.88},
        1: {1: 6.01, 4: 9.09, 16: 14.29, 64: 17.64, 128: 20.60, 256: 27.42},
        2: {1: 7.25, 4: 11.11, 16: 16.21, 64: 19.25, 128: 23.79, 256: 35.14},
        4: {1: 9.20, 4: 13.95, 16: 17.83, 64: 22.26, 128: 30.85, 256: 45.67},
    },
}
ARTICLE = {"e4b": (2.10, 39.0), "26b-a4b": (1.71, 47.9), "31b": (1.91, 12.5)}


@pytest.mark.parametrize(
    ("model", "k", "streams", "measured"),
    [(m, k, b, ms) for m, ks in H200_STEPS.items() for k, row in ks.items() for b, ms in row.items()],
)
def test_h200_steps_are_within_the_fits_own_error(model: str, k: int, streams: int, measured: float) -> None:
    """Every measured step comes out within the fit's stated worst error, and a little for rounding."""
    step = get_profile("h200", model).step_seconds(streams, k, 384 if k % 2 == 0 else 320)

    assert step * 1000 == pytest.approx(measured, rel=0.085)


@pytest.mark.parametrize("model", ARTICLE)
def test_dgx_spark_reproduces_the_article(model: str) -> None:
    """One client writing long form gets the article's speed-up and tokens a second."""
    speedup, tokens_per_second = ARTICLE[model]
    profile = get_profile("dgx-spark", model)

    assert profile.speedup(Task.LONG_FORM, 1, 3, 200) == pytest.approx(speedup, rel=0.01)
    assert 1 / profile.tpot(Task.LONG_FORM, 1, 3, 200) == pytest.approx(tokens_per_second, rel=0.01)


def test_dgx_spark_moe_loses_on_a_short_answer() -> None:
    """A two-token answer to a few-shot question is slower with drafting on the MoE, about the article's 0.81x."""
    profile = get_profile("dgx-spark", "moe")
    plain = profile.ttft(400, 0) + profile.step_seconds(1, 0)
    drafting = profile.ttft(400, 0, 3) + profile.step_seconds(1, 3)

    assert plain / drafting == pytest.approx(0.81, abs=0.05)


@pytest.mark.parametrize(("k", "change"), [(1, -0.07), (2, -0.14)])
def test_g4_slice_reproduces_the_guide(k: int, change: float) -> None:
    """Concurrent mixed prompts gain what the guide says, within 2 points."""
    profile = get_profile("g4-slice", "e4b")

    assert profile.tpot(Task.CHAT, 8, k) / profile.tpot(Task.CHAT, 8, 0) - 1 == pytest.approx(change, abs=0.02)


def test_g4_slice_gains_nothing_beyond_two_drafts() -> None:
    """The third draft does not pay under concurrent traffic."""
    profile = get_profile("g4-slice", "e4b")

    assert min(range(5), key=lambda k: profile.tpot(Task.CHAT, 8, k)) == 2


def test_dense_and_moe_are_opposite_under_load() -> None:
    """For prose the dense model gains at one stream and loses at 256; the MoE loses at one and gains at 64."""
    dense, moe = get_profile("h200", "dense"), get_profile("h200", "moe")

    assert dense.speedup(Task.CHAT, 1, 2) > 1.15
    assert dense.speedup(Task.CHAT, 256, 2) < 1
    assert moe.speedup(Task.CHAT, 1, 2) < 1
    assert moe.speedup(Task.CHAT, 64, 2) > 1.3


@pytest.mark.parametrize("hardware", builtin_catalog().hardware())
def test_every_profile_is_sane(hardware: str) -> None:
    """Steps are positive and grow with batch, k and context; code drafts better than prose, prose better than JSON."""
    for model in builtin_catalog().models(hardware):
        profile = get_profile(hardware, model)

        assert profile.source
        assert profile.moe == (model == "26b-a4b")
        assert 0 < profile.step_seconds(1, 0) < profile.step_seconds(2, 0) < profile.step_seconds(2, 0, 4096)
        assert profile.step_seconds(4, 0) < profile.step_seconds(4, 1) < profile.step_seconds(4, MAX_DRAFT_TOKENS)
        lengths = [profile.mean_acceptance_length(t, 2) for t in (Task.STRUCTURED_JSON, Task.CHAT, Task.CODE)]
        assert 1 < lengths[0] < lengths[1] < lengths[2] < 3
        assert profile.ttft(100, 0) < profile.ttft(1000, 0)
        assert profile.ttft(256, 0) < profile.ttft(256, 32) < profile.ttft(4000, 32)
        assert profile.prefill_seconds(256, 0) < profile.prefill_seconds(256, 2)
        assert all(profile.acceptance(task, 2) for task in Task)


@pytest.mark.parametrize("k", [0, 2])
def test_the_first_token_lies_between_what_answers_of_one_and_of_eight_tokens_took(k: int) -> None:
    """On an idle H200 an answer that goes on had its first token later than one of a single token."""
    one, eight = {("e4b", 0): (13.4, 22.5), ("e4b", 2): (17.0, 29.3)}["e4b", k]

    assert one <= get_profile("h200", "e4b").prefill_seconds(256, k) * 1000 <= eight
    assert get_profile("h200", "26b-a4b").prefill_seconds(256, k) * 1000 == pytest.approx(22.7, rel=0.1)


def test_arithmetic_hides_the_fixed_part_of_a_busy_engines_prompts() -> None:
    """Prompts that fill a step cost their arithmetic, a short one its fixed part; an idle engine pays both."""
    profile = get_profile("h200", "e4b")
    long = profile.prompt_seconds(8192)

    assert profile.prefill_stall_seconds(8192) == profile.prompt_step_seconds(long, pause=False) == long
    assert profile.prompt_step_seconds(0.0, pause=False) == profile.prefill_seconds(0)
    assert profile.prefill_seconds(8192) > long
    assert profile.prefill_stall_seconds(1) == profile.prefill_stall_seconds(256) == profile.prefill.stall / 1000


@pytest.mark.parametrize("tokens", [100, 511, 512, 700, 5000])
def test_each_token_of_a_prompt_attends_to_those_before_it(tokens: int) -> None:
    """In full layers to all of them, in sliding ones to a window's."""
    profile = get_profile("h200", "e4b")
    p, window = profile.prefill, profile.attention.window
    seen = sum(p.local * min(at, window) + (1.0 - p.local) * at for at in range(tokens))
    expected = tokens / p.tokens_per_second + p.context * seen / 1e9

    assert p.context > 0.0
    assert profile.prompt_seconds(tokens) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("model", ["e4b", "26b-a4b"])
def test_a_prompt_in_pieces_takes_as_long_as_in_one(model: str) -> None:
    """A piece behind others takes longer than alone, and all of them what the whole takes."""
    profile = get_profile("h200", model)
    ends = (0, 300, 600, 1000, 4000, 8000)
    behind = [profile.prompt_seconds(end - start, start) for start, end in pairwise(ends)]
    alone = [profile.prompt_seconds(end - start) for start, end in pairwise(ends)]

    assert sum(behind) == pytest.approx(profile.prompt_seconds(8000))
    assert behind[0] == alone[0]
    assert all(one > other for one, other in zip(behind[1:], alone[1:], strict=True))


def test_a_prompts_attention_is_what_its_model_makes_of_the_same_kernel() -> None:
    """The H200's coefficients follow from E4B's by the models' query heads, layers and sizes of a head."""
    for model in catalog().models.values():
        profile, shape = get_profile("h200", model.profile), model.shape
        wide = shape.layers // shape.period
        near, far = shape.heads * (shape.layers - wide) * shape.head, shape.heads * wide * shape.global_head

        assert profile.prefill.local == pytest.approx(near / (near + far), abs=1e-5)
        assert profile.prefill.context == pytest.approx(4.7 * (near + far) / 100_352, rel=0.02)


def test_acceptance_is_extended_by_its_own_decay() -> None:
    """Positions beyond the given ones fall on by the last ratio, and lengths are one plus the rates before."""
    acceptance = Acceptance.of((0.8, 0.4))

    assert acceptance.rates[:4] == pytest.approx((0.8, 0.4, 0.2, 0.1))
    assert acceptance.lengths[:4] == pytest.approx((1.0, 1.8, 2.2, 2.4))


@pytest.mark.parametrize("rates", [(), (1.2,), (-0.1,), (0.2, 0.3)])
def test_impossible_acceptance_is_refused(rates: tuple[float, ...]) -> None:
    """Rates outside 0..1, or rising with the position, are no unconditional acceptance."""
    with pytest.raises(ValueError, match="acceptance"):
        Acceptance.of(rates)


@pytest.mark.parametrize(
    ("name", "architecture", "expected"),
    [
        ("gemma-4-e4b", None, "e4b"),
        ("google/gemma-4-E4B-it", "dense", "e4b"),
        ("gemma4_e2b", None, "e2b"),
        ("gemma-4-12b-it", "dense", "12b"),
        ("google/gemma-4-26B-A4B-it", None, "26b-a4b"),
        ("gemma-4-26b", "moe", "26b-a4b"),
        ("gemma-4-31b", "dense", "31b"),
        ("our-model", "moe", "26b-a4b"),
        ("our-model", None, "e4b"),
        ("our-31b-experts", "moe", "26b-a4b"),
    ],
)
def test_a_model_is_matched_by_size_then_architecture(name: str, architecture: str | None, expected: str) -> None:
    """A size in the name wins unless the stated architecture contradicts it."""
    assert match_profile("h200", name, architecture).model == expected


def test_hardware_may_name_the_model_too() -> None:
    """`h200/26b-a4b` settles the model whatever it is called."""
    assert match_profile("h200/26b-a4b", "gemma-4-e4b").model == "26b-a4b"


def test_unknown_names_list_the_known_ones() -> None:
    """The error names what there is."""
    with pytest.raises(UnknownProfile, match="no profile 'h100'; there are: h200, g4-slice, dgx-spark"):
        get_profile("h100", "e4b")
    with pytest.raises(UnknownProfile, match="it has: e2b, e4b, 12b, 26b-a4b, 31b, moe, dense"):
        get_profile("h200", "70b")


@pytest.mark.parametrize(
    "text",
    [
        "[1",
        "[]",
        "hardware: {x: {models: {e4b: {}}}}",
        "hardware: {x: {acceptance: {prose: 2}, source: s, models: {m: {}}}}",
    ],
)
def test_a_broken_profile_file_is_one_error(text: str) -> None:
    """Whatever is wrong with a file, it is a ProfileError."""
    with pytest.raises(ProfileError):
        parse_catalog(text)


def test_an_unknown_term_in_a_profile_file_is_named() -> None:
    """A misspelt coefficient is not silently zero."""
    text = """
    hardware:
      x:
        acceptance: {prose: 0.5, math: 0.5, code: 0.5, json: 0.5}
        source: s
        models:
          m: {decode: {base: 1, tokens: 2}, prefill: {fixed: 1, stall: 1, tokens_per_second: 1}}
    """
    with pytest.raises(ProfileError, match="decode has no tokens"):
        parse_catalog(text)
