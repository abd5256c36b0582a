"""Conversations rendered by kept texts are those that transformers renders, letter by letter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from scheduler.models.random_qwen3 import TOKENIZER_FOLDER
from scheduler.prompt.hub_template import Asked, HubTemplate
from scheduler.prompt.kept_texts import KeptTexts
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt, Message
from scheduler.statistics import TextStatistics
from tests.scheduler.prompt.conversations import agent, histories, tools

# In the manner of the families that agents use: what their loops read and set is theirs, the texts are not.
_FOLDER = Path(__file__).parent / "chat_templates"
FAMILIES = {path.stem: path.read_text("utf-8") for path in sorted(_FOLDER.glob("*.jinja"))}
FAMILIES["embedded"] = (TOKENIZER_FOLDER / "chat_template.jinja").read_text("utf-8")
_MEBIBYTE = 1 << 20
_ASKED = Asked()


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TOKENIZER_FOLDER, local_files_only=True)


class Template:
    """`source`, with kept texts and without."""

    def __init__(self, source: str, limit_bytes: int = _MEBIBYTE) -> None:
        self.source = source
        self.texts = KeptTexts(limit_bytes)
        tokenizer().chat_template = source
        self.hub = HubTemplate(tokenizer(), self.texts)

    def whole(self, messages: Sequence[Message], asked: Asked = _ASKED) -> str | tuple[type, str]:
        """What transformers says; or its exception."""
        tokenizer().chat_template = self.source
        return outcome(lambda: HubTemplate(tokenizer(), None).render(messages, asked, ""))

    def kept(
        self, messages: Sequence[Message], asked: Asked = _ASKED, salt: str = ""
    ) -> str | tuple[type, str]:
        tokenizer().chat_template = self.source
        return outcome(lambda: self.hub.render(messages, asked, salt))

    def made(self, messages: Sequence[Message], asked: Asked = _ASKED, salt: str = "") -> int:
        """Return how many turns of loops were rendered, and not found."""
        before = self.texts.statistics()
        assert self.kept(messages, asked, salt) == self.whole(messages, asked)
        after = self.texts.statistics()
        return (after.messages - before.messages) - (after.kept_messages - before.kept_messages)


def outcome(render: Any) -> str | tuple[type, str]:
    try:
        return str(render())
    except Exception as error:
        return type(error), str(error)


options = st.fixed_dictionaries(
    {},
    optional={
        "enable_thinking": st.booleans(),
        "add_vision_id": st.booleans(),
        # Names that templates use themselves.
        "content": st.just("theirs"),
        "ns": st.just({"last": 3}),
        "loop": st.just({"index0": 7}),
        "range": st.just("no function"),
    },
)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_is_rendered_as_transformers_renders_it(family: str) -> None:
    """Turn by turn, with growing, changed and shortened histories, and with what makes a template raise."""
    template = Template(FAMILIES[family])
    assert template.texts.whole is None

    @settings(deadline=None, derandomize=True, max_examples=100)
    @given(histories(), st.lists(tools, max_size=2), options)
    def check(turns: list[list[Message]], offered: list[dict[str, Any]], chosen: Mapping[str, Any]) -> None:
        asked = Asked(offered or None, options=chosen)
        for messages in turns:
            assert template.kept(messages, asked) == template.whole(messages, asked)

    check()
    assert template.texts.statistics().kept_messages > 0


def test_a_full_store_changes_no_text() -> None:
    template = Template(FAMILIES["qwen-3"], limit_bytes=3000)

    @settings(deadline=None, derandomize=True, max_examples=30)
    @given(histories())
    def check(turns: list[list[Message]]) -> None:
        for messages in turns:
            assert template.kept(messages) == template.whole(messages)
            assert template.texts.statistics().held_bytes <= 3000

    check()


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"granite"}))
def test_a_turn_renders_what_is_new_in_it(family: str) -> None:
    """Forty messages of the past are found, the two new ones and the last of the old are rendered: it was
    the last, and what a template writes there may differ."""
    template = Template(FAMILIES[family])
    template.kept(agent(20))
    assert template.made(agent(21)) <= 4
    assert template.made(agent(21)) == 0


def test_a_new_question_renders_the_turns_whose_thoughts_it_ends() -> None:
    """Only what was after the last question is rendered again, whatever its index now is."""
    template = Template(FAMILIES["qwen-3"])
    past = [*agent(10), {"role": "assistant", "content": "Done."}, {"role": "user", "content": "And now?"}]
    template.kept(past)
    longer = [*past, *agent(2)[2:]]
    template.kept(longer)
    question = {"role": "user", "content": "Well?"}
    assert template.made([*longer, question]) <= 6


LOOP = "{% for m in messages %}"
REFUSED = {
    "loop.changed": LOOP + "{{ m.role if loop.changed(m.role) }}{% endfor %}",
    "loop.cycle": LOOP + "{{ loop.cycle('a', 'b') }}{% endfor %}",
    "the time": LOOP + "{{ strftime_now('%f') and m.role }}{% endfor %}",
    "a counter": "{% set next = cycler('a', 'b') %}" + LOOP + "{{ next.next() }}{{ m.role }}{% endfor %}",
    "a separator": "{% set sep = joiner() %}" + LOOP + "{{ sep() }}{{ m.role }}{% endfor %}",
    "chance": LOOP + "{{ ['a', 'b'] | random and m.role }}{% endfor %}",
    "all messages": LOOP + "{{ messages | tojson }}{% endfor %}",
    "later messages": LOOP + "{{ messages[loop.index:] | length }}{{ messages[loop.index:] }}{% endfor %}",
    "a generator": "{% set roles = messages | map(attribute='role') %}"
    + LOOP
    + "{{ roles | first }}{{ m.role }}{% endfor %}",
    "a loop over one": "{% for m in messages | map(attribute='role') %}{{ m }}{{ loop.last }}{% endfor %}",
    "a namespace with two names": "{% set a = namespace(x=0) %}{% set b = a %}"
    + LOOP
    + "{{ a.x }}{% set b.x = b.x + 1 %}{% endfor %}",
    "a namespace in a list": "{% set a = namespace(x=0) %}{% set b = [a] %}"
    + LOOP
    + "{{ b[0].x }}{% set a.x = a.x + 1 %}{% endfor %}",
    "a name read before it is set": LOOP + "{{ x }}{% set x = m.role %}{{ x }}{% endfor %}",
    "a name that may not be set": LOOP
    + "{% if m.role == 'user' %}{% set x = 1 %}{% endif %}{{ x }}{% endfor %}",
    "a name set after an inner loop": "{% set x = 'out' %}"
    + LOOP
    + "{% for _ in [1] %}{{ x }}{% endfor %}{% set x = m.role %}{{ x }}{% endfor %}",
    "a function with another meaning": "{% set range = namespace %}" + LOOP + "{{ m.role }}{% endfor %}",
    "a recursive loop": "{% for m in messages recursive %}{{ m.role }}{% endfor %}",
    "a condition of a loop": "{% for m in messages if m.role != 'tool' %}{{ loop.last }}{% endfor %}",
    "an else of a loop": LOOP + "{{ m.role }}{% else %}none{% endfor %}",
    "a block": "{% block x %}" + LOOP + "{{ m.role }}{% endfor %}{% endblock %}",
    "a macro's callers": "{% macro f() %}{{ caller() }}{% endmacro %}"
    + LOOP
    + "{% call f() %}{{ m.role }}{% endcall %}{% endfor %}",
    "a macro in the loop": LOOP + "{% macro f() %}{{ loop }}{% endmacro %}{{ f() }}{{ m.role }}{% endfor %}",
    "a target that is set": LOOP + "{% set m = {'role': 1} %}{{ m.role }}{% endfor %}",
    "the loop passed on": LOOP + "{% set l = loop %}{{ l.index }}{% endfor %}",
    "a continue": LOOP + "{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_rendered_each_time(name: str) -> None:
    """And its text is right, of course."""
    template = Template(REFUSED[name])
    assert template.texts.whole is not None
    assert template.texts.whole != "it came out otherwise when it was tried"
    if name != "the time":
        assert template.kept(agent(3)) == template.whole(agent(3))
    assert template.texts.statistics().messages == 0


READ = {
    "a value by its type": LOOP + "{{ m.content }}{{ flag }}{{ m.flag }}{% endfor %}",
    "undefined and none": LOOP + "{{ flag is defined }}{{ flag is none }}{{ m.role }}{% endfor %}",
    "an order of keys": LOOP + "{{ flag }}{{ m.role }}{% endfor %}",
    "what macros read": "{% set ns = namespace(x=0) %}{% macro f() %}{{ flag }}{{ ns.x }}{% endmacro %}"
    + LOOP
    + "{{ f() }}{% set ns.x = ns.x + 1 %}{{ f() }}{% endfor %}",
    "what macros set": "{% set ns = namespace(x='') %}{% macro f(c) %}{% set ns.x = ns.x ~ c %}{% endmacro %}"
    + LOOP
    + "{{ f(m.role[0]) }}{{ ns.x }}{% endfor %}{{ ns.x }}",
    "a namespace set in one branch": "{% set ns = namespace() %}"
    + LOOP
    + "{% if m.role == 'user' %}{% set ns.x = m.content %}{% endif %}{{ ns.x }}{% endfor %}{{ ns.x }}",
    "a namespace that holds a message": "{% set ns = namespace(x=none) %}"
    + LOOP
    + "{{ ns.x.role }}{% set ns.x = m %}{% endfor %}{{ ns.x.role }}",
    "the other messages": LOOP + "{{ messages[-1].content }}{{ messages[0].role }}{{ m.role }}{% endfor %}",
    "a guard": LOOP + "{% if flag is mapping %}{{ flag.a.b }}{{ m.role }}{% endif %}{% endfor %}",
    "the length": LOOP + "{{ loop.length }}{{ messages | length }}{{ m.role }}{% endfor %}",
    "names of the outside": "{% set x = 1 %}"
    + LOOP
    + "{% set y = x %}{{ y }}{{ m.role }}{% endfor %}{{ y }}",
    "a target of two": "{% for k, v in flag | dictsort %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}",
    "a loop in a branch": "{% if flag %}" + LOOP + "{{ m.role }}{{ flag }}{% endfor %}{% endif %}",
    "a text that is set": LOOP + "{% set x %}{{ m.role }}{{ flag }}{% endset %}{{ x | upper }}{% endfor %}",
    "an inner loop": LOOP
    + "{% for n in [1, 2] %}{% if loop.last %}{% break %}{% endif %}{{ loop.index ~ flag }}{% endfor %}"
    + "{{ loop.index }}{% endfor %}",
}
FLAGS: Sequence[Any] = [
    1,
    True,
    1.0,
    "1",
    0.0,
    -0.0,
    None,
    {"a": {"b": 1}, "c": 2},
    {"c": 2, "a": {"b": 1}},
    {"a": {"b": True}, "c": 2},
    {},
]


@pytest.mark.parametrize("name", READ)
def test_whatever_a_loop_reads_decides_its_text(name: str) -> None:
    template = Template(READ[name])
    assert template.texts.whole is None
    for messages in (agent(2), agent(3), list(agent(3))[1:], list(agent(3))[:-1]):
        for flag in FLAGS:
            asked = Asked(options={"flag": flag})
            for _ in range(2):
                assert template.kept(messages, asked) == template.whole(messages, asked)
        assert template.kept(messages) == template.whole(messages)


def test_a_model_begins_with_nothing_kept() -> None:
    """What is tried out at the start is not counted; the embedded template keeps all of its texts."""
    hub = HubTokenizer(TOKENIZER_FOLDER)
    assert hub.text_statistics() == TextStatistics()
    hub.render(ChatPrompt(tuple(agent(2))))
    hub.render(ChatPrompt(tuple(agent(2))))
    assert hub.text_statistics().kept_messages == len(agent(2))


def test_salts_share_nothing() -> None:
    """Nobody learns from the time that a prompt takes what another tenant has sent."""
    template = Template(FAMILIES["llama"])
    template.kept(agent(3), salt="one\0")
    assert template.made(agent(3), salt="one\0") == 0
    assert template.made(agent(3), salt="two\0") == len(agent(3))


def test_a_rendering_that_fails_keeps_nothing() -> None:
    template = Template(LOOP + "{{ m.content }}{{ raise_exception('no') if m.content == 'no' }}{% endfor %}")
    fine: list[Message] = [{"role": "user", "content": "never seen"}]
    assert isinstance(template.kept([*fine, {"role": "user", "content": "no"}]), tuple)
    assert template.made(fine) == 1


def test_a_conversation_to_be_continued_is_transformers_own() -> None:
    template = Template(FAMILIES["qwen-3"])
    messages = [*agent(1), {"role": "assistant", "content": "It is"}]
    asked = Asked(continue_final=True)
    assert template.kept(messages, asked) == template.whole(messages, asked)


def test_a_clients_option_with_an_arguments_name_fails_as_it_did() -> None:
    template = Template(FAMILIES["qwen-3"])
    for name in ("tokenize", "messages", "self", "tools", "namespace"):
        asked = Asked(options={name: "x"})
        assert template.kept(agent(1), asked) == template.whole(agent(1), asked)
        assert isinstance(template.kept(agent(1), asked), tuple)


def test_the_least_recently_used_text_goes_first() -> None:
    template = Template(LOOP + "{{ m.content }}{% endfor %}", limit_bytes=4 * 330)

    def one(name: str) -> list[Message]:
        return [{"role": "user", "content": name}]

    for name in ("one", "two", "three", "one", "four", "five"):
        template.kept(one(name))
    assert 0 < template.texts.statistics().held_bytes <= 4 * 330
    assert template.made(one("one")) == 0
    assert template.made(one("two")) == 1
