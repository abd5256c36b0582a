"""Which blocks of Markdown are finished while it is still being written."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.operator.chat.blocks import Block, Blocks

LINES = [
    "word",
    "",
    "```",
    "```py",
    "~~~",
    "- item",
    "  more",
    "    ```",
    "1. one",
    "| a |",
    "# head",
    "a b " * 50,
]
TEXTS = st.lists(st.sampled_from(LINES), max_size=60).map("\n".join)


def written(text: str, *cuts: int) -> tuple[list[Block], Block]:
    blocks, found = Blocks(), list[Block]()
    places = [0, *sorted(cuts), len(text)]
    for start, end in pairwise(places):
        found += blocks.feed(text[start:end])
    return found, blocks.rest


@given(TEXTS, st.data())
def test_blocks_are_the_text_wherever_it_is_cut(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=20))
    finished, rest = written(text, *cuts)
    assert "".join(block.source for block in (*finished, rest)) == text
    assert finished == written(text)[0]


@given(TEXTS, TEXTS)
def test_a_finished_block_never_changes(text: str, more: str) -> None:
    finished, _ = written(text)
    assert written(text + more)[0][: len(finished)] == finished


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("one\n\ntwo\n\nthree\n", ["one\n\n", "two\n\n"]),
        ("one\n\ntwo", []),
        ("one\n\ntwo\n", ["one\n\n"]),
        ("- a\n\n  still a\n\nb\n", ["- a\n\n  still a\n\n"]),
        ("say:\n```py\na = 1\n\nb = 2\n```\nend", ["say:\n", "```py\na = 1\n\nb = 2\n```\n"]),
        ("```\n~~~\n```\n", ["```\n~~~\n```\n"]),
        ("````\n```\n````\n", ["````\n```\n````\n"]),
        ("- a\n  ```\n  x\n  ```\n\n  more\n\nb\n", ["- a\n  ```\n  x\n  ```\n\n  more\n\n"]),
    ],
)
def test_a_block_ends_where_the_next_one_begins(text: str, sources: list[str]) -> None:
    assert [block.source for block in written(text)[0]] == sources


def test_a_long_code_block_is_finished_in_parts() -> None:
    """Each of which is Markdown by itself."""
    text = "```py\n" + "x = 1\n" * 100 + "```\n"
    finished, rest = written(text)
    assert len(finished) == 3
    assert [block.before for block in finished] == ["", "```py\n", "```py\n"]
    assert [block.after for block in finished] == ["```\n", "```\n", ""]
    assert rest == Block("")


def test_a_code_block_that_is_being_written_is_closed_for_now() -> None:
    assert written("```py\nx = ")[1].markdown == "```py\nx = \n```\n"


@pytest.mark.parametrize("text", ["word " * 20_000, "- item\n" * 20_000, "```\n" + "x\n" * 20_000])
def test_what_is_drawn_again_is_bounded(text: str) -> None:
    """Else an answer would cost the square of its length."""
    blocks, longest = Blocks(), 0
    for start in range(0, len(text), 100):
        blocks.feed(text[start : start + 100])
        longest = max(longest, len(blocks.rest.source))
    assert longest <= 8200
