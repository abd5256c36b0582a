"""Options that depend on each other, invalid values, and the option table."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import pytest
from click.testing import CliRunner

from api import serving
from api.access.api_keys import ApiKeys, load_keys
from api.assembly import engine_environment
from api.cli.command_line import penstock
from api.options.options import load, options
from api.options.scheduler_settings import MAX_QUEUED_TOKENS, scheduler_config
from api.options.settings import ServeSettings
from scheduler.config import EngineConfig, IntakeConfig, SupervisionConfig, load_message
from scheduler.errors import OptionError, StartupError
from scheduler.prompt.embedder import Embedder
from scheduler.shared.pooling import Pooler
from tests.api import option_table

ONE_TENANT = "acme:one,acme:two admin"
TWO_TENANTS = "acme:one,globex:two"


@pytest.mark.parametrize(
    ("given", "keys", "sharing"),
    [
        ({}, None, "all"),
        ({}, ONE_TENANT, "all"),
        ({}, TWO_TENANTS, "tenant"),
        ({"tenant_header": "x-tenant"}, None, "tenant"),
        ({"cache_sharing": "all"}, TWO_TENANTS, "all"),
        ({"cache_sharing": "tenant"}, None, "tenant"),
    ],
)
def test_prefixes_are_shared_by_all_only_where_there_is_one_tenant(
    given: dict[str, str], keys: str | None, sharing: str
) -> None:
    """`cached_tokens` would let one tenant discover another's prompt, token by token."""
    settings = load(given)
    found = ApiKeys() if keys is None else load_keys(keys, None)
    assert scheduler_config(settings, Path("none"), found, Path("cache")).cache_sharing == sharing


def test_the_engine_gets_no_key() -> None:
    environment = {"PENSTOCK_API_KEY": "secret", "PENSTOCK_PORT": "8000", "PATH": "/bin", "HF_HOME": "/hub"}
    assert engine_environment(environment) == {"PATH": "/bin", "HF_HOME": "/hub"}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServeSettings]:
    """Collects the settings of each `penstock serve` instead of serving."""
    found: list[ServeSettings] = []
    monkeypatch.setattr(serving, "serve", lambda settings, log: found.append(settings))
    return found


def test_the_command_line_goes_before_the_environment(served: list[ServeSettings]) -> None:
    """As a flag and as a variable; an empty variable is none."""
    for line, environment in [
        (["--max-slots", "5"], {"PENSTOCK_MAX_SLOTS": "6"}),
        ([], {"PENSTOCK_MAX_SLOTS": "5"}),
        (["--max-slots", "5"], {"PENSTOCK_MAX_SLOTS": ""}),
    ]:
        CliRunner().invoke(penstock, ["serve", *line], env=environment, catch_exceptions=False)
    assert [settings.max_slots for settings in served] == [5, 5, 5]


_SIZES = [one.field for one in options() if one.field.endswith("_bytes") or one.field == "memory_limit"]


@pytest.mark.parametrize("field", _SIZES)
@pytest.mark.parametrize("size", ["1.7", "8", "999", "0.5k"])
def test_a_size_whose_unit_was_forgotten_is_refused(field: str, size: str) -> None:
    """1.7 would be one byte, and as a memory limit the share 1: the whole memory."""
    with pytest.raises(OptionError, match=rf"--{field.replace('_', '-')} .*: write the unit, as [0-9.]+GiB"):
        load({field: size})
    with pytest.raises(OptionError, match="write the unit, as 8GiB"):
        load({"max_stored_bytes": 8})  # type: ignore[dict-item]  # As a file of models has it.
    assert load({"max_stored_bytes": "0"}).max_stored_bytes == 0


def test_the_option_table_is_true() -> None:
    """`python -m tests.api.option_table` regenerates it."""
    text = option_table.PAGE.read_text()
    assert option_table.rewrite(text) == text


@pytest.mark.parametrize(
    ("line", "environment"),
    [
        (["--adapter", "red=/a/one", "--adapter", "blue=/b/t w o"], {}),
        (["--adapter", "red=/a/one,blue=/b/t w o"], {}),
        ([], {"PENSTOCK_ADAPTER": "red=/a/one,blue=/b/t w o"}),
        (["--adapter", "red=/a/one", "--adapter", "blue=/b/t w o"], {"PENSTOCK_ADAPTER": "green=/c"}),
    ],
)
def test_adapters_are_given_several_times_or_with_commas(
    line: list[str], environment: dict[str, str], served: list[ServeSettings]
) -> None:
    CliRunner().invoke(penstock, ["serve", *line], env=environment, catch_exceptions=False)
    assert served[-1].adapters() == {"red": Path("/a/one"), "blue": Path("/b/t w o")}
    for text in ("red", "red=", "=folder", "red=/a,red=/b", "red=/a,/b"):
        with pytest.raises(OptionError, match="--adapter"):
            load({"adapter": text})


def test_what_an_option_and_a_configuration_name_alike_is_one_value() -> None:
    """But for three, of which an engine gets what is made of them."""
    made = {"model", "kv_disk", "kv_disk_bytes"}
    parts = {"engine": EngineConfig, "supervision": SupervisionConfig}
    both = {
        part: {*signature(kind).parameters} & {*ServeSettings.model_fields} for part, kind in parts.items()
    }
    assert both["engine"] > made
    given = {name: object() for names in both.values() for name in names - made}
    settings = load({}).model_copy(update=given)
    config = scheduler_config(settings, Path("none"), ApiKeys(), Path("cache"))
    found = {name: getattr(getattr(config, part), name) for part in both for name in both[part] - made}
    assert found == given


def test_a_bound_of_zero_is_none() -> None:
    given = {"queue_seconds": "0", "max_running_seconds": "5", "max_queue": "9"}
    queue = scheduler_config(load(given), Path("none"), ApiKeys(), Path("cache")).intake
    assert queue == IntakeConfig(max_queue=9, max_queued_tokens=MAX_QUEUED_TOKENS, max_running_seconds=5.0)


def test_more_adapters_than_there_may_be_are_refused() -> None:
    settings = load({"adapter": ",".join(f"a{number}=/none" for number in range(65))})
    with pytest.raises(StartupError, match="there may be 64 adapters, not 65"):
        scheduler_config(settings, Path("none"), ApiKeys(), Path("cache"))


def test_an_embedders_engine_gets_as_many_texts_ahead_as_it_has_slots() -> None:
    """All rows of a step may end with it; a chat's end one by one."""
    settings, pooler = load({"max_slots": "40"}), Pooler()
    configs = [
        scheduler_config(settings, Path("none"), ApiKeys(), Path("cache"), embedder)
        for embedder in (None, Embedder(pooler, 16), Embedder(None, 1, answers=(7, 3)))
    ]
    assert [config.intake.lookahead for config in configs] == [4, 40, 40]
    loads = [load_message(config.engine) for config in configs]
    assert [(load.pooler, load.yields) for load in loads] == [(None, False), (pooler, True), (None, True)]
