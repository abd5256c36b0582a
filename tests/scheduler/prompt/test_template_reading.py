"""Each form of template gets messages as it reads them: no prompt without the user's words."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from scheduler.errors import StartupError, TemplateFailed
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt, GenerationRequest, Message, Reasoning, TextPrompt
from tests.examples import examples
from tests.fakes.scheduling import FOLDER
from tests.fakes.served_tokenizers import TEMPLATE, write_tokenizer
from tests.scheduler.prompt.composed_templates import (
    FAMILIES,
    HISTORIES,
    TOOL,
    Composed,
    conversations,
    history_template,
    loops,
    templates,
)


def served(folder: Path, template: Any, kind: str = "byte-level", files: Any = None) -> HubTokenizer:
    write_tokenizer(folder, kind, template=template)
    for name, content in (files or {}).items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return HubTokenizer(folder)


def test_several_templates_without_a_default_are_refused(tmp_path: Path) -> None:
    """At the start, by their names."""
    listed = [{"name": "one", "template": TEMPLATE}, {"name": "two", "template": TEMPLATE}]
    with pytest.raises(StartupError, match="one, two"):
        served(tmp_path, listed)


@settings(max_examples=examples(40), deadline=None)
@given(composed=templates(), prompts=st.lists(conversations(), min_size=6, max_size=6))
def test_no_prompt_lacks_words_whatever_the_template(composed: Composed, prompts: list[ChatPrompt]) -> None:
    """Each message's are in the text once, the conversation's in its order, or the request is a 400, which no
    plain template's is."""
    with TemporaryDirectory() as folder:
        tokenizer = served(Path(folder), composed.template)
    note(f"{composed.described}: {tokenizer.template_verdicts}")
    for prompt in prompts:
        try:
            text = tokenizer.render(prompt)
        except TemplateFailed:
            assert not composed.plain
            continue
        note(text)
        spoken = [message for message in prompt.messages if message["content"]]
        assert [text.count(message["content"]) for message in spoken] == [1] * len(spoken)
        places = [text.index(message["content"]) for message in spoken if message["role"] != "system"]
        assert places == sorted(places)
        if prompt.continue_final:
            assert text.endswith(spoken[-1]["content"])


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        (("high",), {"none": "its own", "low": "high", "medium": "high", "high": "high", "max": "high"}),
        (("none", "low", "max"), {"none": "none", "minimal": "low", "medium": "low", "high": "max"}),
    ],
)
def test_an_effort_that_the_template_refuses_is_the_nearest_that_it_takes(
    taken: tuple[str, ...], expected: dict[str, str], tmp_path: Path
) -> None:
    """Clients send one for all models; Mistral Small 4's template raises at all but none and high."""
    template = (
        "{% set effort = reasoning_effort or 'its own' %}{% if effort not in ['its own', "
        + ", ".join(map(repr, taken))
        + "] %}{{ raise_exception('effort') }}{% endif %}<{{ effort }}>{{ messages[0].content }}"
    )
    tokenizer = served(tmp_path, template)
    asked = ChatPrompt(({"role": "user", "content": "hi"},))
    for effort, passed in expected.items():
        text = tokenizer.render(replace(asked, reasoning=Reasoning(effort != "none", effort)))
        assert text == f"<{passed}>hi"
    assert any("efforts" in verdict for verdict in tokenizer.template_verdicts)


def _check_loop(ways: tuple[str, str, str, str, str], prompt: ChatPrompt) -> None:
    """Each word of a loop is in its text once, and results have the order, the ids and the tool of calls."""
    with TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), "byte-level", template=history_template(*ways))
        tokenizer = HubTokenizer(Path(folder), tool_parser="json_tools")
    text = tokenizer.render(prompt)
    assert f"{TOOL.name};" in text
    kinds = "word|text|value|result" + ("" if ways[3] == "dropped" else "|thought")
    words = rf"(?:{kinds})-[-0-9]+\."
    assert Counter(re.findall(words, text)) == Counter(re.findall(words, str(prompt.messages)))
    calls = re.findall(r'<tool_call>(?:look)?#([^#]*)#\{"of": "value-([^.]*)\.', text)
    results = re.findall(r"<\|tool\|>look#([^#]*)#result-([^.]*)\.", text)
    if ways[1] == "none":  # The calls are text, which has no ids.
        assert [of for _, of in results] == re.findall(r'"of": "value-([^.]*)\.', text)
        return
    assert results == calls
    if ways[0] != "any":
        assert len({own for own, _ in calls}) == len(calls)


@pytest.mark.parametrize("family", ["Kimi K2", "Mistral Small 3.2", "gpt-oss"])
@pytest.mark.parametrize("ids", [1, 20_000])
def test_a_message_may_have_thousands_of_calls(family: str, ids: int) -> None:
    """With one id or as many, whose results come the other way round: each step is one look-up."""
    calls = [(f"functions.look:{at % ids}", at) for at in range(20_000)]
    answer: Message = {"role": "assistant", "content": ""}
    answer["tool_calls"] = [
        {"id": own, "type": "function", "function": {"name": "look", "arguments": {"of": f"value-{at}-0."}}}
        for own, at in calls
    ]
    results: list[Message] = [
        {"role": "tool", "content": f"result-{at}-0.", "tool_call_id": own} for own, at in calls
    ]
    ordered = results if ids == 1 else results[::-1]
    asked: Message = {"role": "user", "content": "word-0."}
    _check_loop(FAMILIES[family], ChatPrompt((asked, answer, *ordered), tools=(TOOL,)))


@given(prompt=loops(), ways=st.tuples(*(st.sampled_from(list(ways)) for ways in HISTORIES.values())))
@settings(max_examples=examples(60), deadline=None)
def test_a_loop_goes_on_whatever_a_template_takes_of_it(
    prompt: ChatPrompt, ways: tuple[str, str, str, str, str]
) -> None:
    _check_loop(ways, prompt)


@pytest.mark.parametrize(
    ("family", "verdicts"),
    [
        ("Qwen3", ()),
        ("gpt-oss", ("writes one call a message: each is passed with its result", "passed behind them")),
        ("Mistral Small 3.2", ("takes ids of nine letters", "loses text beside calls", "writes no thoughts")),
        ("Kimi K2", ("writes a tool's name as a part of a call's id",)),
        ("LFM2", ("loses calls: they are passed as text in its notation", "writes no thoughts")),
        ("DeepSeek V3.2", ("writes tools in a system message alone: an empty one is passed",)),
    ],
)
def test_an_operator_reads_how_histories_are_passed(
    family: str, verdicts: tuple[str, ...], tmp_path: Path
) -> None:
    """And what of them the model does not see."""
    write_tokenizer(tmp_path, "byte-level", template=history_template(*FAMILIES[family]))
    tokenizer = HubTokenizer(tmp_path, tool_parser="json_tools", reasoning_parser="think")
    assert len(tokenizer.template_verdicts) == len(verdicts)
    assert all(part in said for part, said in zip(verdicts, tokenizer.template_verdicts, strict=True))


def _turns(behind: str, between: str = "") -> str:
    """A template with this behind each answer, and that between thoughts and a call."""
    thoughts = "{% if m.reasoning_content %}{{ m.reasoning_content }}" + between + "{% endif %}"
    calls = "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}"
    return (
        "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}{% else %}"
        f"<|assistant|>{thoughts}{{{{ m.content }}}}{calls}{behind}{{% endif %}}{{% endfor %}}"
    )


@pytest.mark.parametrize(
    ("template", "ends", "options", "expected"),
    [
        (_turns(" <|tool|>", "<|system|>"), None, {}, {"</s>", "<|tool|>"}),
        (_turns("<|tool|></s>"), None, {}, {"</s>"}),
        (_turns(""), None, {}, {"</s>", "<|user|>"}),
        (_turns("\n\nUser: "), None, {}, {"</s>"}),
        (_turns("<|tool|>", "<|tool|>"), None, {}, {"</s>"}),
        (_turns("<|tool|>"), None, {"tool_parser": "harmony"}, {"</s>", "<|call|>"}),
    ],
    ids=["thoughts", "named", "GLM", "no token", "a message's end", "gpt-oss"],
)
def test_what_a_template_writes_behind_an_answer_ends_it(
    template: str, ends: str | None, options: dict[str, str], expected: set[str], tmp_path: Path
) -> None:
    """Where generation_config.json and the tokenizer do not name the end that stands there: the engine stops
    at it, grammars allow it, and an operator reads it."""
    library = write_tokenizer(tmp_path, "byte-level", template=template)
    library.add_special_tokens(["<|call|>"])
    library.save(str(tmp_path / "tokenizer.json"))
    named = None if ends is None else library.token_to_id(ends)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    tokenizer = HubTokenizer(tmp_path, **options)
    ids = {library.get_vocab()[token] for token in expected}
    folder = replace(FOLDER, vocabulary=tokenizer.vocabulary, eos_token_ids=frozenset())
    prepared = Preparation(tokenizer, folder).prepare(GenerationRequest("", TextPrompt("The")))
    assert set(prepared.submit.stop_token_ids) == ids
    assert set(tokenizer.for_grammars().eos_token_ids) == ids
    assert f"ends: {' '.join(sorted(expected, key=library.get_vocab().__getitem__))}" in tokenizer.found


@pytest.mark.parametrize("marks", ["", "<musing> and </musing>"])
def test_thoughts_that_no_notation_reads_are_named(marks: str, tmp_path: Path) -> None:
    """By the marks that the template writes around them."""
    thoughts = marks.replace(" and ", "{{ m.reasoning_content }}") or "{{ m.reasoning_content }}"
    template = history_template(*FAMILIES["Qwen3"]).replace(
        "{{ m.reasoning_content }}", f"{{% if m.reasoning_content %}}{thoughts}{{% endif %}}"
    )
    write_tokenizer(tmp_path, "byte-level", template=template)
    found = HubTokenizer(tmp_path, tool_parser="json_tools").found
    assert found.startswith("calls: json_tools; thoughts: none; ends: </s>")
    assert found.partition("; not read: ")[2] == (f"thoughts between {marks}" if marks else "")
