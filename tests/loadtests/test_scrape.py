"""Scrapes of a target while requests hang up."""

from __future__ import annotations

import httpx
import pytest
import trio
from trio.testing import MockClock, trio_test

from loadtests.scrape import Scraper

COUNTS = {
    "without-model": ('penstock_requests_total{{outcome="cancelled"}} {}',),
    "one-model": ('penstock_requests_total{{model="tiny",outcome="cancelled"}} {}',),
    "two-models": (
        'penstock_requests_total{{model="tiny",outcome="cancelled"}} {}',
        'penstock_requests_total{{model="large",outcome="cancelled"}} 7',
    ),
}
OTHERS = ('penstock_requests_total{model="tiny",outcome="length"} 100',)


@pytest.mark.parametrize("name", COUNTS)
@trio_test
async def test_a_disconnect_is_matched_with_the_servers_count(name: str, autojump_clock: MockClock) -> None:
    """The model does not matter; other outcomes do not count."""
    cancelled = 3

    def answer(_: httpx.Request) -> httpx.Response:
        lines = [line.format(cancelled) for line in COUNTS[name]]
        return httpx.Response(200, text="\n".join((*lines, *OTHERS)))

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        scraper = Scraper(client, "http://x/metrics", 0.0)
        await scraper.sample()
        scraper.hung_up(5)
        await trio.sleep(0.5)
        await scraper.sample()
        assert scraper.freed == {}
        await trio.sleep(0.5)
        cancelled = 4
        await scraper.sample()
    assert scraper.freed == {5: pytest.approx(1.0)}
