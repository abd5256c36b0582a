"""The prompt in which a reranker reads a query and a document.

By the model's chat template where it has the roles query and document (as sentence-transformers 5.4 writes
them), with its default instruction as the system's message; else as Qwen3-Reranker's model card has it.
"""

from __future__ import annotations

from scheduler.prompt.embedder import Embedder
from scheduler.request import ChatPrompt, Prompt, TextPrompt

_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_HEAD = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the"
    ' Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_TAIL = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
"""After an empty reasoning section the next token is the answer."""


def rerank_pair(embedder: Embedder, query: str, document: str, instruction: str | None = None) -> Prompt:
    """Without `instruction`, the model's own is used."""
    instruction = embedder.default_prompt if instruction is None else instruction
    if not embedder.has_roles:
        instruction = instruction or _INSTRUCTION
        pair = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        return TextPrompt(_HEAD + pair + _TAIL)
    messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
    if instruction:
        messages.insert(0, {"role": "system", "content": instruction})
    return ChatPrompt(tuple(messages))
