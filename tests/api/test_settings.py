"""Options that depend on each other, and values that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.api_keys import ApiKeys, load_keys
from api.serving import engine_environment
from api.settings import load
from scheduler.errors import OptionError

ONE_TENANT = "acme:one,acme:two admin"
TWO_TENANTS = "acme:one,globex:two"


@pytest.mark.parametrize(
    ("given", "keys", "sharing"),
    [
        ({}, None, "all"),
        ({}, "secret", "all"),
        ({}, ONE_TENANT, "all"),
        ({}, TWO_TENANTS, "tenant"),
        ({"tenant_header": "x-tenant"}, None, "tenant"),
        ({"tenant_header": "x-tenant"}, ONE_TENANT, "tenant"),
        ({"cache_sharing": "auto"}, TWO_TENANTS, "tenant"),
        ({"cache_sharing": "all"}, TWO_TENANTS, "all"),
        ({"cache_sharing": "all", "tenant_header": "x-tenant"}, None, "all"),
        ({"cache_sharing": "tenant"}, None, "tenant"),
    ],
)
def test_prefixes_are_shared_by_all_only_where_there_is_one_tenant(
    given: dict[str, str], keys: str | None, sharing: str
) -> None:
    """`cached_tokens` would tell one tenant what another's prompt says, token by token."""
    settings = load(given)
    found = ApiKeys() if keys is None else load_keys(keys, None)
    assert settings.scheduler_config(Path("none"), found).cache_sharing == sharing


@pytest.mark.parametrize("name", [",", " , ", ""])
def test_a_served_model_has_a_name(name: str) -> None:
    with pytest.raises(OptionError, match="--served-model-name"):
        load({"served_model_name": name})


def test_the_engine_gets_no_key() -> None:
    environment = {"PENSTOCK_API_KEY": "secret", "PENSTOCK_PORT": "8000", "PATH": "/bin", "HF_HOME": "/hub"}
    assert engine_environment(environment) == {"PATH": "/bin", "HF_HOME": "/hub"}
