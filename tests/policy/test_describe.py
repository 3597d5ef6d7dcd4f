"""What operators see: the policy as JSON, warnings, and `gateway check`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from gateway.policy.check import check
from gateway.policy.describe import describe, warnings
from gateway.policy.load import parse_policy

TEXT = """
pools:
  plain: {endpoints: [{url: "http://a:1", api_key: "${KEY}"}]}
  mtp: {endpoints: ["http://b:1"], speculative: {tokens: 2}}
models:
  m: {pools: [plain, mtp], architecture: dense}
routing:
  rules:
    - {name: 短い, when: {task: [code], output_tokens: {below: 32}, schema: true, header: {x-a: [b]}}, prefer: plain}
access:
  keys: [{name: alpha, env: ALPHA}]
  operator_key: {env: OPERATOR}
"""
ENV = {"KEY": "sesame-1", "ALPHA": "sesame-2", "OPERATOR": "sesame-3"}


class TestDescribe:
    def test_it_is_json_without_secrets(self) -> None:
        """Neither a key nor its digest can be read from `/gateway/policy` or from a `repr`."""
        policy = parse_policy(TEXT, "p.yaml", ENV)
        assert policy.access is not None
        text = json.dumps(describe(policy), ensure_ascii=False) + repr(policy)

        assert "sesame" not in text
        assert policy.access.keys[0].sha256.hex() not in text

    def test_it_shows_rules_as_they_are_written(self) -> None:
        """Bounds, lists and the rule's name survive."""
        routing = describe(parse_policy(TEXT, "p.yaml", ENV))["routing"]
        assert isinstance(routing, dict)
        (rule,) = routing["rules"]

        assert rule["name"] == "短い"
        assert rule["when"]["output_tokens"] == {"below": 32.0}
        assert rule["when"]["task"] == ["code"]
        assert rule["when"]["header"] == {"x-a": ["b"]}
        assert "choice" in rule["when"]["schema"]


class TestWarnings:
    @pytest.mark.parametrize(
        ("old", "new", "warning"),
        [
            ("architecture: dense", "aliases: [n]", "names no architecture"),
            ("[plain, mtp], a", "[plain], a", "has only plain pools"),
            ("models:\n  m:", "models:\n  other:", "models.other: metrics say `other` for unknown models too"),
            ("models:", '  other: {endpoints: ["http://c:1"]}\nmodels:', "pools.other: metrics say `other`"),
            ("models:", '  none: {endpoints: ["http://c:1"]}\nmodels:', "pools.none: metrics say `none` for no pool"),
            ("[plain, mtp], a", "[plain], a", "pools.mtp: no model uses this pool"),
            ("rules:", "rules:\n    - {name: all, prefer: plain}", "`短い` can never match"),
            ("prefer: plain", "require: spare", "`短い` can never choose spare"),
            ("http://b:1", "http://a:1", "one server is either plain or MTP"),
            ("http://b:1", "http://A:01", "http://A:01 is also in plain"),
            ('"http://b:1"', '{url: "http://b:1", weight: 0}', "every endpoint has weight 0"),
            ("speculative:", "telemetry: {interval: 1m}, speculative:", "figures will always be stale"),
            ("speculative:", 'engine: {vllm: "0.32"}, refuses: [min_p], speculative:', "add structured_thinking"),
            ("access:", "logging: {prompts: true}\naccess:", "written to the log"),
            ("  keys: [{name: alpha, env: ALPHA}]\n", "", "everybody may use the models"),
        ],
    )
    def test_what_looks_like_a_mistake_is_named(self, old: str, new: str, warning: str) -> None:
        """A valid policy may still not mean what it says."""
        text = TEXT.replace(old, new)
        if "spare" in text:
            text = text.replace("models:", '  spare: {endpoints: ["http://c:1"]}\nmodels:')

        assert any(warning in line for line in warnings(parse_policy(text, "p.yaml", ENV)))

    def test_a_sound_policy_has_none(self) -> None:
        """Silence is the normal case."""
        assert warnings(parse_policy(TEXT, "p.yaml", ENV)) == []


class TestCheck:
    def run(self, *paths: Path) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        return check(paths, io.BytesIO(), out, err, ENV), out.getvalue(), err.getvalue()

    def test_valid_policies_are_ok(self, tmp_path: Path) -> None:
        """`ok` on stdout, nothing on stderr, exit code 0."""
        (tmp_path / "p.yaml").write_text(TEXT, "utf-8")

        assert self.run(tmp_path / "p.yaml", tmp_path / "p.yaml") == (0, "ok\n", "")

    def test_every_problem_of_every_file_is_shown(self, tmp_path: Path) -> None:
        """Each on its own line as file:line:column: path: message; exit code 1."""
        (tmp_path / "good.yaml").write_text(TEXT, "utf-8")
        (tmp_path / "bad.yaml").write_text("pools: {}\nmodel: {}\n")

        bad = tmp_path / "bad.yaml"
        code, out, err = self.run(bad, tmp_path / "good.yaml", tmp_path / "none.yaml")

        assert (code, out) == (1, "")
        assert err.splitlines() == [
            f"{bad}:1:1: models: is missing",
            f"{bad}:1:8: pools: is empty; at least one is needed",
            f"{bad}:2:1: model: unknown name `model`; did you mean `models`?",
            f"{tmp_path / 'none.yaml'}:1:1: policy: no such file",
        ]
