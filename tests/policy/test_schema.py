"""The policy as consumers see it: defaults, merged pools, resolved names."""

from __future__ import annotations

import hashlib
import json

import pytest

from gateway.policy.describe import describe, warnings
from gateway.policy.load import PolicyInvalid, parse_policy
from gateway.policy.schema import DEFAULT_MTP_REFUSES, DnsName, Facts, Pods, Policy, Target
from gateway.types import Need, PoolKind, Task

SMALLEST = """
version: 1
pools:
  plain: {endpoints: ["http://127.0.0.1:9001"]}
  mtp:   {endpoints: ["http://127.0.0.1:9002"], speculative: {method: mtp, tokens: 2}}
models:
  gemma-4-e4b: {pools: [plain, mtp]}
"""


def policy_of(text: str, **env: str) -> Policy:
    return parse_policy(text, "policy.yaml", env)


def with_model(fields: str, rest: str = "") -> Policy:
    return policy_of(SMALLEST.replace("{pools: [plain, mtp]}", f"{{pools: [plain, mtp], {fields}}}") + rest)


class TestSources:
    """Entries of `endpoints` that stand for what is found."""

    def test_names_and_pods_are_no_endpoints_yet(self) -> None:
        """They become sources with their treatment; the listed ones stay endpoints."""
        pool = policy_of(
            SMALLEST.replace(
                '["http://127.0.0.1:9001"]',
                '["http://a:1", {dns: "http://vllm:8000/", refresh: 3s, family: ipv6, weight: 2, slice: s}, '
                "{kubernetes: {selector: 'app=vllm,mtp in (a,b)', namespace: models, port: 8000}}]",
            )
        ).pools["plain"]
        name, pods = pool.sources

        assert [row.url for row in pool.endpoints] == ["http://a:1"]
        assert (name.where, name.weight, name.slice) == (DnsName("http://vllm:8000", 3.0, "ipv6"), 2, "s")
        assert pods.where == Pods(selector="app=vllm,mtp in (a,b)", namespace="models", port=8000)
        assert pods.weight == 1

    def test_a_pool_of_sources_alone_is_no_mistake(self) -> None:
        """Nothing is warned of that only discovery can tell."""
        text = SMALLEST.replace('["http://127.0.0.1:9001"]', '[{dns: "http://vllm:8000", api_key: "${K}"}]')
        policy = policy_of(text, K="engine-key")

        assert not [line for line in warnings(policy) if "weight" in line]
        assert '"api_key": "set"' in json.dumps(describe(policy))
        assert "engine-key" not in json.dumps(describe(policy))


class TestDefaults:
    def test_the_smallest_policy_has_every_default(self) -> None:
        """Two pools and a model are enough; the rest is what the contract promises."""
        policy = policy_of(SMALLEST)
        pool = policy.pools["plain"]

        assert (pool.timeouts.connect, pool.timeouts.first_byte, pool.timeouts.idle) == (2, 300, 60)
        assert pool.timeouts.total == 1800
        assert (pool.limits.in_flight, pool.limits.connections, pool.limits.queue) == (256, 0, 1024)
        assert (pool.limits.queue_wait, pool.health.interval, pool.health.path) == (30, 5, "/health")
        assert (pool.telemetry.interval, pool.telemetry.stale_after) == (1, 10)
        assert (pool.retry.attempts, pool.retry.budget) == (2, 0.2)
        assert (pool.breaker.failures, pool.breaker.success_rate, pool.breaker.stall) == (5, 0.5, 30)
        assert (policy.server.max_requests, dict(policy.slices)) == (8192, {})
        assert (policy.server.max_body_bytes, policy.server.heartbeat, policy.server.grace) == (50_000_000, None, 30)
        assert (policy.routing.threshold, policy.routing.stickiness, policy.routing.exploration) == (64, 600, 0.01)
        assert (policy.mtp.acceptance_alert, policy.mtp.tail_alert, policy.mtp.gain_target) == (0.25, 0.15, 0.10)
        assert (policy.mtp.window, policy.logging.requests, policy.logging.prompts) == (600, 1.0, False)
        assert policy.access is None
        assert policy.server.client_hints
        assert policy.server.decision_headers

    def test_speculative_makes_an_mtp_pool(self) -> None:
        """A pool's kind follows from `speculative`, and with it what the pool refuses."""
        policy = policy_of(SMALLEST)

        assert (policy.pools["plain"].kind, policy.pools["mtp"].kind) == (PoolKind.PLAIN, PoolKind.MTP)
        assert policy.pools["plain"].refuses == frozenset()
        assert policy.pools["mtp"].refuses == DEFAULT_MTP_REFUSES

    def test_refuses_replaces_the_default_list(self) -> None:
        """SPEC-04: an operator whose version handles logprobs can say so."""
        policy = policy_of(SMALLEST.replace("tokens: 2}", "tokens: 2}, refuses: [min_p]"))

        assert policy.pools["mtp"].refuses == {Need.MIN_P}


class TestMerging:
    def test_a_pools_own_values_win_one_by_one(self) -> None:
        """`timeouts: {idle: off}` of a pool keeps the other timeouts of `defaults`."""
        text = "defaults: {timeouts: {connect: 1s, idle: 7s}, limits: {queue: 3}}" + SMALLEST
        policy = policy_of(text.replace('9001"]', '9001"], timeouts: {idle: off}'))

        assert policy.pools["plain"].timeouts.connect == 1
        assert policy.pools["plain"].timeouts.idle is None
        assert policy.pools["plain"].limits.queue == 3
        assert policy.pools["mtp"].timeouts.idle == 7

    def test_a_pool_can_return_to_the_built_in_default(self) -> None:
        """A value that equals the built-in default still counts as said."""
        text = "defaults: {timeouts: {connect: 1s}}" + SMALLEST
        policy = policy_of(text.replace('9001"]', '9001"], timeouts: {connect: 2s}'))

        assert policy.pools["plain"].timeouts.connect == 2


class TestNames:
    def test_aliases_and_names_resolve_to_the_model(self) -> None:
        """MODEL-01, MODEL-06: an alias means its model, and a slash in a name is just a letter."""
        policy = with_model("aliases: [e4b, google/gemma-4, ジェマ]")

        assert {policy.resolve(n) for n in ("e4b", "google/gemma-4", "ジェマ")} == {policy.models["gemma-4-e4b"]}
        assert policy.resolve("gemma-4") is None

    def test_choose_takes_the_first_line_that_matches(self) -> None:
        """`auto` stands for another model, by what the request is."""
        policy = policy_of(
            SMALLEST + "  big: {pools: [mtp]}\n  auto: {choose: [{when: {task: code}, model: big},"
            " {model: gemma-4-e4b}]}\n"
        )
        auto = policy.models["auto"]

        assert policy.choose(auto, Facts(task=Task.CODE)).name == "big"
        assert policy.choose(auto, Facts(task=Task.CHAT)).name == "gemma-4-e4b"
        assert policy.choose(policy.models["big"], Facts()) is policy.models["big"]

    def test_targets_are_kinds_or_pools(self) -> None:
        """`plain` and `mtp` mean every pool of the kind; other words mean a pool."""
        policy = policy_of(SMALLEST.replace("  mtp:", "  fast:").replace(", mtp]", ", fast]"))

        assert policy.target("mtp") == Target(kind=PoolKind.MTP)
        assert policy.target("fast") == Target(pool="fast")
        assert policy.target("other") is None
        assert Target(kind=PoolKind.MTP).accepts(policy.pools["fast"])
        assert not Target(pool="fast").accepts(policy.pools["plain"])


class TestEndpoints:
    @pytest.mark.parametrize(
        ("written", "kept"),
        [
            ("http://h:1/", "http://h:1"),
            ("https://h/a/b/", "https://h/a/b"),
            ("http://[::1]:8000", "http://[::1]:8000"),
        ],
    )
    def test_urls_lose_their_trailing_slash_only(self, written: str, kept: str) -> None:
        """A prefix and an IPv6 host are fine."""
        assert policy_of(SMALLEST.replace("http://127.0.0.1:9001", written)).pools["plain"].endpoints[0].url == kept


class TestSlices:
    def test_pools_on_one_slice_share_a_limit(self) -> None:
        """The limit is named after what endpoints say of themselves."""
        text = SMALLEST.replace('["http://127.0.0.1:9001"]', '[{url: "http://127.0.0.1:9001", slice: gpu0/1}]')
        policy = policy_of(text + "slices: {gpu0/1: {in_flight: 9}}")

        assert policy.slices["gpu0/1"].in_flight == 9

    def test_a_slice_that_no_endpoint_has_is_a_mistake(self) -> None:
        """A limit that holds for nothing would be silently useless."""
        text = SMALLEST.replace('["http://127.0.0.1:9001"]', '[{url: "http://127.0.0.1:9001", slice: gpu0/1}]')

        with pytest.raises(
            PolicyInvalid, match=r"slices\['gpu0/2'\]: no endpoint has this slice; did you mean `gpu0/1`"
        ):
            policy_of(text + "slices: {gpu0/2: {in_flight: 9}}")


class TestEnvironment:
    def test_variables_expand_in_text_and_numbers(self) -> None:
        """`${NAME}`, a default for unset and empty ones, and `$${` for the plain characters."""
        text = SMALLEST.replace("http://127.0.0.1:9001", "http://${HOST}:${PORT:-81}")
        policy = policy_of(
            text + 'routing: {threshold: "${T}", rules: [{name: "$${x}", prefer: plain}]}', HOST="h", PORT="", T="7"
        )

        assert policy.pools["plain"].endpoints[0].url == "http://h:81"
        assert policy.routing.threshold == 7
        assert policy.routing.rules[0].name == "${x}"


class TestAccess:
    TEXT = (
        SMALLEST.replace("[plain, mtp]}", "[plain, mtp], aliases: [e4b]}")
        + """
access:
  keys:
    - {name: alpha, env: ALPHA, models: [e4b], pools: [mtp], requests_per_minute: 9, priority: 5}
    - {name: beta, sha256: "%s"}
  operator_key: {env: OPERATOR}
"""
        % ("AB" * 32)
    )

    def test_keys_are_kept_as_digests_with_names_resolved(self) -> None:
        """The key itself is nowhere in the policy."""
        policy = policy_of(self.TEXT, ALPHA="sesame-1", OPERATOR="sesame-2")
        assert policy.access is not None
        alpha, beta = policy.access.keys

        assert alpha.sha256 == hashlib.sha256(b"sesame-1").digest()
        assert policy.access.operator_key == hashlib.sha256(b"sesame-2").digest()
        assert beta.sha256 == b"\xab" * 32
        assert (alpha.models, alpha.pools, alpha.priority) == (frozenset({"gemma-4-e4b"}), frozenset({"mtp"}), 5)
        assert (beta.models, beta.pools, beta.requests_per_minute) == (None, None, 0)
        assert "sesame" not in repr(policy)


def test_anchors_and_merge_keys_work() -> None:
    """An anchor saves writing; `<<` adds where nothing is said."""
    policy = policy_of("""
pools:
  plain: &p {endpoints: ["http://a:1"], timeouts: &t {connect: 1s, idle: 9s}}
  mtp: {<<: *p, endpoints: ["http://b:1"], speculative: {tokens: 1}, timeouts: {<<: [*t], idle: 8s}}
models: {m: {pools: [plain, mtp]}}
""")

    assert policy.pools["mtp"].endpoints[0].url == "http://b:1"
    assert (policy.pools["mtp"].timeouts.connect, policy.pools["mtp"].timeouts.idle) == (1, 8)


def test_yaml_1_1_words_stay_what_they_mean() -> None:
    """YAML-01: `no` is Norwegian in a list of languages and false for a switch; `off` turns a limit off."""
    policy = policy_of(
        SMALLEST + "server: {decision_headers: no, heartbeat: off}\n"
        "routing: {stickiness: off, rules: [{when: {language: [en, no]}, prefer: plain}]}"
    )

    assert policy.server.decision_headers is False
    assert policy.server.heartbeat is None
    assert policy.routing.stickiness is None
    assert policy.routing.rules[0].when.language == ("en", "no")


class TestServer:
    def test_origins_and_old_fields_have_safe_defaults(self) -> None:
        """No page may call from a browser, and `guided_*` fields are translated, unless the policy says otherwise."""
        policy = policy_of(SMALLEST)
        other = policy_of(SMALLEST + 'server: {cors: ["https://a.example", "*"], guided: refuse}\n')

        assert (policy.server.cors, policy.server.guided) == ((), "translate")
        assert (other.server.cors, other.server.guided) == (("https://a.example", "*"), "refuse")

    @pytest.mark.parametrize("fields", ['cors: ["a.example"]', 'cors: ["https://a.example/x"]', "guided: ignore"])
    def test_what_is_no_origin_and_no_mode_is_refused(self, fields: str) -> None:
        """With the place in the file, as every mistake."""
        with pytest.raises(PolicyInvalid, match=r"policy\.yaml:\d+:\d+: server\."):
            policy_of(SMALLEST + f"server: {{{fields}}}\n")
