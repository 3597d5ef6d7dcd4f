"""Golden pairs: a wrong policy in, exactly these errors out. `*.errors` stands beside each `*.yaml`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.policy.load import PolicyInvalid, parse_policy

GOLDEN = Path(__file__).parent.parent / "golden" / "policy"
SECRET = "hunter2-sesame"
ENV = {"SECRET": SECRET, "SET": "key-of-beta", "EMPTY": ""}
CASES = sorted(path.stem for path in GOLDEN.glob("*.yaml"))


def errors_of(name: str) -> str:
    with pytest.raises(PolicyInvalid) as caught:
        parse_policy((GOLDEN / f"{name}.yaml").read_bytes(), f"{name}.yaml", ENV)
    return f"{caught.value}\n"


@pytest.mark.parametrize("name", CASES)
def test_each_wrong_policy_gives_exactly_its_errors(name: str) -> None:
    """YAML-01, YAML-02: every mistake is reported at once, in the file's order, with line, column and path."""
    expected = (GOLDEN / f"{name}.errors").read_text("utf-8")

    assert errors_of(name) == expected


@pytest.mark.parametrize("name", CASES)
def test_no_error_quotes_a_secret(name: str) -> None:
    """What came out of the environment, a URL's password or an unquoted key is in no message."""
    text = errors_of(name)

    assert not any(secret in text for secret in (SECRET, "hunter2", "key-of-beta", "sk-secret"))
