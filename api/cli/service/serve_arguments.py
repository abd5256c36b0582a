"""Check a service's arguments before anything is written or started."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace

from api.cli.errors import OperatorError
from api.cli.join import engine
from api.cli.serve_command import serve_settings
from api.cli.service.environment_file import KEPT
from api.cli.service.service_options import ServiceOptions
from api.options import options as serve_options
from api.options.options import ENVIRONMENT_PREFIX
from api.options.settings import ServeSettings
from scheduler.engine.joining import TOKEN_VARIABLE

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def known_variables() -> frozenset[str]:
    """Return the names of variables that are options of `serve`."""
    return frozenset(
        serve_options.variable(name) for option in serve_options.options() for name in option.names
    )


def own_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a new environment file takes over."""
    kept = known_variables() | {TOKEN_VARIABLE, *KEPT}
    return {name: value for name, value in sorted(environment.items()) if name in kept}


def serve_settings_of(arguments: Sequence[str], variables: Mapping[str, str]) -> ServeSettings:
    """Return the settings that `serve` would use with the service's `variables` in place of this process's.
    Raise OperatorError, OptionError or click.UsageError."""
    if any(one == "--api-key" or one.startswith("--api-key=") for one in arguments):
        raise OperatorError(
            "--api-key would be in the unit, which others can read: set PENSTOCK_API_KEY instead,\n"
            "and install writes it to the environment file, which they cannot"
        )
    own = {name: value for name, value in variables.items() if name.startswith(ENVIRONMENT_PREFIX)}
    others = {name: value for name, value in os.environ.items() if name not in known_variables()}
    settings = serve_settings(arguments, {**others, **own})
    # This reads the files that the key options name, too.
    settings.keys()
    return settings


def checked(options: ServiceOptions, variables: Mapping[str, str]) -> tuple[ServiceOptions, str | None]:
    """Check the arguments, and return the options with what follows from them, and the server's URL, which an
    engine has not. Raise OperatorError, OptionError or click.UsageError for what would be refused."""
    if options.engine:
        given = engine.make_context("penstock engine", list(options.arguments)).params
        if given["token_file"] is None and TOKEN_VARIABLE not in variables:
            raise OperatorError(f"the server's token is needed: --token-file FILE, or {TOKEN_VARIABLE}")
        return options, None
    settings = serve_settings_of(options.arguments, variables)
    addresses = addresses_of(settings)
    return replace(options, addresses=addresses, drain_seconds=settings.drain_seconds), url_of(settings)


def addresses_of(settings: ServeSettings) -> tuple[str, ...]:
    """Return every IP address and port that `serve` would listen on, those for metrics last: systemd takes no
    host names. Raise OperatorError, also for a port that changes with each start: no client could find it."""
    host, found = settings.host, []
    for option, port in (("--port", settings.port), ("--metrics-port", settings.metrics_port)):
        if port is None:
            continue
        if port == 0:
            raise OperatorError(f"{option} 0 is another port at each start: a service needs one that stays")
        try:
            each = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise OperatorError(f"cannot find the address of {host}: {error}") from error
        found += [_with_port(str(address[0]), port) for *_, address in each]
    return tuple(dict.fromkeys(found))


def url_of(settings: ServeSettings) -> str:
    """Return the URL at which this machine reaches the server."""
    return f"http://{_with_port(_ANY.get(settings.host, settings.host), settings.port)}"


def _with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
