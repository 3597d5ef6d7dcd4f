"""Settings from the command line and the environment."""

from __future__ import annotations

from dataclasses import fields

from gateway.settings import Settings, env_name, resolve


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    """A compose file's `${NAME:-}` leaves every default; an empty host would listen on every interface."""
    env = {env_name(setting.name): "" for setting in fields(Settings)}

    assert resolve({}, env) == Settings()
    assert resolve({"port": "9000"}, env) == Settings(port=9000)
