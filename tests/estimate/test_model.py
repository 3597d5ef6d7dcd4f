"""The shipped prior: its file, its arithmetic, its refusal of other versions' files."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.estimate.model import LEARNED_SHARE, ModelError, Prior, load_prior
from gateway.estimate.signals import SIZE, log2p, signals
from gateway.types import Api, Features
from tests.estimate.synthetic import ask

_PRIOR = load_prior()


def test_the_file_is_small() -> None:
    """The shipped model stays below one megabyte."""
    assert len(files("gateway.data").joinpath("prior.json").read_bytes()) < 1_000_000


def test_the_gathered_trees_are_those_of_the_file() -> None:
    """The prediction by big integers equals a plain walk over the file's trees."""
    data = json.loads(files("gateway.data").joinpath("prior.json").read_bytes())
    found = signals(ask("Compare two ways to dry herbs and say which keeps more taste."))
    walk = data["base"]
    for tree in data["trees"]:
        walk += data["leaf"] * tree["leaves"][sum((found.bits >> b & 1) << i for i, b in enumerate(tree["bits"]))]

    assert _PRIOR.guess(found).location == pytest.approx(found.start + LEARNED_SHARE * walk)


@pytest.mark.parametrize(
    ("text", "either"),
    [
        ("Is it a cat or a dog? It barks.", True),
        ("What is it? Tell me: cat or dog?", True),
        ("? Is it a cat or a dog?", True),
        ("Is it a cat? Or two?", False),
        ("?", False),
    ],
)
def test_the_first_or_the_last_question_may_offer_a_choice(text: str, either: bool) -> None:
    """ "This or that?" is a choice between options in either place, and only where a question mark ends it."""
    assert (signals(ask(text)).case == "options") is either


def test_refuses_a_model_of_other_signals() -> None:
    """A file that was trained on another set of signals is an error that says so."""
    with pytest.raises(ModelError, match="signals"):
        Prior({"size": SIZE + 1})


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=900), st.text(max_size=300))
def test_any_text_has_signals_and_a_guess(user: str, system: str) -> None:
    """Whatever the text, there are as many signals as the model expects and chances that sum to one."""
    features = Features(
        api=Api.CHAT, model="m", user_head=user[:800], user_tail=user[800:], user_chars=len(user), system_text=system
    )
    found = signals(features)
    guess = _PRIOR.guess(found)

    assert 0 <= found.bits < 1 << SIZE
    assert 0.3 <= guess.location < 20
    assert sum(guess.tasks) == pytest.approx(1.0)
    assert log2p(0) == 0


@pytest.mark.parametrize("unit", ["a or ", "{", "1. ", "((((", "「", "and ", "a-", "\n- "])
def test_hostile_repetition_has_signals(unit: str) -> None:
    """Texts made to make patterns backtrack are read as any other."""
    text = unit * 600
    features = Features(
        api=Api.CHAT, model="m", user_head=text[:800], user_tail=text[-1200:] + "?", user_chars=len(text)
    )

    assert signals(features).bits < 1 << SIZE
