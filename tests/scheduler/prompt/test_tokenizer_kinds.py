"""Whatever kind of tokenizer a model has: texts survive, streams read as the whole, and grammars, stop
strings and log-probabilities count the bytes that the client gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer

from scheduler.answer.detokenizer import Detokenizer
from scheduler.events import FinishReason, TextDelta
from scheduler.prepared import Prepared
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.spelling import Spelling
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from scheduler.shared.messages import LogprobsOut
from scheduler.structure import Pattern
from tests.examples import examples
from tests.fakes.scheduling import FOLDER
from tests.fakes.served_tokenizers import KINDS, tokenizer_of
from tests.scheduler.answer.notations import pieces_of

thoroughly = settings(max_examples=examples(100), deadline=None)
every_kind = pytest.mark.parametrize("kind", KINDS)
CHAT = ChatPrompt(({"role": "user", "content": "a"},))
every_prompt = pytest.mark.parametrize("prompt", [TextPrompt("The"), CHAT], ids=["text", "chat"])

texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd▁"), max_size=30
) | st.text("The reads \n\taé你🦊", max_size=40)


def read(detokenizer: Detokenizer, ids: Sequence[int]) -> str:
    return "".join(map(detokenizer.feed, ids)) + detokenizer.finish()


@cache
def preparation(kind: str, *, bos: bool = True) -> Preparation:
    tokenizer, _ = tokenizer_of(kind, bos=bos)
    vocabulary, ends = tokenizer.vocabulary, tokenizer.eos_token_ids
    return Preparation(tokenizer, replace(FOLDER, vocabulary=vocabulary, eos_token_ids=ends))


def answered(
    ready: Preparation, request: GenerationRequest, ids: Sequence[int]
) -> tuple[Prepared, list[TextDelta], str]:
    """The answer of these tokens: its pieces, and all of their text."""
    prepared = ready.prepare(request)
    (pipeline,) = prepared.pipelines()
    entries = [LogprobsOut(-1.0, ()) for _ in ids] if request.top_logprobs is not None else []
    pieces = pieces_of(pipeline, ids, entries, FinishReason.LENGTH)
    deltas = [piece for piece in pieces if isinstance(piece, TextDelta)]
    return prepared, deltas, "".join(piece.text for piece in deltas)


def spaced(tokenizer: HubTokenizer, word: str = "reads") -> list[int]:
    """The tokens of ` word` in the middle of a text."""
    before = tokenizer.encode("The")
    ids = tokenizer.encode(f"The {word}")
    assert ids[: len(before)] == before
    return ids[len(before) :]


@every_kind
@thoroughly
@given(text=texts)
def test_a_text_survives_its_tokens(kind: str, text: str) -> None:
    """At once, in a stream of any pieces, and as bytes of single tokens."""
    tokenizer, _ = tokenizer_of(kind)
    if kind == "unigram":
        text = text.lstrip(" ")  # It puts a space before a text, but not before a space.
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert read(tokenizer.detokenizer(), ids) == text
    if ids:
        first, *rest = ids
        spelled = [tokenizer.opening_bytes(first), *map(tokenizer.token_bytes, rest)]
        assert b"".join(spelled) == text.encode()


@st.composite
def ids_of(draw: st.DrawFn, kind: str) -> list[int]:
    """Any tokens: special ones, words without their beginnings, ids of none. Where single bytes are tokens,
    whose runs the library's decoder reads together, they spell whole characters."""
    tokenizer, library = tokenizer_of(kind)
    if tokenizer.spelling is Spelling.BYTE_LEVEL:
        return draw(st.lists(st.integers(0, tokenizer.vocabulary + 9), max_size=40))
    bytes_ = [library.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
    whole = sorted({*range(library.get_vocab_size())} - {*bytes_})
    characters = st.characters(exclude_categories=["Cs"])
    spelled = characters.map(lambda letter: [bytes_[byte] for byte in letter.encode()])
    return [*chain(*draw(st.lists(spelled | st.sampled_from(whole).map(lambda one: [one]), max_size=30)))]


@every_kind
@thoroughly
@given(data=st.data())
def test_any_tokens_read_in_a_stream_as_at_once(kind: str, data: st.DataObject) -> None:
    """As the library reads them."""
    tokenizer, _ = tokenizer_of(kind)
    ids = data.draw(ids_of(kind))
    seen = [token_id for token_id in ids if token_id not in tokenizer.special_token_ids]
    assert read(tokenizer.detokenizer(), ids) == tokenizer.decode(seen)


@every_kind
@thoroughly
@given(data=st.data())
def test_what_goes_on_after_a_text_is_the_rest_of_the_whole(kind: str, data: st.DataObject) -> None:
    """`echo`: prompt and answer together are what the tokenizer reads of all tokens."""
    tokenizer, _ = tokenizer_of(kind)
    words = [spaced(tokenizer, word) for word in ("reads", "The", "a")]
    answer = [token for word in data.draw(st.lists(st.sampled_from(words), min_size=1)) for token in word]
    ready = preparation(kind)
    for prompt in (TextPrompt("The"), TokenPrompt(tuple(tokenizer.encode("The")))):
        _, _, text = answered(ready, GenerationRequest("", prompt), answer)
        assert "The" + text == tokenizer.decode([*tokenizer.encode("The"), *answer])
        assert text.startswith(" ")


@every_kind
@every_prompt
def test_what_a_grammar_holds_has_every_byte_of_it(kind: str, prompt: Prompt) -> None:
    """A pattern with a space before it is answered with a space."""
    ready = preparation(kind)
    answer = spaced(tokenizer_of(kind)[0], "yes")
    request = GenerationRequest("", prompt, structure=Pattern(" yes", "guided_regex"))
    assert answered(ready, request, answer)[2] == " yes"


@every_kind
def test_grammars_have_the_bytes_that_the_text_has(kind: str) -> None:
    """The library of grammars reads the vocabulary by itself."""
    tokenizer, library = tokenizer_of(kind)
    grammars = LLTokenizer(tokenizer.to_json(), n_vocab=tokenizer.vocabulary)
    plain = [
        token_id
        for token_id in range(library.get_vocab_size())
        if token_id not in tokenizer.special_token_ids
        if tokenizer.token_bytes(token_id) != b"\xff"  # No text has it, and the library marks with it.
    ]
    assert {token_id: grammars.decode_bytes([token_id]) for token_id in plain} == {
        token_id: tokenizer.token_bytes(token_id) for token_id in plain
    }


@every_kind
@every_prompt
def test_log_probabilities_name_what_the_text_has(kind: str, prompt: Prompt) -> None:
    """Also the first token, whose space a new message lacks."""
    tokenizer, _ = tokenizer_of(kind)
    ids = [*spaced(tokenizer), *spaced(tokenizer)]
    request = GenerationRequest("", prompt, top_logprobs=0)
    _, pieces, text = answered(preparation(kind), request, ids)
    tokens = [entry for piece in pieces for entry in piece.logprobs]
    assert b"".join(entry.spelling(entry.ids[0]) for entry in tokens) == text.encode()
    assert [entry.offset for entry in tokens] == [
        len(b"".join(one.spelling(one.ids[0]) for one in tokens[:place]).decode("utf-8", "ignore"))
        for place in range(len(tokens))
    ]


@every_kind
def test_a_stop_string_that_is_a_special_token_ends_the_answer(kind: str) -> None:
    """It gives no text, in which a string could be found. What is text stays a string."""
    tokenizer, library = tokenizer_of(kind)
    stop = ("<|user|>", "reads", "<think>", "<|user|><|user|>")
    prepared = preparation(kind).prepare(GenerationRequest("", TextPrompt("The"), stop=stop))
    assert set(prepared.submit.stop_token_ids) == {*tokenizer.eos_token_ids, library.token_to_id("<|user|>")}


@every_kind
@given(text=texts | st.sampled_from(["<s>The", "<s>", "</s>The", "<s><s>a", ""]))
@settings(max_examples=examples(40), deadline=None)
def test_a_text_has_what_its_tokenizer_puts_before_it(kind: str, text: str) -> None:
    """As the library writes it, in pieces as well as whole; never twice, and not where the client says no."""
    _, library = tokenizer_of(kind)
    ready, start = preparation(kind), library.get_vocab()["<s>"]
    plain = library.encode(text, add_special_tokens=False).ids
    whole = plain if plain[:1] == [start] else library.encode(text).ids
    assert ready.tokenize(TextPrompt(text)).tolist() == whole
    assert ready.tokenize(TextPrompt(text, add_special_tokens=False)).tolist() == plain
    assert preparation(kind, bos=False).tokenize(TextPrompt(text)).tolist() == plain
    assert ready.tokenize(CHAT).tolist().count(start) == 1
    assert ready.prepare(GenerationRequest("", TextPrompt(text))).submit.prompt.tolist() == whole


@every_kind
def test_what_stands_before_a_text_is_no_part_of_it(kind: str) -> None:
    """Its log-probabilities have the token, and the text begins where it begins in an echo."""
    text = "The reads"
    ready = preparation(kind)
    prepared = ready.prepare(GenerationRequest("", TextPrompt(text), prompt_logprobs=0))
    (pipeline,) = prepared.pipelines()
    assert pipeline.prompt is not None
    pipeline.prompt.add(1, [LogprobsOut(-1.0, ())] * (len(prepared.submit.prompt) - 1))
    first, *rest = pipeline.prompt.spelled()
    assert (first.data, first.offset, first.logprobs) == (b"<s>", 0, None)
    assert b"".join(token.data for token in rest).decode() == text
    for token, after in pairwise(rest):
        assert text[token.offset : after.offset].encode() == token.data
