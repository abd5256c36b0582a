"""Downloads from a hub on the loopback: whole, cut, damaged, refused, and onto a disk that is full."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from huggingface_hub import constants

from api.cli.errors import OperatorError
from api.cli.models.disk_models import find
from api.cli.models.download import Download, Result
from api.cli.models.hub import list_files
from api.download_progress import ComingFile, DownloadProgress
from scheduler.errors import StartupError
from scheduler.prompt import model_folder
from tests.fakes.fake_hub import FakeHub, running
from tests.fakes.model_files import COMMIT, model_files, weights, write_files

GB = 10**9
WEIGHTS = "model.safetensors"


class Notes(DownloadProgress):
    """Keeps what is said of a download."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.advanced: dict[str, int] = {}

    def begin(self, file: ComingFile, have_bytes: int) -> None:
        self.advanced[file.path] = have_bytes

    def advance(self, file: ComingFile, nbytes: int) -> None:
        self.advanced[file.path] += nbytes

    def done(self, file: ComingFile) -> None:
        assert self.advanced[file.path] == file.nbytes

    def note(self, text: str) -> None:
        self.notes.append(text)


async def no_pause(seconds: float) -> None:
    """Retries need no clock here."""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    files = model_files() | {WEIGHTS: weights(100_000), "model.bin": b"no", "README.md": b"terms"}
    with running(FakeHub(files)) as started:
        yield started


def download(
    hub: FakeHub, cache: Path, token: str | None = None, free: int = 100 * GB, revision: str = "main"
) -> Download:
    listing = list_files("owner/small", revision, hub.url)
    return Download(listing, cache, hub.url, token, Notes(), lambda path: free, no_pause)


def fetched(given: Download) -> Result:
    """Fails with the one error of `run`."""
    return trio.run(given.run)


def halves(cache: Path) -> list[Path]:
    return list(cache.glob("*/blobs/*.incomplete"))


def test_a_model_comes_whole_and_is_where_the_hubs_library_looks(hub: FakeHub, tmp_path: Path) -> None:
    """What it is not served from stays there; every file was compared with a checksum."""
    given = download(hub, tmp_path)
    result = fetched(given)
    assert (result.sha256_files, result.git_files, result.present_files) == (2, 4, 0)
    assert result.fetched_bytes == sum(map(len, hub.files.values())) - len(b"no")
    assert sorted(path.name for path in result.folder.iterdir()) == sorted(hub.files.keys() - {"model.bin"})
    (model,) = [one for one in find(cache=tmp_path, dialects=False) if one.source == "hub"]
    assert (model.name, model.reason, model.revision) == ("owner/small", "", COMMIT)
    from huggingface_hub import snapshot_download

    assert Path(snapshot_download("owner/small", cache_dir=tmp_path, local_files_only=True)) == result.folder
    assert not halves(tmp_path)


def test_a_second_pull_fetches_nothing(hub: FakeHub, tmp_path: Path) -> None:
    """One listing is asked for."""
    fetched(download(hub, tmp_path))
    hub.asked.clear()
    result = fetched(download(hub, tmp_path))
    assert (result.fetched_bytes, result.present_files) == (0, 6)
    assert [path for _, path, _ in hub.asked] == ["/api/models/owner/small/revision/main"]


def test_a_cut_connection_goes_on_where_it_was_cut(hub: FakeHub, tmp_path: Path) -> None:
    """Within one pull, by a range, and no byte twice."""
    hub.cut_after[WEIGHTS] = 70_000
    result = fetched(download(hub, tmp_path))
    ranges = [wanted for _, path, wanted in hub.asked if path.endswith(WEIGHTS)]
    assert ranges == ["", "bytes=70000-"]
    assert result.fetched_bytes == sum(map(len, hub.files.values())) - len(b"no")


def test_a_pull_goes_on_where_another_one_ended(hub: FakeHub, tmp_path: Path) -> None:
    """Which said so; meanwhile the half model is listed, and its files are not served as whole."""
    hub.failing[WEIGHTS] = [503] * 5
    with pytest.raises(OperatorError, match="pull again to go on"):
        fetched(download(hub, tmp_path))
    etag = hub.etag(WEIGHTS)
    half = tmp_path / "models--owner--small" / "blobs" / f"{etag}.incomplete"
    half.write_bytes(hub.files[WEIGHTS][:123_456])
    (model,) = [one for one in find(cache=tmp_path, dialects=False) if one.source == "hub"]
    assert (model.partial_bytes, model.reason) == (123_456, "the folder holds no model*.safetensors")
    hub.asked.clear()
    assert fetched(download(hub, tmp_path)).fetched_bytes == len(hub.files[WEIGHTS]) - 123_456
    assert hub.asked[-1][2] == "bytes=123456-"
    assert not halves(tmp_path)


def test_a_server_without_ranges_is_asked_for_the_whole(hub: FakeHub, tmp_path: Path) -> None:
    """Its answer does not follow what was there."""
    hub.ranges, hub.cut_after[WEIGHTS] = False, 50_000
    result = fetched(download(hub, tmp_path))
    assert (result.folder / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


def test_a_damaged_half_file_is_fetched_anew(hub: FakeHub, tmp_path: Path) -> None:
    """And that is said."""
    blobs = tmp_path / "models--owner--small" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hub.etag(WEIGHTS)}.incomplete").write_bytes(b"x" * 1000)
    given = download(hub, tmp_path)
    result = fetched(given)
    assert (result.folder / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    assert isinstance(given.progress, Notes)
    assert given.progress.notes == [f"{WEIGHTS}: what was there is damaged, fetched again from its start"]


@pytest.mark.parametrize("file", [WEIGHTS, "config.json"])
def test_a_damaged_file_is_refused_and_deleted(file: str, hub: FakeHub, tmp_path: Path) -> None:
    """By SHA-256, or git's checksum of small files. The next pull has it right."""
    hub.damaged[file] = 1
    with pytest.raises(OperatorError, match=f"{file} is damaged"):
        fetched(download(hub, tmp_path))
    assert not list(tmp_path.glob(f"*/blobs/{hub.etag(file)}*"))
    assert (fetched(download(hub, tmp_path)).folder / file).read_bytes() == hub.files[file]


def test_a_disk_without_room_is_refused_with_figures_before_a_byte(hub: FakeHub, tmp_path: Path) -> None:
    """A half file counts; one that is there needs nothing."""
    hub.files[WEIGHTS] = weights(2_000_000)
    with pytest.raises(OperatorError, match=r"needs 4\.2 MB more in .* 268 MB (.|\n)*260 MB are free"):
        download(hub, tmp_path, free=260_000_000).check_disk()
    download(hub, tmp_path, free=273_000_000).check_disk()
    assert not list(tmp_path.iterdir())
    half = f"models--owner--small/blobs/{hub.etag(WEIGHTS)}.incomplete"
    write_files(tmp_path, {half: b"1" * 4_000_000})
    download(hub, tmp_path, free=269_000_000).check_disk()


# httpx leaves its own generators to the garbage collector where a reader stops early.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_disk_that_fills_meanwhile_is_named(hub: FakeHub, tmp_path: Path) -> None:
    """/dev/full takes no byte."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    blobs = tmp_path / "models--owner--small" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hub.etag(WEIGHTS)}.incomplete").symlink_to("/dev/full")
    with pytest.raises(OperatorError, match="cannot be written: No space left on device"):
        fetched(download(hub, tmp_path))


def test_a_second_pull_at_the_same_time_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    """Two would mix their bytes in one file."""
    import fcntl

    blobs = tmp_path / "models--owner--small" / "blobs"
    blobs.mkdir(parents=True)
    with (blobs / f"{hub.etag(WEIGHTS)}.incomplete").open("wb") as half:
        fcntl.flock(half, fcntl.LOCK_EX)
        with pytest.raises(OperatorError, match="another penstock pulls this model"):
            fetched(download(hub, tmp_path))


def test_what_the_small_files_say_comes_before_the_weights(hub: FakeHub, tmp_path: Path) -> None:
    """A model that cannot be served costs no gigabytes."""

    def refuse(snapshot: Path) -> None:
        assert (snapshot / "config.json").exists()
        raise OperatorError("no such type")

    with pytest.raises(OperatorError, match="no such type"):
        trio.run(partial(download(hub, tmp_path).run, refuse))
    assert not any(path.endswith(WEIGHTS) for _, path, _ in hub.asked)


def test_a_gated_model_needs_the_token_of_an_account(hub: FakeHub, tmp_path: Path) -> None:
    """Its listing is public, its files are not."""
    hub.token = "hf_right"
    with pytest.raises(OperatorError, match="is gated: accept its terms"):
        fetched(download(hub, tmp_path))
    assert fetched(download(hub, tmp_path, token="hf_right")).sha256_files == 2


def test_the_token_goes_to_the_hub_and_to_no_other_host(hub: FakeHub, tmp_path: Path) -> None:
    """Large files lie elsewhere, and the hub's answer leads there; what is cut goes on there, too."""
    hub.token = "hf_right"
    with running(FakeHub(hub.files, cut_after={WEIGHTS: 1000})) as storage:
        hub.redirect = storage.url
        assert fetched(download(hub, tmp_path, token="hf_right")).sha256_files == 2
    assert set(hub.tokens) == {"Bearer hf_right"}
    assert set(storage.tokens) == {""}
    assert "bytes=1000-" in [wanted for _, _, wanted in storage.asked]


@pytest.mark.parametrize(
    ("status", "words"), [(403, "is gated"), (404, "does not have it"), (429, "429"), (500, "answers 500")]
)
def test_a_files_refusal_is_named(status: int, words: str, hub: FakeHub, tmp_path: Path) -> None:
    """What may be better in a moment is tried again first."""
    hub.failing["config.json"] = [status] * 5
    with pytest.raises(OperatorError, match=words):
        fetched(download(hub, tmp_path))
    tries = 5 if status in (429, 500) else 1
    assert len([path for _, path, _ in hub.asked if path.endswith("/config.json")]) == tries


@pytest.mark.parametrize(
    ("model", "revision", "words"),
    [
        ("owner/none", "main", "the hub has no model 'owner/none'"),
        ("owner/small", "v9", "has no revision 'v9'"),
        ("owner/small", "../..", "is no revision"),
        ("small", "main", "is no hub id"),
        ("../../etc", "main", "is no hub id"),
        ("a/b/c", "main", "is no hub id"),
    ],
)
def test_an_id_or_a_revision_that_is_not_there_is_named(
    model: str, revision: str, words: str, hub: FakeHub
) -> None:
    """What no id looks like is not asked for."""
    with pytest.raises(OperatorError, match=words):
        list_files(model, revision, hub.url)
    assert bool(hub.asked) == ("no hub id" not in words and "is no revision" not in words)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config.json": b"{}", "a.gguf": b""}, r"no model\*.safetensors, only .gguf files"),
        ({"model.safetensors": b"1"}, "holds no config.json"),
        ({"../model.json": b"1"}, "has no use"),
    ],
)
def test_a_repository_that_is_no_model_is_refused(files: dict[str, bytes], words: str) -> None:
    """Before anything is fetched; a path that leaves the folder is not followed."""
    with running(FakeHub(files)) as hub, pytest.raises(OperatorError, match=words):
        list_files("owner/small", "main", hub.url)


def test_no_network_is_named() -> None:
    """Nobody listens on port 1."""
    with pytest.raises(OperatorError, match=r"cannot be reached .*\ncheck the network"):
        list_files("owner/small", "main", "http://127.0.0.1:1")


@pytest.mark.parametrize("why", ["no network", "offline", "no such model"])
def test_serve_says_of_a_hub_what_pull_says(
    why: str, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's library wraps some of these in one that speaks of its cache alone."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", why == "offline")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1" if why == "no network" else hub.url)
    with pytest.raises(OperatorError) as pulled:
        list_files("owner/none", "main")
    with pytest.raises(StartupError) as served:
        model_folder.find("owner/none")
    assert str(served.value) == f"--model: {pulled.value}"
