"""A prompt has the ids of the folder's own tokenizer.json, and the text of its template as transformers finds
it, for each kind of tokenizer and each place of a template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, processors
from transformers import AutoTokenizer

from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt, Message, Tool
from tests.fakes.served_tokenizers import KINDS, TEMPLATE, TEXTS, write_tokenizer

_TOOLS = (
    "{% for t in tools or [] %}<tool_call>{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>"
    "{% for tool_call in m.tool_calls or [] %}{{ tool_call.name }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_PLACES = ("tokenizer_config.json", "chat_template.jinja", "chat_template.json", "a list", "further files")
_MESSAGES: tuple[Message, ...] = (
    {"role": "system", "content": "The café reads."},
    {"role": "user", "content": "Hello, how are you?\n yes"},
    {"role": "assistant", "content": " again"},
    {"role": "user", "content": "你好 🦊"},
)
_WRITTEN = (
    *(*TEXTS, "\n\n5. hello", "  two  spaces", "user\nhi [INST] x <|im_start|> y", "It's 12345", ""),
    *("e\u0301\u00e9 \N{NO-BREAK SPACE}", " <tool_call>a</think> b", "x" * 40),
)
_TOOL = Tool("look", "Looks.", {"type": "object", "properties": {}})


def _placed(folder: Path, kind: str, place: str) -> None:
    """Write the templates there: one, or one for tools besides."""
    named = [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": _TOOLS}]
    given: Any = {"tokenizer_config.json": TEMPLATE, "a list": named}.get(place)
    write_tokenizer(folder, kind, template=given)
    match place:
        case "chat_template.jinja":
            (folder / place).write_text(TEMPLATE)
        case "chat_template.json":
            (folder / place).write_text(json.dumps({"chat_template": TEMPLATE}))
        case "further files":
            (folder / "chat_template.jinja").write_text(TEMPLATE)
            (folder / "additional_chat_templates").mkdir()
            (folder / "additional_chat_templates" / "tool_use.jinja").write_text(_TOOLS)
        case _:
            pass


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", _PLACES)
def test_a_conversation_has_the_ids_of_transformers(place: str, kind: str, tmp_path: Path) -> None:
    """With and without tools; transformers is given `chat_template.json`, which its processors read."""
    _placed(tmp_path, kind, place)
    ours, theirs = HubTokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    given = TEMPLATE if place == "chat_template.json" else None
    with_tools = place in ("a list", "further files")
    for tools in ((), (_TOOL,)) if with_tools else ((),):
        expected = theirs.apply_chat_template(
            [dict(message) for message in _MESSAGES],
            tools=[tool.definition() for tool in tools] or None,
            chat_template=given,
            add_generation_prompt=True,
            return_dict=False,
        )
        assert ours.encode(ours.render(ChatPrompt(_MESSAGES, tools=tools))) == expected


@pytest.mark.parametrize("name", ["LlamaTokenizer", "NextYearsTokenizer"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_has_the_ids_of_the_file_whatever_class_the_folder_names(
    kind: str, name: str, tmp_path: Path
) -> None:
    """transformers 5 builds normalizer, pre-tokenizer and decoder anew from the class, or from the type in
    config.json, and keeps the truncation and the padding that the last call left in the file. The file is
    what the model was trained with; transformers 4 gives its ids, too."""
    settings = {"tokenizer_class": name, "eos_token": "</s>", "legacy": False, "add_prefix_space": False}
    library = write_tokenizer(tmp_path, kind, settings=settings)
    expected = [library.encode(text, add_special_tokens=False).ids for text in _WRITTEN]
    library.enable_truncation(5)
    library.enable_padding(length=64)
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    assert HubTokenizer(tmp_path).encode_all(_WRITTEN) == expected


@pytest.mark.parametrize(
    ("in_file", "config", "expected"),
    [
        ("", {}, ("", "")),
        ("", {"add_bos_token": True}, ("<s>", "")),
        ("", {"add_bos_token": True, "add_eos_token": True}, ("<s>", "</s>")),
        ("<s> $A", {}, ("<s>", "")),
        ("<s> $A", {"add_bos_token": False}, ("<s>", "")),
        ("$A </s>", {"add_bos_token": False}, ("", "</s>")),
        ("$A </s>", {"add_bos_token": True}, ("", "</s>")),
    ],
)
def test_what_stands_around_a_text_is_the_files_if_it_has_any(
    in_file: str, config: dict[str, Any], expected: tuple[str, str], tmp_path: Path
) -> None:
    """DeepSeek's has none, and `add_bos_token`, which transformers 4 obeys and 5 does not; Qwen's embedders
    have an end, and `add_bos_token: false`."""
    library = write_tokenizer(tmp_path, "byte-level", bos=False, settings=config)
    if in_file:
        ids = [(token, library.token_to_id(token)) for token in ("<s>", "</s>")]
        library.post_processor = processors.TemplateProcessing(single=in_file, special_tokens=ids)
        library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = HubTokenizer(tmp_path)
    before, after = map(tokenizer.encode, expected)
    assert tokenizer.encode_whole("The") == [*before, *tokenizer.encode("The"), *after]


def test_a_token_is_what_the_file_says_of_it(tmp_path: Path) -> None:
    """Phi's end of turn takes the white space behind it away. What tokenizer_config.json alone names is added
    behind the file's tokens, as transformers does."""
    library = write_tokenizer(
        tmp_path,
        "byte-level",
        settings={"extra_special_tokens": ["<|end|>", "<|new|>"], "pad_token": "<|end|>"},
    )
    library.add_special_tokens([AddedToken("<|end|>", rstrip=True, normalized=False)])
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = HubTokenizer(tmp_path)
    assert tokenizer.encode("<|end|>\n a") == library.encode("<|end|>\n a", add_special_tokens=False).ids
    assert tokenizer.encode("<|end|>\n") == [library.token_to_id("<|end|>")]
    assert tokenizer.encode("<|new|>") == [library.get_vocab_size()]
