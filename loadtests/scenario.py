"""Scenarios: small declarative files that describe which requests are sent, when, and how their clients
behave.

A scenario is a list of populations; each is a number of agents of one kind. Loading checks everything and
refuses unknown keys by name; `--set population.prompt.shared_tokens=1024` changes any value.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class ScenarioError(Exception):
    """A scenario file or an override is invalid; the message names the place."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Closed(_Part):
    """`clients` agents, each of which starts its next session when the last has ended."""

    kind: Literal["closed"]
    clients: int = Field(ge=1)


class Burst(_Part):
    """`clients` sessions that start at the same instant."""

    kind: Literal["burst"]
    clients: int = Field(ge=1)


class Poisson(_Part):
    """Open loop: sessions arrive at random, `rate` a second on average. `burstiness` 1 is Poisson; less is
    burstier (gamma-distributed gaps with this shape, as in vllm bench)."""

    kind: Literal["poisson"]
    rate: float = Field(gt=0)
    burstiness: float = Field(default=1.0, ge=0.01)


class OfCapacity(_Part):
    """Open loop at a multiple of the target's measured capacity (a closed-loop probe of `probe_clients` for
    `probe_seconds`, outside the measured window)."""

    kind: Literal["of-capacity"]
    multiple: float = Field(gt=0)
    probe_clients: int = Field(default=32, ge=1)
    probe_seconds: float = Field(default=10.0, gt=0)


Arrivals = Annotated[Closed | Burst | Poisson | OfCapacity, Field(discriminator="kind")]


class Prompt(_Part):
    """Three layers before the conversation: common to all (system prompt and tools), to a group (a
    repository), and to the session. Lengths are in tokens of the target's tokenizer."""

    shared_tokens: int = Field(default=0, ge=0)
    group_tokens: int = Field(default=0, ge=0)
    groups: int = Field(default=1, ge=1)
    private_tokens: int = Field(default=64, ge=1)


class Turns(_Part):
    """A session's turns; the history has the server's own answers."""

    least: int = Field(default=1, ge=1)
    most: int = Field(default=1, ge=1)
    growth_tokens: int = Field(default=200, ge=1)
    """What each further turn adds: a tool's result or a user's message."""
    gap_median_seconds: float = Field(default=0.0, ge=0)
    gap_sigma: float = Field(default=0.0, ge=0)
    """Sigma of the lognormal gap between an answer and the next turn (tools run, people think)."""
    gap_most_seconds: float = Field(default=30.0, ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> Turns:
        if self.most < self.least:
            raise ValueError("`most` is less than `least`")
        return self


class Subagents(_Part):
    """Subagents that the agent starts at one turn: `count` of them, all of which it waits for. They share the
    agent's shared and group layers, have a history of their own, and belong to its session."""

    at_turn: int = Field(ge=1)
    count: int = Field(ge=1)
    turns: int = Field(default=2, ge=1)


class Output(_Part):
    """`exact` requires exactly this many tokens (ignore_eos if the target supports it)."""

    least: int = Field(default=64, ge=1)
    most: int = Field(default=64, ge=1)
    exact: bool = True

    @model_validator(mode="after")
    def _ordered(self) -> Output:
        if self.most < self.least:
            raise ValueError("`most` is less than `least`")
        return self


class Population(_Part):
    """Agents of one kind."""

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    tenant: str = "default"
    """Sent as the API key, if the target knows tenants."""
    arrivals: Arrivals
    start_seconds: float = Field(default=0.0, ge=0)
    sessions: int | None = Field(default=None, ge=1)
    """All sessions of the population; without it only the run's time bounds them."""
    prompt: Prompt = Prompt()
    turns: Turns = Turns()
    output: Output = Output()
    questions: int = Field(default=0, ge=0, le=400)
    """Typed questions about the conversation that each turn asks, in place of an answer (`/v1/decisions`)."""
    sampling: Literal["greedy", "mixed"] = "greedy"
    """mixed: every session has its own temperature, top_p and so on, seed, penalties and, if `output.exact`
    is false, stop strings."""
    subagents: Subagents | None = None
    timeout_seconds: float | None = Field(default=None, gt=0)
    """The client's deadline for the whole answer, sent to every target (`x-request-timeout`); most ignore it,
    and the client disconnects after it. None waits as long as bytes arrive."""
    measured: bool = True
    """False for a flood whose own latency is not measured."""


class Bounds(_Part):
    """The bounds of a run, of which each run has all."""

    seconds: float = Field(default=60.0, gt=0)
    requests: int = Field(default=10_000, ge=1)
    request_seconds: float = Field(default=120.0, gt=0)
    """The longest silence of one stream."""


class Slo(_Part):
    """The latency bounds for goodput."""

    ttft_seconds: float = Field(default=2.0, gt=0)
    tpot_seconds: float = Field(default=0.2, gt=0)


class Scenario(_Part):
    """One file."""

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    description: str = Field(min_length=1)
    seed: int = 0
    token_scale: float = Field(default=1.0, gt=0)
    """A factor on the lengths of all prompts: the shipped ones are for a laptop's CPU."""
    warm_up_seconds: float = Field(default=0.0, ge=0)
    bounds: Bounds = Bounds()
    slo: Slo = Slo()
    populations: tuple[Population, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_has_a_name(self) -> Scenario:
        names = [population.name for population in self.populations]
        if len(set(names)) != len(names):
            raise ValueError("two populations have the same name")
        return self


def shipped() -> dict[str, Path]:
    """Return the scenarios that come with Penstock, by name."""
    return {path.stem: path for path in sorted(Path(__file__).with_name("scenarios").glob("*.toml"))}


def load(name_or_file: str, overrides: tuple[str, ...] = ()) -> Scenario:
    """Load a shipped scenario by name, or any file. Each override is `path.to.value=VALUE` (TOML), which
    addresses a population by its name. Raise ScenarioError if something is invalid."""
    path = shipped().get(name_or_file, Path(name_or_file))
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        known = ", ".join(shipped())
        raise ScenarioError(f"{name_or_file!r} is neither a file nor one of the scenarios {known}") from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ScenarioError(f"{path}: {error}") from error
    for override in overrides:
        _override(document, override)
    try:
        return Scenario.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ScenarioError(f"{path}: {place}: {first['msg'].removeprefix('Value error, ')}") from error


def _override(document: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals:
        raise ScenarioError(f"--set {override}: write it as path.to.value=VALUE")
    *parents, last = dotted.strip().split(".")
    place: Any = document
    for part in parents:
        named = [item for item in document.get("populations", []) if item.get("name") == part]
        if place is document and named:
            place = named[0]
        else:
            place = place.setdefault(part, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise ScenarioError(f"--set {override}: there is no {part!r} to set anything in")
    try:
        place[last] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        place[last] = text
