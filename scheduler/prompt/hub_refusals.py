"""Why the Hugging Face hub gives no model, and what to do: the texts of `serve` and `pull`."""

from __future__ import annotations

_MESSAGE_CHARACTERS = 200


def refusal(error: Exception, model: str, revision: str = "main") -> str:
    """Return what an error of huggingface_hub means."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    match error:
        case LocalEntryNotFoundError(__cause__=Exception() as cause):
            return refusal(cause, model, revision)
        case GatedRepoError():
            return gated(model)
        case RevisionNotFoundError():
            return f"{model} has no revision {revision!r}: see {_page(model)}/commits"
        case RepositoryNotFoundError():
            return unknown(model)
        case HFValidationError():
            return f"{model!r} is no hub id: {error}"
        case OfflineModeIsEnabled():
            return "the hub is off: HF_HUB_OFFLINE is set, unset it to download"
        case HfHubHTTPError():
            return refused(model, error.response.status_code)
        case OSError(errno=int()) if not isinstance(error, ConnectionError | TimeoutError):
            return f"{model} cannot be written: {error}"
        case _:
            return unreachable(error)


def unreachable(error: Exception) -> str:
    text = " ".join(str(error).split())[:_MESSAGE_CHARACTERS] or type(error).__name__
    return f"the hub cannot be reached ({text})\ncheck the network, HTTPS_PROXY and HF_ENDPOINT"


def gated(model: str) -> str:
    return (
        f"{model} is gated: accept its terms at {_page(model)},\nand set HF_TOKEN to a token of that account"
    )


def unknown(model: str) -> str:
    return (
        f"the hub has no model {model!r}, or none that you may see:\n"
        "check the spelling; for a private one set HF_TOKEN"
    )


def refused(model: str, status: int) -> str:
    match status:
        case 401:
            return f"the hub does not accept the token for {model} (401): set HF_TOKEN anew"
        case 403:
            return gated(model)
        case 429:
            return "the hub has had too many requests from here (429): wait some minutes, or set HF_TOKEN"
        case _:
            return f"the hub answers {status} for {model}: try again later, or see status.huggingface.co"


def _page(model: str) -> str:
    return f"https://huggingface.co/{model}"
