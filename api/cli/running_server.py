"""The running server that a command talks to: which address and key it has, and what answers there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, TypeVar

import click
import httpx

from api.access.api_keys import client_key
from api.cli.errors import OperatorError

DEFAULT_URL = "http://127.0.0.1:8000"
"""The address on which `penstock serve` listens unless an option changes it."""
_PROBE_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
_MESSAGE_CHARACTERS = 300
FAILURES = (httpx.HTTPError, UnicodeError)
"""What a request raises where no answer came, or only a part of one."""
_UNREACHED = (httpx.ConnectError, httpx.ConnectTimeout)
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which to look for a server."""

    url: str
    """The address without a path: `http://127.0.0.1:8000`, or with a gateway's prefix."""
    key: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.key is None else {"authorization": f"Bearer {self.key}"}

    @property
    def trust_env(self) -> bool:
        """Return whether the environment's proxies apply: they cannot reach this machine's loopback."""
        host = httpx.URL(self.url).host
        try:
            return not ip_address(host).is_loopback
        except ValueError:
            return host != "localhost"


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One entry of `/v1/models`. Servers other than Penstock may give no more than the name."""

    name: str
    context_tokens: int | None = None
    task: str = "chat"
    """chat, embedding or rerank."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answered, and listed its models."""

    url: str
    key: str | None = field(repr=False)
    models: tuple[ListedModel, ...]
    is_penstock: bool

    @property
    def address(self) -> Address:
        return Address(self.url, self.key)

    @property
    def chat_models(self) -> tuple[ListedModel, ...]:
        return tuple(model for model in self.models if model.task == "chat")

    def model(self, wanted: str | None) -> ListedModel:
        """Return the model of this name, or the first one that chats. Raise OperatorError."""
        if wanted is None:
            if not self.chat_models:
                raise OperatorError(f"{self.url} serves no model that chats: {self._names}")
            return self.chat_models[0]
        for model in self.models:
            if model.name == wanted:
                return model
        raise OperatorError(f"{self.url} does not serve the model {wanted!r}; it has {self._names}")

    @property
    def _names(self) -> str:
        return ", ".join(model.name for model in self.models) or "none"


def server_options(command: _F) -> _F:
    """Give a click command the options `--url` and `--api-key`, for `address`."""
    url = click.option(
        "--url",
        metavar="URL",
        envvar="PENSTOCK_URL",
        show_envvar=True,
        callback=_checked_url,
        help=f"Server to use.  [default: {DEFAULT_URL}, with the port of PENSTOCK_PORT]",
    )
    key = click.option("--api-key", metavar="KEY", help="Key to send.  [env var: PENSTOCK_API_KEY]")
    return url(key(command))


def _checked_url(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    return None if not value else base_url(value)


def base_url(text: str) -> str:
    """Return the address without `/v1`, and with a scheme, which people leave out. Raise click's
    BadParameter."""
    full = text.strip() if "://" in text else f"http://{text.strip()}"
    try:
        url = httpx.URL(full)
    except httpx.InvalidURL as error:
        raise click.BadParameter(f"{text!r} is not a URL: {error}") from error
    more = url.query or url.fragment or url.userinfo
    if url.scheme not in ("http", "https") or not url.host or more:
        raise click.BadParameter(f"{text!r} is no server's URL, such as {DEFAULT_URL}; a key is --api-key")
    return str(url).rstrip("/").removesuffix("/v1").rstrip("/")


def address(url: str | None, api_key: str | None, environment: Mapping[str, str]) -> Address:
    """Return where to look for a server. `PENSTOCK_PORT`, where `serve` listens, changes the default, but for
    0, and `PENSTOCK_API_KEY` may be a list of keys with tenants, as `penstock serve` reads it. Raise click's
    BadParameter."""
    key = api_key or client_key(environment.get("PENSTOCK_API_KEY", ""))
    port = environment.get("PENSTOCK_PORT", "0")
    if not (port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise click.BadParameter(f"PENSTOCK_PORT is a port from 1 to 65535, not {port!r}")
    default = DEFAULT_URL if int(port) == 0 else f"http://127.0.0.1:{int(port)}"
    return Address(url or default, key or None)


def find(where: Address, transport: httpx.BaseTransport | None = None) -> RunningServer:
    """Return the server that answers there. Raise OperatorError if none does, or its answer is of no use."""
    try:
        with httpx.Client(timeout=_PROBE_TIMEOUT, trust_env=where.trust_env, transport=transport) as http:
            answer = http.get(f"{where.url}/v1/models", headers=where.headers)
    except FAILURES as error:
        raise OperatorError(trouble(where, error)) from error
    return read_listing(where, answer)


def trouble(where: Address, error: BaseException) -> str:
    """Return what one of FAILURES means to the user, in one line."""
    if isinstance(error, _UNREACHED):
        return f"no server answers at {where.url}: {_words(error)}; `penstock serve` starts one"
    if isinstance(error, httpx.TimeoutException):
        return f"{where.url} accepts connections, but is silent"
    return f"the connection to {where.url} was lost: {_words(error)}"


def read_listing(where: Address, answer: httpx.Response) -> RunningServer:
    """Return the server that sent this answer to `GET /v1/models`. Raise OperatorError."""
    if answer.status_code == 401:
        wrong = "does not know the API key" if where.key else "wants an API key"
        raise OperatorError(f"{where.url} {wrong}: give --api-key or set PENSTOCK_API_KEY")
    if answer.status_code != 200:
        raise OperatorError(f"{where.url}/v1/models answered {refusal(answer.status_code, answer.content)}")
    try:
        entries = answer.json()["data"]
        models = tuple(_listed(entry) for entry in entries)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise OperatorError(f"{where.url} is not an OpenAI-compatible server: it lists no models") from error
    # The header is absent behind some gateways.
    named = answer.headers.get("server", "").startswith("penstock")
    ours = named or any(entry.get("owned_by") == "penstock" for entry in entries)
    return RunningServer(where.url, where.key, models, ours)


def _listed(entry: Mapping[str, Any]) -> ListedModel:
    context, task = entry.get("max_model_len"), entry.get("task")
    return ListedModel(
        str(entry["id"]),
        context if isinstance(context, int) and context > 0 else None,
        task if isinstance(task, str) else "chat",
    )


def _words(error: BaseException) -> str:
    """Return a transport's error as one line."""
    return " ".join(str(error).split()) or type(error).__name__


def refusal(status: int, content: bytes) -> str:
    """Return the status and the message of an error's body: `503: the queue is full`."""
    try:
        body = httpx.Response(status, content=content).json()
        found = body["error"] if isinstance(body, dict) else body
        text = found["message"] if isinstance(found, dict) else str(found)
    except (ValueError, LookupError):
        text = httpx.codes.get_reason_phrase(status)
    line = " ".join(str(text).split())
    return f"{status}: {line[:_MESSAGE_CHARACTERS]}" if line else str(status)
