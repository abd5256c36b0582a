"""Models whose tokens attend to all of their text: EmbeddingGemma, whose body mlx-lm has for Gemma 3 only,
which attends backwards.

It is written against mlx-lm 0.32.2, whose layers, norms and rotary positions stay; not reported.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.gemma3_text import Gemma3Model

from scheduler.engine.load_failure import LoadRefused


class TwoWayGemma3(Gemma3Model):  # type: ignore[misc]  # mlx-lm has no types
    """Gemma 3's body where `use_bidirectional_attention` is true. Its window reaches half of `sliding_window`
    to both sides, the token itself included, as transformers has it."""

    def __call__(
        self,
        inputs: mx.array,
        cache: Any = None,
        input_embeddings: mx.array | None = None,
        lengths: mx.array | None = None,
    ) -> mx.array:
        """`lengths` of the rows, which are padded on the right; without it all of them are whole. There is no
        cache: a later token would change the earlier ones."""
        hidden = self.embed_tokens(inputs) if input_embeddings is None else input_embeddings
        # In the type of the weights, as transformers: rounded to bfloat16 it would be 0.1 % off in float32.
        hidden = hidden * mx.array(self.args.hidden_size**0.5).astype(hidden.dtype)
        rows, tokens = inputs.shape
        places = mx.arange(tokens)
        if lengths is None:
            lengths = mx.full((rows,), tokens)
        seen = (places[None, :] < lengths[:, None])[:, None, None, :]
        reach = self.args.sliding_window // 2 + 1
        near = mx.abs(places[:, None] - places[None, :]) < reach
        every = mx.broadcast_to(seen, (rows, 1, tokens, tokens))
        # The padding's own rows would have no key within their reach at all.
        window = (every | (places[:, None] == places[None, :])) & near
        for layer in self.layers:
            hidden = layer(hidden, window if layer.self_attn.is_sliding else every, None)
        normed: mx.array = self.norm(hidden)
        return normed


def attend_both_ways(model: Any) -> None:
    """Let the body of `model` attend both ways. Raise LoadRefused for one that has no such class here."""
    body = body_of(model)
    if type(body) is not Gemma3Model:
        raise LoadRefused(
            f"the model attends both ways, and mlx-lm's {type(body).__name__} only backwards:"
            " serve another model"
        )
    body.__class__ = TwoWayGemma3


def body_of(model: Any) -> Any:
    """Return the part of mlx-lm's `model` that gives final hidden states. Raise LoadRefused if there is
    none."""
    body = getattr(getattr(model, "language_model", model), "model", None)
    if body is None or not hasattr(body, "embed_tokens"):
        raise LoadRefused(
            f"mlx-lm's {type(model).__module__} gives no hidden states, which --task embedding needs:"
            " serve another model"
        )
    return body
