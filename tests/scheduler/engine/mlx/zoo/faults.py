"""What is known of single modules: faults that remain, and the fallbacks that the check at load finds.

`make zoo` and the tests take each entry for something that is there, and fail on the day that it is not.
"""

from __future__ import annotations

FAULTS: dict[str, str] = {
    "gpt_oss@affine8": "rounding sends a token to another expert: 1.5 where the rule allows 1.05;"
    " float32 and the stored type differ by up to 17 E in the model alone",
    "gpt_oss@nvfp4": "rounding sends a token to another expert: 1.7 where the rule allows 1.5",
    "phi3small": "mlx-lm itself lets a token see what comes after it in its block: a prompt's cuts show",
    "plamo3": "mlx-lm itself masks window + 1 tokens over a ring of window: a prompt's cuts show",
}
"""Modules with other tokens or logits than alone, in every fallback."""

_MASK_ONLY = "windowed layers have `KVCache`: the window is in the mask only, which sees no shared tokens"
_MLA = "MLA adds part of its scores before attention is called"
_OTHER_ATTENTION = "attention does not go through `scaled_dot_product_attention` alone"
_OTHER_CACHE = "layers read the cache of another layer"
_PADDED_STATE = "padding runs through the recurrent state"
_ONE_ROW = "the module was written for one row (upstream/patches)"

FALLBACKS: dict[str, tuple[tuple[str, ...], str]] = {
    "afm7": (("one_row",), _ONE_ROW),
    "baichuan_m1": (("equal_chunks",), _PADDED_STATE),
    "bailing_hybrid": (("copied_prefixes",), _MLA),
    "bailing_moe_linear": (("equal_chunks",), _PADDED_STATE),
    "bailing_moe_v3": (("copied_prefixes",), _MLA),
    "deepseek_v3": (("copied_prefixes",), _MLA),
    "deepseek_v3+dense": (("copied_prefixes",), _MLA),
    "deepseek_v41": (("one_row",), "the model's own kind of cache has no `merge`"),
    "gemma3n": (("copied_prefixes",), _OTHER_CACHE),
    "gemma4": (("copied_prefixes",), _OTHER_ATTENTION),
    "gemma4_text": (("copied_prefixes",), _OTHER_ATTENTION),
    "gemma4_text+experts": (("copied_prefixes",), _OTHER_ATTENTION),
    "glm4_moe_lite": (("copied_prefixes",), _MLA),
    "gemma2": (("one_row",), "capped scores take a mask of several rows for one of several heads"),
    "gpt_bigcode": (("one_row",), _ONE_ROW),
    "iquestloopcoder": (("copied_prefixes",), _OTHER_ATTENTION),
    "jamba": (("equal_chunks",), _PADDED_STATE),
    "kimi_k25": (("copied_prefixes",), _MLA),
    "kimi_k3": (("copied_prefixes",), _MLA),
    "kimi_linear": (("copied_prefixes",), _MLA),
    "kimi_vl": (("copied_prefixes",), _MLA),
    "llama4": (("one_row",), "`ChunkedKVCache` has no `merge`"),
    "longcat_flash_ngram": (("one_row",), _ONE_ROW),
    "mamba": (("equal_chunks",), _PADDED_STATE),
    "mistral3+llama": (("copied_prefixes",), _MASK_ONLY),
    "mistral3+windows": (("copied_prefixes",), _MASK_ONLY),
    "mistral4": (("copied_prefixes",), _MLA),
    "nemotron-nas+linear": (("no_prefixes",), "a linear layer instead of attention never writes its cache"),
    "nemotron_h": (("equal_chunks",), _PADDED_STATE),
    "nemotron_h+experts": (("equal_chunks",), _PADDED_STATE),
    "olmo_hybrid": (("equal_chunks",), _PADDED_STATE),
    "phi3small": (("one_row",), _ONE_ROW),
    "pixtral+windows": (("copied_prefixes",), _MASK_ONLY),
    "plamo2": (("copied_prefixes",), _OTHER_ATTENTION),
    "plamo3": (("one_row",), "differs with each cut of a prompt"),
    "recurrent_gemma": (("one_row",), _ONE_ROW),
    "rwkv7": (("equal_chunks",), _PADDED_STATE),
}
"""What the check at load finds for mlx-lm 0.32.2, mended, and why; nothing for all others."""
