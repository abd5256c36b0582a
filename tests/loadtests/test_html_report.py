"""The page: complete, self-contained, equal for equal runs, and without overflow in a real browser."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadtests import html_report
from loadtests.bench import bench
from loadtests.canvas import COLOURS
from loadtests.html_report import render, write
from loadtests.launch import free_port
from loadtests.pairs import columns
from loadtests.plots import slices
from loadtests.record import Outcome, RunRecord, save
from loadtests.tables import formulas
from tests.loadtests.recorded import request, run, simulated

PLOTS = (
    "TTFT: share of samples within a time",
    "ITL: share of samples within a time",
    "E2E: share of samples within a time",
    "Throughput against concurrency",
    "TTFT over time",
    "Gaps between tokens over time",
    "Sessions, turn by turn",
)

VOID_ELEMENTS = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Parses the page as a browser does, and checks that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.ids: Counter[str] = Counter()
        self.tags: Counter[str] = Counter()
        self.headings: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)
        for name, value in attrs:
            self.attributes.append((name, value or ""))
            if name == "id":
                self.ids[value or ""] += 1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID_ELEMENTS:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)
            if self.open and self.open[-1] in {"h2", "h3", "h4"}:
                self.headings.append(data)


def compared() -> list[RunRecord]:
    return [
        simulated(target, round_, pace, failing=failing)
        for round_ in range(2)
        for target, pace, failing in (("ours", 1.0, 0.0), ("peer", 2.0, 0.05))
    ]


@pytest.fixture(scope="module")
def text() -> str:
    return render(compared())


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_the_page_is_well_formed(page: Page) -> None:
    """Every element is closed, and no id occurs twice, although seven plots are inlined."""
    assert page.open == []
    assert [name for name, times in page.ids.items() if times > 1] == []


def test_every_plot_is_there_once(page: Page) -> None:
    """By its title, as an inlined SVG."""
    assert [heading for heading in page.headings if heading in PLOTS] == list(PLOTS)
    assert page.tags["svg"] == len(PLOTS)


def test_every_formula_is_there_once(page: Page) -> None:
    """A figure without its formula has no meaning."""
    found = formulas(columns(compared()))
    assert len(found) > 15
    for _, formula in found:
        assert page.words.count(formula) == 1


def test_the_page_asks_nobody_for_anything(text: str, page: Page) -> None:
    """No script, no style sheet, no picture or font from elsewhere."""
    assert page.tags["script"] == page.tags["link"] == page.tags["iframe"] == 0
    for name, value in page.attributes:
        if name in {"src", "href", "xlink:href", "data", "action", "srcset", "poster"}:
            assert value.startswith(("#", "data:image/png;base64,")), (name, value[:80])
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text


def test_references_inside_plots_have_their_targets(text: str, page: Page) -> None:
    """Ids are prefixed by plot, and so are the references to them."""
    wanted = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    assert wanted
    assert wanted <= set(page.ids)


def test_equal_runs_give_equal_pages(text: str) -> None:
    """No current date, no random id: reports can be compared."""
    assert render(compared()) == text


def test_the_page_says_what_ran_and_who_is_faster(page: Page) -> None:
    """For a reader who was not there."""
    words = " ".join(page.words)
    assert "ours is faster than peer" in words
    for fact in ("Agents at work.", "tiny at http://127.0.0.1:8000", "2026-01-02T03:04:05", "salt-1"):
        assert fact in words
    assert "2 cores, Linux" in words
    assert "connection refused" in words
    assert "Refused and failed" in page.headings


def test_a_given_machine_line_wins() -> None:
    """For runs that did not record theirs."""
    assert "an M4 Max" in render([run()], machine="an M4 Max")
    assert "not recorded" in render([run(settings={})])


def test_words_of_servers_are_text_and_no_markup() -> None:
    """A server's error message is untrusted."""
    evil = "<script>alert(1)</script>"
    asked = request(0, 1.0, outcome=Outcome.HTTP_ERROR, status=500, detail=evil, population="$x$")
    text = render([run(asked, target=evil, description=evil)])
    assert evil not in text
    assert html.escape(evil) in text
    assert Page(text).tags["script"] == 0


def test_runs_without_anything_have_a_page() -> None:
    """Interrupted before the first request; refused throughout; no run at all."""
    assert "svg" not in Page(render([run(interrupted=True)])).tags
    refused = [request(n, 0.1 * n, outcome=Outcome.REFUSED, status=503) for n in range(5)]
    assert "TTFT over time" in Page(render([run(*refused)])).headings
    assert "No run was recorded." in render([])


def test_two_scenarios_are_two_sections() -> None:
    """With ids of their own."""
    page = Page(render([simulated(sessions=3), simulated(sessions=3, scenario="soak")]))
    assert {"agents", "soak"} <= set(page.headings)
    assert max(page.ids.values()) == 1


def test_many_points_do_not_make_a_large_page() -> None:
    """Fifty thousand gaps become pictures; as points they would be five megabytes."""
    text = render([simulated("ours", sessions=100, turns=12)])
    assert len(text) < 3_000_000
    assert "data:image/png;base64," in text


def test_the_page_is_written_as_utf_8(tmp_path: Path) -> None:
    """Dashes and arrows are preserved."""
    write(tmp_path / "report.html", [run()])
    assert "–" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize("name", ["matplotlib", "jinja2"])
def test_a_missing_extra_is_known_before_the_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent to anybody: the target's port is closed, and would be named."""
    monkeypatch.setattr(html_report, "find_spec", lambda asked: None if asked == name else asked)
    target = f"t=http://127.0.0.1:{free_port()},model=m"
    ended = CliRunner().invoke(bench, ["compare", "--scenario", "agents", "--target", target])
    assert (ended.exit_code, ended.stderr) == (
        1,
        f"penstock bench: the HTML report needs {name}: pip install 'penstock[bench]'\n",
    )


def test_a_report_without_the_extra_still_has_its_tables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are printed, and what the page lacks is named."""
    monkeypatch.setattr(html_report, "find_spec", lambda asked: None if asked == "matplotlib" else asked)
    save(tmp_path / "runs.json", [simulated(sessions=2)])
    ended = CliRunner().invoke(bench, ["report", str(tmp_path / "runs.json")])
    assert ended.exit_code == 1
    assert "Latencies" in ended.stdout
    assert "the HTML report needs matplotlib: pip install 'penstock[bench]'" in ended.stderr


def test_a_baseline_that_cannot_be_read_is_known_before_the_run(tmp_path: Path) -> None:
    target = f"t=http://127.0.0.1:{free_port()},model=m"
    options = ["--target", target, "--baseline", str(tmp_path / "gone.json")]
    ended = CliRunner().invoke(bench, ["compare", "--scenario", "agents", *options])
    assert ended.exit_code == 2
    assert "gone.json is not a baseline" in ended.stderr


def test_plots_are_drawn_in_the_pages_own_colours(text: str) -> None:
    """Which it has in both themes: words, axes and grids are its variables, and nothing is white behind."""
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.S))
    for variable in ("--ink", "--soft", "--line", "--bad"):
        assert f": var({variable})" in drawn
    series = {COLOURS[0], COLOURS[1], COLOURS[4], "#a8cfe6"}
    assert set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", drawn)) <= series


def test_slices_know_concurrency_and_rate() -> None:
    """Two streams side by side for 4 s of a window of 4 s, ten tokens a second each."""
    streams = [request(n, 0.0, *(0.05 + 0.1 * token for token in range(40)), ended_at=4.0) for n in range(2)]
    found = slices(run(*streams, ended_at=4.0, steady_until=4.0))
    assert len(found) == 40
    assert all(busy == pytest.approx(2.0) for busy, _ in found)
    assert all(rate == pytest.approx(20.0) for _, rate in found)


# --- in a real browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = {"on a phone": 390, "on a screen": 1280}
PROBE = """<!doctype html><body style="margin:0">
{frames}
<p id="answer"></p>
<script>
addEventListener("load", () => {{
  const found = [...document.querySelectorAll("iframe")].map(frame => {{
    const seen = frame.contentDocument;
    const view = seen.documentElement.clientWidth;
    const wide = [...seen.querySelectorAll("h1,h2,h3,h4,p,dl,dd,figure,svg,.scroll,figcaption,details")]
      .filter(one => one.getBoundingClientRect().right > view + 1).map(one => one.tagName);
    const moved = [...seen.querySelectorAll(".scroll")]
      .filter(one => one.scrollWidth > one.clientWidth).length;
    return `view=${{view}} moved=${{moved}} scroll=${{seen.documentElement.scrollWidth}} wide=[${{wide}}]`;
  }});
  document.querySelector("#answer").textContent = found.join("; ");
}});
</script>"""
FRAME = '<iframe style="border:0;width:{width}px;height:800px" srcdoc="{page}"></iframe>'


@pytest.fixture(scope="module")
def seen(text: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a browser found out about the page, at each width."""
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("CI must open the report in a browser, and there is no chromium on the PATH")
        pytest.skip("no chromium on the PATH")
    folder = tmp_path_factory.mktemp("browser")
    probe = folder / "probe.html"
    frames = [FRAME.format(width=width, page=html.escape(text)) for width in WIDTHS.values()]
    probe.write_text(PROBE.format(frames="\n".join(frames)), "utf-8")
    answered = subprocess.run(
        [
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            f"--user-data-dir={folder / 'profile'}",
            *("--window-size=1400,1800", "--virtual-time-budget=10000", "--dump-dom", probe.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    found = re.search(r'<p id="answer">([^<]+)</p>', answered.stdout)
    assert found is not None, answered.stderr
    return dict(zip(WIDTHS, found[1].split("; "), strict=True))


@pytest.mark.parametrize("where", WIDTHS)
def test_nothing_overflows_in_a_real_browser(where: str, seen: dict[str, str]) -> None:
    """The page scrolls down and never sideways, nor do its tables."""
    found = re.fullmatch(r"view=(\d+) moved=(\d+) scroll=(\d+) wide=\[(.*)\]", seen[where])
    assert found is not None, seen[where]
    view, moved, scroll, wide = int(found[1]), int(found[2]), int(found[3]), found[4]
    assert moved == 0
    assert WIDTHS[where] - 20 <= view <= WIDTHS[where]
    assert scroll <= view
    assert wide == ""
