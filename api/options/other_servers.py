"""Options and commands of other servers that Penstock does not have: what each is here.

Where another server's option means the same, it is one of our option's names instead (`model_settings.py`,
`settings.py`). Sources: the argument lists of vLLM, SGLang, llama-server, mlx_lm.server and Rapid-MLX.
"""

from __future__ import annotations

from collections.abc import Sequence

_ALWAYS = "it is always on here; leave it out"
_BODY = "requests say it themselves"
_WHOLE = "the whole model computes on the device; leave it out"
_SPLIT = "a model fits one device here; a larger one is served by mlx_lm's or exo's servers behind a gateway"
_ENGINES = "it is --engines N here: N processes, each with the whole model"
_KV_TYPE = "it is --kv-cache-dtype here: q8, k8v4 or q4"
_NO_PAGES = "keys and values are not paged here; leave it out"
_DRAFTS = "drafts come from the text itself, without a draft model: --speculation auto, as it is by default"
_TEMPLATE = "the chat template is the model folder's: put a chat_template.jinja into it"
_FOLDER = "it is read from the model's folder; leave it out"
_ADAPTER = "it is --adapter NAME=FOLDER here, once for each"
_TLS = "a proxy before the server does TLS"
_PREFIXES = "prefixes are always kept and shared; a request with a cache_salt of its own shares none"
_GRAMMARS = "llguidance holds every grammar; leave it out"
_LOGS = "it is --log-level here: warning leaves out the line of each request"
_CUDA = "MLX has no such choice; leave it out"

_FAMILIES: Sequence[tuple[str, str]] = (
    ("--enable-prefix-caching --enable-chunked-prefill --cont-batching -cb --continuous-batching", _ALWAYS),
    ("--jinja --enable-auto-tool-choice --enable-reasoning --flash-attn -fa --cache-prompt", _ALWAYS),
    ("--enable-prompt-tokens-details --metrics --enable-metrics --slots --props --use-paged-cache", _ALWAYS),
    ("--no-enable-prefix-caching --disable-radix-cache --no-cache-prompt", _PREFIXES),
    ("--tensor-parallel-size -tp --tp-size --tp --pipeline-parallel-size -pp --pp-size --pipeline", _SPLIT),
    ("--data-parallel-size -dp --dp-size --dp", _ENGINES),
    ("--kv-bits --kv-group-size --quantized-kv-start --cache-type-k -ctk --cache-type-v -ctv", _KV_TYPE),
    ("--quantization -q", f"{_FOLDER}. `mlx_lm.convert` makes a model of 4 or 8 bits"),
    ("--load-format --tokenizer --tokenizer-path --tokenizer-mode --config-format --hf-overrides", _FOLDER),
    ("--trust-remote-code", "no code of a model's folder is ever run; leave it out"),
    ("--revision --hf-repo -hf --download-dir", "`penstock pull` downloads, into the folder of HF_HOME"),
    ("--n-gpu-layers -ngl --gpu-layers --cpu-offload-gb --swap-space --split-mode --main-gpu", _WHOLE),
    ("--mlock --no-mmap", "it is --wired here: how much of the memory is wired"),
    (
        "--threads -t --threads-batch",
        "MLX uses all cores; --engines N gives each of N engines a part of them",
    ),
    ("--block-size --page-size --num-gpu-blocks-override --max-total-tokens", _NO_PAGES),
    ("--enforce-eager --disable-cuda-graph --cuda-graph-max-bs --attention-backend --numa", _CUDA),
    ("--ctx-size -c", "it is --max-model-len here, of each sequence; --kv-cache-bytes bounds all of them"),
    ("--prompt-cache-size --prompt-cache-bytes --cache-ram", "it is --kv-cache-bytes here, of all prefixes"),
    (
        "--prompt-concurrency --max-prefill-tokens --batch-size -b --ubatch-size -ub",
        "it is --prefill-chunk-tokens here, of all prompts in a step",
    ),
    (
        "--schedule-policy --scheduling-policy --schedule-conservativeness",
        "requests are served in fair turns"
        " of tenants and sessions, by priority; --priority-aging-seconds bounds who waits",
    ),
    ("--draft-model --num-draft-tokens --model-draft -md --draft-max --speculative-config", _DRAFTS),
    ("--speculative-algorithm --speculative-model --num-speculative-tokens", _DRAFTS),
    ("--chat-template --chat-template-file --use-default-chat-template", _TEMPLATE),
    ("--chat-template-content-format", "it is found by trying the template at load; leave it out"),
    (
        "--chat-template-args --chat-template-kwargs",
        f"{_BODY}: chat_template_kwargs; --default-thinking is for thinking",
    ),
    (
        "--max-tokens --n-predict -n",
        f"{_BODY}: max_tokens. The context bounds an answer, and --max-running-seconds its time",
    ),
    ("--seed", f"{_BODY}: seed"),
    (
        "--default-chat-template-kwargs --override-generation-config",
        "it is --default-temperature, ... and --default-thinking here",
    ),
    ("--guided-decoding-backend --structured-outputs-config --grammar-backend", _GRAMMARS),
    ("--enable-lora --lora-modules --lora-paths --lora --max-loras --max-lora-rank", _ADAPTER),
    ("--adapter-path", f"{_ADAPTER}; its model is then called MODEL:NAME"),
    (
        "--mmproj --limit-mm-per-prompt --enable-multimodal",
        "the model reads text only; --media says what becomes of pictures",
    ),
    (
        "--embedding --embeddings --is-embedding --rerank --reranking",
        "it is --task embedding or rerank here; auto finds it",
    ),
    (
        "--rope-scaling --rope-theta --rope-freq-base --rope-freq-scale",
        f"{_FOLDER}: config.json has it; --max-model-len bounds the context",
    ),
    ("--ssl-keyfile --ssl-certfile --ssl-key-file --ssl-cert-file --ssl-ca-certs", _TLS),
    ("--root-path --api-prefix", "a proxy before the server can take a prefix away"),
    ("--no-enable-log-requests --disable-log-requests --disable-log-stats --log-requests", _LOGS),
    ("--log-disable --verbose -v --uvicorn-log-level --log-file", "it is --log-level and --log-format here"),
    ("--keep-alive --sleep-idle-seconds", "it is --idle-seconds here"),
    ("--warmup --no-warmup --skip-server-warmup", "it is --load-check here"),
    ("-m", "it is --model here, or the first argument"),
    ("-a", "it is --served-model-name here"),
    ("-np", "it is --max-slots here"),
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
