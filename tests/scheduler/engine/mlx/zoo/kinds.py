"""One module of each kind of cache: whom the tests of joins, leaves and deaths are about."""

from __future__ import annotations

KINDS: dict[str, str] = {
    "qwen3": "keys and values of every token, shared in place",
    "gpt_oss": "rings of sliding windows beside full attention",
    "mistral3+windows": "windows in the mask only",
    "deepseek_v3": "a latent form of keys and values",
    "qwen3_next": "recurrent states beside full attention",
    "rwkv7": "recurrent states only, in chunks of one length",
    "gemma3n": "layers that read the cache of another layer",
    "minimax_m3_vl": "blocks of keys that each query chooses",
    "deepseek_v41": "one row a model call",
}
"""By name in the zoo."""
