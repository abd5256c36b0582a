"""Options and commands of other servers that Penstock does not have: what each is here.

Where another server's option means the same, it is one of our option's names instead (`model_settings.py`,
`settings.py`). Sources: the argument lists of vLLM, SGLang, llama-server, mlx_lm.server and Rapid-MLX.
"""

from __future__ import annotations

from collections.abc import Sequence

_FAMILIES: Sequence[tuple[str, str]] = (
    (
        "--enable-prefix-caching --enable-chunked-prefill --cont-batching -cb --continuous-batching --jinja"
        " --enable-auto-tool-choice --enable-reasoning --flash-attn -fa --cache-prompt --metrics"
        " --enable-prompt-tokens-details --enable-metrics --slots --props --use-paged-cache --warmup",
        "it is always on here; leave it out",
    ),
    (
        "--load-format --tokenizer --tokenizer-path --tokenizer-mode --config-format --hf-overrides"
        " --chat-template-content-format --rope-scaling --rope-theta --rope-freq-base --rope-freq-scale"
        " --quantization -q --chat-template --chat-template-file --use-default-chat-template",
        "it is read from the model's folder, in which chat_template.jinja may be your own; leave it out",
    ),
    (
        "--n-gpu-layers -ngl --gpu-layers --cpu-offload-gb --swap-space --split-mode --main-gpu --mlock"
        " --no-mmap --block-size --page-size --num-gpu-blocks-override --max-total-tokens --enforce-eager"
        " --disable-cuda-graph --cuda-graph-max-bs --attention-backend --numa --trust-remote-code"
        " --guided-decoding-backend --structured-outputs-config --grammar-backend --schedule-policy"
        " --scheduling-policy --schedule-conservativeness --no-warmup --skip-server-warmup",
        "there is no such choice here; leave it out",
    ),
    (
        "--no-enable-prefix-caching --disable-radix-cache --no-cache-prompt",
        "prefixes are always kept and shared; a request with a cache_salt of its own shares none",
    ),
    (
        "--tensor-parallel-size -tp --tp-size --tp --pipeline-parallel-size -pp --pp-size --pipeline",
        "a model fits one device here; a larger one is served by mlx_lm's or exo's servers behind a gateway",
    ),
    (
        "--data-parallel-size -dp --dp-size --dp --threads -t --threads-batch",
        "it is --engines N here: N processes, each with the whole model and a part of the cores",
    ),
    (
        "--kv-bits --kv-group-size --quantized-kv-start --cache-type-k -ctk --cache-type-v -ctv",
        "it is --kv-cache-dtype here: q8, k8v4 or q4",
    ),
    (
        "--revision --hf-repo -hf --download-dir",
        "`penstock pull` downloads, into the folder of HF_HOME",
    ),
    (
        "--ctx-size -c --prompt-cache-size --prompt-cache-bytes --cache-ram",
        "it is --max-model-len here, of each sequence, and --kv-cache-bytes, of all of them and of prefixes",
    ),
    (
        "--prompt-concurrency --max-prefill-tokens --batch-size -b --ubatch-size -ub",
        "it is --prefill-chunk-tokens here, of all prompts in a step",
    ),
    (
        "--draft-model --num-draft-tokens --model-draft -md --draft-max --speculative-config"
        " --speculative-algorithm --speculative-model --num-speculative-tokens",
        "drafts come from the text itself, without a draft model: --speculation auto, as it is by default",
    ),
    (
        "--chat-template-args --chat-template-kwargs --max-tokens --n-predict -n --seed"
        " --default-chat-template-kwargs --override-generation-config",
        "requests say it themselves (chat_template_kwargs, max_tokens, seed); --default-temperature, ... and"
        " --default-thinking are for those that do not",
    ),
    (
        "--enable-lora --lora-modules --lora-paths --lora --max-loras --max-lora-rank --adapter-path",
        "it is --adapter NAME=FOLDER here, once for each; its model is then called MODEL:NAME",
    ),
    (
        "--mmproj --limit-mm-per-prompt --enable-multimodal",
        "the model reads text only; a line of text stands for a picture",
    ),
    (
        "--embedding --embeddings --is-embedding --rerank --reranking",
        "it is --task embedding or rerank here; auto finds it",
    ),
    (
        "--ssl-keyfile --ssl-certfile --ssl-key-file --ssl-cert-file --ssl-ca-certs --root-path --api-prefix",
        "a proxy before the server does TLS, and takes a prefix away",
    ),
    (
        "--no-enable-log-requests --disable-log-requests --disable-log-stats --log-requests --log-disable"
        " --verbose -v --uvicorn-log-level --log-file",
        "it is --log-level here, of which warning leaves out the line of each request, and --log-format",
    ),
    ("--keep-alive --sleep-idle-seconds", "it is --idle-seconds here"),
    ("-m -a -np", "it is --model here, --served-model-name or --max-slots"),
)

HERE = {name: here for names, here in _FAMILIES for name in names.split()}
"""What each of these options is here, by its name."""

_LISTING, _WHAT_RUNS = "it is `penstock models` here", "the page at `/` shows it here"
COMMANDS_HERE = {
    "run": "it is `penstock chat` here; `penstock serve` serves a model to other programs",
    "list": _LISTING,
    "ls": _LISTING,
    "ps": _WHAT_RUNS,
    "status": f"{_WHAT_RUNS}; `penstock service status` is of a service",
    "stop": "Ctrl-C ends `penstock serve`; `penstock service` runs and ends a service",
    "start": "it is `penstock serve` here",
    "get": "it is `penstock pull` here",
    "download": "it is `penstock pull` here",
    "run-batch": "it is `penstock batch` here",
}
"""What each command of Ollama, LM Studio, vLLM and SGLang is here."""


def explained(arguments: Sequence[str]) -> str | None:
    """Return what the first option of another server among these arguments is here, with its name."""
    for argument in arguments:
        name = argument.partition("=")[0].replace("_", "-")
        if name in HERE:
            return f"{name} is another server's: {HERE[name]}"
    return None
