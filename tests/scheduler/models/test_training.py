"""The making of the embedded model: its data is right, and the trained model is the served one."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from mlx_lm.tool_parsers.json_tools import parse_tool_call
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.models.random_qwen3 import TOKENIZER_FOLDER
from scheduler.models.training import exercises, facts, tools
from scheduler.models.training.cases import cases
from scheduler.models.training.conversations import Template, conversation, encoded, row
from scheduler.models.training.tokenizer import VOCABULARY, build, common_words
from scheduler.models.training.turns import Turn


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(EMBEDDED_FOLDER / "tokenizer.json"))


@pytest.fixture(scope="module")
def chat() -> Any:
    return AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)


def test_the_committed_tokenizer_is_the_one_that_the_script_writes(tokenizer: Tokenizer) -> None:
    """Word for word: training data and weights depend on it."""
    again = build(common_words(TOKENIZER_FOLDER / "tokenizer.json"))
    assert again.to_str() == tokenizer.to_str()
    assert tokenizer.get_vocab_size() == VOCABULARY


@pytest.mark.parametrize(
    "text", ["K4Q-9", "drone 17", "Zanzibar", "user_id", "ünïcode 日本 🚰", "  a\n\n\nb\t"]
)
def test_a_text_is_the_same_tokens_wherever_it_stands(tokenizer: Tokenizer, text: str) -> None:
    """Copying is then copying tokens; and nothing is lost."""
    alone = tokenizer.encode(text).ids
    assert tokenizer.decode(alone, skip_special_tokens=False) == text
    for before, after in ((" ", "."), ('"', '"'), ("is ", "?"), ("(", ")")):
        ids = tokenizer.encode(before + text + after).ids
        assert any(ids[place : place + len(alone)] == alone for place in range(len(ids)))


@pytest.mark.parametrize("thinking", [None, False, True])
def test_rows_read_as_the_chat_template_writes_them(chat: Any, thinking: bool | None) -> None:
    """System prompt, tools, question, call, result: what is learnt is what is served."""
    rng = random.Random(3)
    ((offer, asks),) = tools.offers(rng, 1)
    asked, returned = tools.use(offer, asks, rng)
    assert asked.call is not None
    template, system = Template(), "Be kind."
    function = {"name": asked.call.name, "arguments": asked.call.arguments}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": system},
        {"role": "user", "content": asked.asked},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": returned.asked},
    ]
    options = {} if thinking is None else {"enable_thinking": thinking}
    wanted = chat.apply_chat_template(
        messages, tools=[offer.definition], add_generation_prompt=True, tokenize=False, **options
    )
    pieces = [*template.turn(asked, None), *template.turn(returned, thinking)]
    text = template.opening(system, [offer.definition]) + "".join(text for text, _ in pieces)
    assert text.startswith(wanted)
    assert text.removeprefix(wanted).endswith(f"{returned.answer}<|im_end|>\n")


def test_a_conversation_without_a_system_prompt_begins_with_its_question(chat: Any) -> None:
    """As the template has it."""
    turn = Turn("Hello", "Hello!")
    pieces = Template().turn(turn, None)
    ask = [{"role": "user", "content": "Hello"}]
    wanted = chat.apply_chat_template(ask, add_generation_prompt=True, tokenize=False)
    assert Template().opening("", []) + pieces[0][0] == wanted


@pytest.mark.parametrize("tokens", [256, 1024])
def test_rows_hold_whole_turns_and_mark_what_the_model_says(tokenizer: Tokenizer, tokens: int) -> None:
    """Each answer is marked from its first token to its end of turn; and as many answers as metrics."""
    end = tokenizer.token_to_id("<|im_end|>")
    for seed in range(20):
        made = row(random.Random(seed), tokens, Template(), tokenizer, test=False)
        assert len(made.ids) == len(made.own) <= tokens
        ends = [place for place, own in enumerate(made.own) if own and not [*made.own, False][place + 1]]
        assert len(ends) == len(made.graded) > 0
        assert {made.ids[place] for place in ends} == {end}


def test_equal_seeds_are_equal_rows(tokenizer: Tokenizer) -> None:
    """So that a training run can be made again, and gone on with."""
    one, same, other = (
        row(random.Random(seed), 512, Template(), tokenizer, test=False) for seed in (1, 1, 2)
    )
    assert one == same != other


def test_every_question_about_a_fact_has_one_answer() -> None:
    """Facts of one prompt differ in subject or attribute, and what is asked for is stated."""
    for seed in range(50):
        rng = random.Random(seed)
        stated = facts.several(rng, 30)
        assert len({(fact.subject, fact.attribute) for fact in stated}) == 30
        turn = stated[0].turn(rng)
        assert stated[0].value in stated[0].stated(rng)
        assert turn.answer.endswith(f" {turn.must_say}.")


def test_calls_are_what_mlx_lm_reads() -> None:
    """And arguments fit the schema that was offered."""
    template = Template()
    for seed in range(100):
        rng = random.Random(seed)
        for offer, asks in tools.offers(rng, 3):
            asked, _ = tools.use(offer, asks, rng)
            assert asked.call is not None
            ((_, _), (text, _), _) = template.turn(asked, None)
            read = parse_tool_call(text.split("<tool_call>")[1].split("</tool_call>")[0], None)
            assert read == {"name": asked.call.name, "arguments": asked.call.arguments}
            properties = offer.definition["function"]["parameters"]["properties"]
            types = {"string": str, "integer": int}
            for name, value in asked.call.arguments.items():
                assert type(value) is types[properties[name]["type"]]
                assert str(value) in asked.asked


def test_some_sums_are_kept_from_training() -> None:
    """There are few, so a seed would not keep them apart."""
    rng = random.Random(0)
    shown = {exercises.adding(rng, test=False).answer for _ in range(3000)}
    held_out = {exercises.adding(rng, test=True).answer for _ in range(1000)}
    assert not shown & held_out
    assert len(held_out) > 20


def test_cases_are_right_when_they_should_be() -> None:
    """The wanted answer passes, another fact's or a foreign call does not."""
    for case in cases(0, 3, len):
        call = case.turn.call
        if call is not None:
            assert case.is_right("", [{"name": call.name, "arguments": call.arguments}])
            assert not case.is_right("", [{"name": call.name, "arguments": {}}])
        else:
            assert case.is_right(case.turn.answer, [])
            assert not case.is_right("The code of drone 17 is K4Q-8.", [])
        assert not case.is_right(case.turn.answer, [{"name": "f", "arguments": {}}])
        json.dumps(case.messages)


def test_test_rows_are_not_training_rows(tokenizer: Tokenizer) -> None:
    """They hold the sums that training never shows."""
    rng = random.Random(5)
    asked = [
        turn for _ in range(30) for turn in conversation(rng, 512, test=True).turns if turn.graded == "sum"
    ]
    assert asked
    for turn in asked:
        a, b = turn.answer.split(" = ")[0].split(" + ")
        assert exercises.held_out(int(a), int(b))
    empty = encoded(conversation(rng, 8), rng, 8, Template(), tokenizer)
    assert empty.graded == []
