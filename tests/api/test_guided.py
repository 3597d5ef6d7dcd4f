"""The old `guided_*` fields in bodies of odd but legal form."""

from __future__ import annotations

import json

import pytest

from gateway.api.guided import renewed
from gateway.request.parse import parse_body

FORMS = {
    "a null of the new name": b'{"guided_choice": ["a", "b"], "structured_outputs": null}',
    "an empty one": b'{"structured_outputs": {}, "guided_choice": ["a", "b"]} ',
    "UTF-16": '{"guided_choice": ["a", "b"]}'.encode("utf-16"),
    "UTF-32": '{"guided_choice": ["a", "b"]}'.encode("utf-32-be"),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_told_as_translated_holds_for_the_back_end(form: str) -> None:
    """PARAM-07: a parser finds the translated constraint, whatever else the client says under the new name."""
    raw = FORMS[form]

    sent, body, fields = renewed(raw, parse_body(raw), "translate", lambda action: None)

    assert fields == ("guided_choice",)
    assert json.loads(sent)["structured_outputs"] == body.data["structured_outputs"] == {"choice": ["a", "b"]}
