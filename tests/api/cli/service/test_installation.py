"""What `install` writes and shows, and `uninstall` removes."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from api.cli.errors import OperatorError
from api.cli.service import installation
from api.cli.service.commands import service
from api.cli.service.serve_arguments import own_variables
from api.cli.service.service_options import Platform, ServiceFiles, ServiceOptions
from scheduler.errors import OptionError

OPTIONS = ServiceOptions(
    program=("/opt/penstock",),
    arguments=("--port", "8000"),
    addresses=("127.0.0.1:8000",),
    platform=Platform.SYSTEMD,
)


@pytest.fixture
def places(tmp_path: Path) -> ServiceFiles:
    return ServiceFiles(tmp_path / "units/p.service", tmp_path / "conf/p", tmp_path / "logs/p.log")


def install(places: ServiceFiles, options: ServiceOptions = OPTIONS, **variables: str) -> list[Path]:
    return installation.write(installation.plan(options, places, variables), None)


def test_the_unit_is_for_all_and_the_keys_are_not(places: ServiceFiles) -> None:
    written = install(places, PENSTOCK_API_KEY="secret")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in written}
    assert modes == {"environment": 0o600, "service.json": 0o600, "p.service": 0o644, "p.socket": 0o644}
    assert [path.name for path in written if "secret" in path.read_text()] == ["environment"]
    assert stat.S_IMODE(places.folder.stat().st_mode) == 0o700
    assert installation.recorded(places) == OPTIONS


def test_a_second_install_keeps_the_environment_file(places: ServiceFiles) -> None:
    install(places, PENSTOCK_API_KEY="secret")
    places.environment.write_text("PENSTOCK_API_KEY=changed\n")
    other = replace(OPTIONS, arguments=("--port", "9000"))
    assert places.environment not in install(places, other, PENSTOCK_API_KEY="new")
    assert places.environment.read_text() == "PENSTOCK_API_KEY=changed\n"
    assert installation.recorded(places) == other


def test_uninstall_leaves_nothing_but_what_is_kept(places: ServiceFiles) -> None:
    install(places)
    logs = [places.log.with_name(name) for name in ("p.crash.log", "p.log", "p.log.1", "p-2.log")]
    for stranger in (other := places.unit.parent / "other.service", *logs):
        stranger.parent.mkdir(exist_ok=True)
        stranger.write_text("")
    removed = [places.unit, places.socket, places.record, *logs[:3]]
    assert installation.remove(places, keep_environment=True) == removed
    assert places.environment.exists()
    assert installation.remove(places, keep_environment=False) == [places.environment]
    assert not places.folder.exists()
    assert other.exists()
    assert logs[3].exists(), "it is that of a service with a longer name"


def test_a_folder_that_cannot_be_written_is_named(places: ServiceFiles) -> None:
    places.folder.parent.parent.joinpath("conf").write_text("a file")
    with pytest.raises(OperatorError, match=f"cannot write {places.environment}"):
        install(places)


def run(tmp_path: Path, *arguments: str, **variables: str) -> Result:
    """Run a command of `penstock service` in an empty home."""
    environment = {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "conf"),
        **variables,
    }
    return CliRunner().invoke(service, list(arguments), env=environment)


def test_print_shows_all_files_writes_none_and_hides_values(tmp_path: Path) -> None:
    key = "a-key-that-no-folder-is-named-after"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.platform", "linux")
        shown = run(tmp_path, "install", "--print", "--", "--port", "8123", PENSTOCK_API_KEY=key)
    assert shown.exit_code == 0, shown.output
    assert "ExecStart=" in shown.output
    assert "ListenStream=127.0.0.1:8123" in shown.output
    assert "PENSTOCK_API_KEY=...\n" in shown.output
    assert key not in shown.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-slots", "none"), "--max-slots"),
        (("--api-key", "k"), "environment file"),
        (("--port", "0"), "--port 0"),
    ],
)
def test_an_option_is_refused_by_name_before_anything_is_written(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    refused = run(tmp_path, "install", "--", *arguments)
    assert isinstance(refused.exception, (OperatorError, OptionError))
    assert said in str(refused.exception)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_option_of_serve_is_refused(tmp_path: Path) -> None:
    refused = run(tmp_path, "install", "--", "--prot", "8000")
    assert refused.exit_code == 2
    assert "--prot" in refused.output


def test_only_serves_own_variables_and_those_of_models_are_taken_over() -> None:
    """Another command's variable would be an unknown option of `serve`."""
    given = {"PENSTOCK_MAX_SLOTS": "4", "PENSTOCK_URL": "x", "HF_TOKEN": "t", "SECRET": "s"}
    assert own_variables(given) == {"HF_TOKEN": "t", "PENSTOCK_MAX_SLOTS": "4"}


@pytest.mark.parametrize("command", ["status", "restart", "uninstall"])
def test_a_service_that_is_not_there_is_said_to_be_none(tmp_path: Path, command: str) -> None:
    done = run(tmp_path, command)
    assert done.exit_code == 1
    assert isinstance(done.exception, OperatorError)
    assert "penstock service install" in str(done.exception)
