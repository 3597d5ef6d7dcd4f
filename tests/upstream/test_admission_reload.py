"""The queue under a reload: limits, pools that go, pools that come."""

from __future__ import annotations

import pytest

from gateway.errors import NothingAvailable
from gateway.types import Result
from tests.upstream.door import ONE, TWO, admit, limited, one, stand
from tests.upstream.live import policy_of, still


class TestReload:
    async def test_a_higher_limit_serves_those_who_wait(self) -> None:
        """A reload takes effect on the queue at once."""
        pools = one(1)
        await admit(pools, ("p",))
        waiter = await stand(pools)
        pools.apply(policy_of(ONE, own={"p": limited(2)}))

        assert (await waiter).pool == "p"

    async def test_a_pool_that_goes_takes_its_queue_along(self) -> None:
        """Those who could go nowhere else are told; those who can, wait on."""
        pools = still(policy_of(TWO, own={"p": limited(1), "q": limited(1)}))
        held = [await admit(pools, ("p",)), await admit(pools, ("q",))]
        alone, both = await stand(pools, "p"), await stand(pools, "p", "q")
        pools.apply(policy_of({"q": TWO["q"]}, own={"q": limited(1)}))

        with pytest.raises(NothingAvailable):
            await alone
        held[0].release(Result.OK)
        held[1].release(Result.OK)
        assert (await both).pool == "q"
        assert pools["q"].eligible == 0

    async def test_a_pool_that_comes_serves_those_who_named_it(self) -> None:
        """Counts stay right when a pool appears while its future requests already wait."""
        pools = still(policy_of({"q": TWO["q"]}, own={"q": limited(1)}))
        await admit(pools, ("q",))
        waiter = await stand(pools, "p", "q")
        pools.apply(policy_of(TWO, own={"p": limited(1), "q": limited(1)}))

        assert (await waiter).pool == "p"
        assert (pools["p"].eligible, pools["q"].eligible) == (0, 0)
