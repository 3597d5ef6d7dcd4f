"""What the model decides and not the request: whether it thinks, and the context left for the answer."""

from __future__ import annotations

from gateway.estimate.estimator import Estimator
from gateway.estimate.model import load_prior
from gateway.estimate.rules import SETTLING_CAP
from gateway.types import Structure
from tests.estimate.synthetic import ask, ended

QUESTION = "Is a heron a bird? Answer yes or no."


class TestThinking:
    def test_a_model_that_always_thinks_takes_longer(self) -> None:
        """ROUTE: thinking on a classification costs hundreds of tokens, also where the request does not ask for it."""
        estimator = Estimator(load_prior())

        assert estimator.estimate(ask(QUESTION)).p50 < 20
        assert estimator.estimate(ask(QUESTION), thinking=True).p50 > 200

    def test_a_model_that_never_thinks_outweighs_the_request(self) -> None:
        """A client's switch changes nothing on a model that cannot think."""
        asked = ask(QUESTION, chat_template_kwargs={"enable_thinking": True})
        estimator = Estimator(load_prior())

        assert asked.thinking is True
        assert estimator.estimate(asked, thinking=False).p50 < 20 < estimator.estimate(asked).p50

    def test_a_choice_does_not_bound_what_is_thought(self) -> None:
        """A list of choices settles a plain answer, but only the token parameters bound a thinking one."""
        choice = ask(QUESTION, structured_outputs={"choice": ["yes", "no"]})
        estimator = Estimator(load_prior())

        assert choice.structure is Structure.CHOICE
        assert estimator.estimate(choice).p90 <= SETTLING_CAP
        assert estimator.estimate(choice, thinking=True).p90 > 100

    def test_thought_answers_are_remembered_apart(self) -> None:
        """What a thinking model has taken for a template says nothing about the same name without thinking."""
        estimator = Estimator(load_prior())
        for i in range(20):
            features = ask(f"{QUESTION} {i}")
            estimator.estimate(features, thinking=True)
            estimator.observe(ended(features, 900))

        assert estimator.estimate(ask(QUESTION)).p50 < 20
        assert 600 < estimator.estimate(ask(f"{QUESTION} 77"), thinking=True).p50 < 1300


class TestRoom:
    def test_the_context_left_bounds_the_answer(self) -> None:
        """Where the window is nearly full, every figure stays within what is left, and one token always is."""
        estimator = Estimator(load_prior())
        story = ask("Write a long story about a heron.")

        assert estimator.estimate(story).p50 > 100
        assert estimator.estimate(story, room=60).p90 <= 60
        assert estimator.estimate(story, room=0).p90 == 1.0

    def test_a_tiny_room_settles_the_question(self) -> None:
        """Room for a few tokens ends the work as a small cap does."""
        assert Estimator(load_prior()).estimate(ask("Write a long story."), room=SETTLING_CAP).source == "cap"
