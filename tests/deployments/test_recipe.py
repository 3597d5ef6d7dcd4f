"""What a recipe says, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.deployments.recipe import STEPS_AHEAD, Recipe, Refused
from gateway.policy.sections import Limits
from tests.deployments.commands import recipe_for, recipes

ACCEPTED: dict[str, dict[str, list[str]]] = json.loads(Path(__file__).with_name("vllm_flags.json").read_text("utf-8"))
"""By version of vLLM: what its own parser takes, as recorded by vllm_parser.py."""

EVERY = list(recipes())


def made(words: str) -> Recipe:
    return recipe_for(words.split())


def value(recipe: Recipe, name: str) -> str | None:
    return next((flag[1] for flag in recipe.flags if flag[0] == name), None)


def speculative(recipe: Recipe) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(value(recipe, "--speculative-config") or "{}")
    return found


def refusal(words: str) -> Refused:
    with pytest.raises(Refused) as caught:
        made(words)
    return caught.value


@pytest.mark.parametrize("version", sorted(ACCEPTED))
@pytest.mark.parametrize("recipe", EVERY, ids=lambda recipe: f"{recipe.wish.model.name}-{recipe.wish.place.name}")
def test_vllm_knows_every_flag(recipe: Recipe, version: str) -> None:
    """Each flag is one of vLLM's, with a value exactly where vLLM takes one; so is each key of the speculation."""
    known = ACCEPTED[version]

    for flag in recipe.flags:
        assert flag[0] in known["switches" if len(flag) == 1 else "options"]
    assert set(speculative(recipe)) <= set(known["speculative_config"])


def test_the_default_version_is_a_checked_one() -> None:
    """Without --vllm a recipe is for a version whose parser was asked."""
    assert str(made("E4B --slice 1g.24gb").wish.version) in ACCEPTED


@pytest.mark.parametrize("recipe", EVERY, ids=lambda recipe: f"{recipe.wish.model.name}-{recipe.wish.place.name}")
def test_limits_are_explicit(recipe: Recipe) -> None:
    """A slice may look like a whole card to vLLM, so sequences and tokens of a step are always said."""
    assert value(recipe, "--max-num-seqs") == str(recipe.wish.load.sequences)
    assert value(recipe, "--max-num-batched-tokens") == str(recipe.wish.load.batched_tokens)
    assert value(recipe, "--max-model-len")
    assert ("--enable-prefix-caching",) in recipe.flags


def test_the_gateways_limit_on_prompts_follows_the_steps_size() -> None:
    """Usual steps are what the policy's default stands for; of others a note says the limit that fits them."""
    usual, small = made("E4B --slice 1g.24gb"), made("E4B --slice 1g.24gb --max-num-batched-tokens 2048")

    assert Limits().prefill == STEPS_AHEAD * usual.wish.load.batched_tokens
    assert not any("prefill" in note for note in usual.notes)
    assert any("limits: {prefill: 3072}" in note for note in small.notes)


@pytest.mark.parametrize("recipe", EVERY, ids=lambda recipe: f"{recipe.wish.model.name}-{recipe.wish.place.name}")
def test_no_device_is_named(recipe: Recipe) -> None:
    """CUDA_VISIBLE_DEVICES is never set, least of all to a MIG UUID."""
    assert "CUDA_VISIBLE_DEVICES" not in dict(recipe.environment)
    assert not any("MIG-" in word for word in recipe.arguments)


def test_mtp_and_plain_differ_by_the_drafter_alone() -> None:
    """Both recipes of a model on a slice are the same but for speculation, so that pools can be compared."""
    mtp, plain = made("E4B --slice 1g.24gb"), made("E4B --slice 1g.24gb --plain")

    assert [flag for flag in mtp.flags if flag not in plain.flags] == [
        ("--per-request-spec-decode-metrics", "summary"),
        ("--speculative-config", value(mtp, "--speculative-config")),
    ]
    assert set(plain.flags) <= set(mtp.flags)
    assert speculative(mtp)["model"] == "google/gemma-4-E4B-it-assistant"
    assert speculative(mtp)["num_speculative_tokens"] == 2


def test_the_guard_reaches_vllm() -> None:
    """The table by batch size starts at the engine's depth and ends shallower; --no-guard leaves it out."""
    table = speculative(made("E4B --slice 2g.48gb --max-num-seqs 512"))["num_speculative_tokens_per_batch_size"]

    assert table[0][0] == 1
    assert table[0][2] == 2
    assert table[-1][1:] == [512, 0]
    unguarded = made("E4B --slice 2g.48gb --max-num-seqs 512 --no-guard")
    assert "num_speculative_tokens_per_batch_size" not in speculative(unguarded)


def test_a_guard_that_never_acts_is_left_out() -> None:
    """Where drafting pays for as many sequences as the engine takes, there is no table, and a note says up to where."""
    recipe = made("E4B --slice 1g.24gb --max-num-seqs 128")

    assert "num_speculative_tokens_per_batch_size" not in speculative(recipe)
    assert any("up to 128 sequences" in note for note in recipe.notes)


def test_old_engines_get_no_guard() -> None:
    """Where vLLM does not heed the table for Gemma 4 it is left out, and the recipe says so."""
    recipe = made("E4B --slice 1g.24gb --vllm 0.32.0")

    assert "num_speculative_tokens_per_batch_size" not in speculative(recipe)
    assert any("0.33.0" in note for note in recipe.notes)


@pytest.mark.parametrize(
    ("words", "broken"),
    [
        ("26B-A4B --vllm 0.25.0", True),
        ("26B-A4B --vllm 0.25.1", True),
        ("26B-A4B --vllm 0.25.1 --plain", False),
        ("26B-A4B --vllm 0.26.0", False),
        ("E4B --vllm 0.25.1", False),
        ("E4B --vllm 0.20.1", True),
        ("E4B --vllm 0.22.1", True),
        ("E4B --vllm 0.22.1 --plain", False),
        ("12B --vllm 0.22.1 --plain", True),
        ("12B --vllm 0.23.0 --plain", False),
        ("E4B --vllm 0.27.0 --plain", True),
        ("E4B --vllm 0.27.1", False),
    ],
)
def test_broken_versions_are_refused(words: str, broken: bool) -> None:
    """A version known broken for the model is refused, with one that works; the versions beside it are not."""
    if broken:
        assert "known broken" in refusal(f"{words} --slice 4g.96gb").why
    else:
        assert made(f"{words} --slice 4g.96gb").target


def test_what_works_instead_does() -> None:
    """The version that a refusal names is accepted; the plain engine is offered only where it is not broken too."""
    mtp, plain = refusal("26B-A4B --slice 4g.96gb --vllm 0.25.1"), refusal("12B --slice 4g.96gb --vllm 0.22.1 --k 4")

    assert mtp.instead == ("--vllm 0.29.0 or newer", "--plain")
    assert made("26B-A4B --slice 4g.96gb --vllm 0.29.0").mtp
    assert "--plain" not in plain.instead


def test_the_runner_is_chosen_where_it_matters() -> None:
    """Model runner V2 is asked for by name on the MoE and before it is the default."""

    def runner(words: str) -> str | None:
        return dict(made(f"{words} --slice 4g.96gb").environment).get("VLLM_USE_V2_MODEL_RUNNER")

    assert runner("26B-A4B") == "1"
    assert runner("26B-A4B --plain") is None
    assert runner("E4B --vllm 0.26.0") == "1"
    assert runner("E4B --vllm 0.29.0") is None


@pytest.mark.parametrize(
    "words",
    [
        "E4B --slice 1g.24gb --context 65536",
        "E4B --slice 1g.24gb --concurrency 64",
        "12B --slice 1g.24gb",
        "26B-A4B --slice 1g.24gb --weights nvfp4",
        "31B --slice 2g.48gb --weights nvfp4",
        "31B --slice 4g.96gb",
        "31B --slice 1g.24gb",
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(words: str) -> None:
    """The sum is shown, and every change that the refusal offers makes it fit."""
    refused = refusal(words)

    assert refused.memory is not None
    assert refused.memory.total > refused.memory.budget
    assert refused.instead
    for change in refused.instead:
        assert made(f"{words} {change}").memory.fits


def test_the_quarter_slice_holds_what_the_guide_ran_on_it() -> None:
    """E4B in bf16 with a drafter and 16384 tokens of context fits a quarter of a card at a share of 0.9."""
    recipe = made("E4B --slice 1g.24gb --context 16384")

    assert recipe.memory.fits
    assert value(recipe, "--gpu-memory-utilization") == "0.9"


def test_the_moe_fits_a_quarter_only_in_nvfp4() -> None:
    """26B-A4B on 24 GB: with NVFP4 weights, and little cache; FP8 alone is larger than the slice."""
    assert made("26B-A4B --slice 1g.24gb --weights nvfp4 --plain --concurrency 2 --context 4096").memory.fits
    assert refusal("26B-A4B --slice 1g.24gb --weights fp8 --plain --concurrency 1 --context 2048").memory


def test_weights_that_nobody_published_are_refused() -> None:
    """NVFP4 of a model without a known checkpoint asks for the user's own."""
    assert "--checkpoint" in refusal("E4B --slice 1g.24gb --weights nvfp4").instead[0]


def test_a_context_beyond_the_model_is_refused() -> None:
    """E4B is made for 131072 tokens."""
    assert refusal("E4B --slice dgx-spark --context 200000").instead == ("--context 131072",)


def test_a_checkpoint_of_ones_own_is_served() -> None:
    """Own weights and assistant take the place of the published ones, and are not quantised again."""
    recipe = made("E4B --slice 1g.24gb --checkpoint /models/e4b --weights-gb 9.5 --assistant /models/drafter")

    assert recipe.target == "/models/e4b"
    assert speculative(recipe)["model"] == "/models/drafter"
    assert recipe.memory.rows[0].gib == pytest.approx(9.5e9 / 2**30)


def test_unchecked_versions_say_so() -> None:
    """A version whose parser was not asked is noted; a checked one is not."""
    assert any("flags were checked" in note for note in made("E4B --slice 1g.24gb --vllm 0.30").notes)
    assert not any("flags were checked" in note for note in made("E4B --slice 1g.24gb").notes)
