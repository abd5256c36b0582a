"""The known servers: the fields that each honours, how it is started, and where its metrics are.

Plain data. The honoured fields were tested with the release that `peers/` pins (`peers/README.md` has the
table). The arguments give all servers the same number of slots and otherwise keep each one's defaults,
logging included, because people run them that way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SERVED_NAME: Final = "loadtest"
"""A launched server's name for its model, if it can be set."""

_ALL: Final = frozenset(
    {
        "stream_options",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "ignore_eos",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    }
)

EVERYTHING: Final = _ALL
"""Every optional field that the harness ever sends; vLLM and its forks honour all of them."""

OPENAI: Final = _ALL - {"ignore_eos", "top_k", "min_p", "repetition_penalty"}
"""The fields of the API reference: what an unknown server gets."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One server program. `arguments` are filled in with {model}, {port} and {slots}."""

    name: str
    knows: frozenset[str]
    """Optional request fields that change a streamed answer as they should."""
    program: str
    """The script in its environment's `bin`."""
    variable: str
    """The environment variable that names the virtual environment or the program."""
    arguments: tuple[str, ...]
    model: str = SERVED_NAME
    """The model's name in requests."""
    ready_path: str = "/health"
    metrics_path: str | None = "/metrics"
    takes_blas: bool = False
    """Whether it preloads the fast BLAS itself, into its engine alone."""


_PENSTOCK: Final = Preset(
    name="penstock",
    knows=_ALL,
    program="penstock",
    variable="PENSTOCK_BENCH_PENSTOCK",
    arguments=(
        *("serve", "--model", "{model}", "--served-model-name", SERVED_NAME, "--host", "127.0.0.1"),
        *("--port", "{port}", "--max-slots", "{slots}"),
    ),
    ready_path="/ready",
    takes_blas=True,
)

_MLX_LM: Final = Preset(
    name="mlx_lm.server",
    # Logprobs only without streaming. A stop string ends an answer only if the model happens to write it in
    # the tokens that the tokenizer would use; otherwise it is cut out and decoding goes on.
    knows=_ALL - {"ignore_eos", "stop", "logprobs", "top_logprobs"},
    program="mlx_lm.server",
    variable="PENSTOCK_BENCH_MLX_LM",
    arguments=(
        *("--model", "{model}", "--host", "127.0.0.1", "--port", "{port}"),
        *("--decode-concurrency", "{slots}"),
    ),
    # Any other name is looked up on the hub.
    model="default_model",
    metrics_path=None,
)

_RAPID_MLX: Final = Preset(
    name="rapid-mlx",
    # logit_bias is refused with 400, ignore_eos is dropped, and penalties reach a request only if the
    # previous request had some too.
    knows=_ALL - {"ignore_eos", "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty"},
    program="rapid-mlx",
    variable="PENSTOCK_BENCH_RAPID_MLX",
    arguments=(
        *("--no-telemetry", "serve", "{model}", "--served-model-name", SERVED_NAME, "--host", "127.0.0.1"),
        # Without the last flag it writes its whole prefix cache to disk when it stops.
        *("--port", "{port}", "--max-num-seqs", "{slots}", "--disable-disk-caches"),
    ),
)

_VLLM_MLX: Final = Preset(
    name="vllm-mlx",
    # The others are accepted and ignored; logit_bias and repetition_penalty apply to the first tokens only.
    # In a batch, temperature, top_p and min_p of the first request apply to all; each was tested alone here.
    knows=frozenset({"stream_options", "temperature", "top_p", "min_p"}),
    program="vllm-mlx",
    variable="PENSTOCK_BENCH_VLLM_MLX",
    arguments=(
        *("serve", "{model}", "--served-model-name", SERVED_NAME, "--host", "127.0.0.1", "--port", "{port}"),
        *("--continuous-batching", "--enable-prefix-cache", "--enable-metrics"),
        *("--max-num-seqs", "{slots}", "--offline"),
    ),
)

PRESETS: Final = {preset.name: preset for preset in (_PENSTOCK, _MLX_LM, _RAPID_MLX, _VLLM_MLX)}
