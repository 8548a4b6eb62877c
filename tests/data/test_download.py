"""Downloads from a server on this machine: whole, broken off, wrong, and by several processes at once."""

import gzip
import hashlib
import io
import random
import socket
import tarfile
import threading

import pytest

from alidpfl.data import SOURCES, download, get
from alidpfl.data.sources import KnownFile, Source
from alidpfl.errors import ConfigError, DataError

from .server import Site, serving

CONTENT = {name: random.Random(name).randbytes(300_000) for name in ("images", "labels")}  # noqa: S311


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(download, "_PAUSE", 0.0)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def site():
    packed = {f"{name}.gz": gzip.compress(content) for name, content in CONTENT.items()}
    with serving(Site(files=packed)) as running:
        yield running


def known(**contents):
    return tuple(KnownFile(name=n, sha256=hashlib.sha256(c).hexdigest()) for n, c in contents.items())


def source(site, files=None):
    files = files or known(**CONTENT)
    return Source(name="tiny", folder="Tiny/raw", base_url=site.url, files=files, megabytes=1)


def contents(folder):
    return {path.name: gzip.decompress(path.read_bytes()) for path in folder.iterdir()}


WHOLE = {f"{name}.gz": content for name, content in CONTENT.items()}


def test_every_file_comes_and_nothing_else_is_left(site, tmp_path):
    seen = []
    folder = get(source(site), tmp_path, on_progress=lambda what, share: seen.append((what, share)))
    assert folder == tmp_path / "Tiny" / "raw"
    assert contents(folder) == WHOLE
    assert ("tiny: images.gz", 1.0) in seen
    assert all(0 < share <= 1 for _, share in seen)
    assert len(seen) > 4


def test_what_is_there_and_whole_is_not_fetched_again(site, tmp_path):
    folder = get(source(site), tmp_path)
    (folder / "images.gz").unlink()
    (folder / "images").write_bytes(CONTENT["images"])  # unpacked serves as well
    site.requests.clear()
    get(source(site), tmp_path)
    assert site.requests == []


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_a_corrupt_file_is_replaced(site, tmp_path, name):
    folder = get(source(site), tmp_path)
    (folder / "images.gz").unlink()
    (folder / name).write_bytes(b"junk")
    get(source(site), tmp_path)
    assert contents(folder) == WHOLE


def test_a_cut_connection_is_resumed_where_it_broke(site, tmp_path):
    site.cut_after = [1000, 5000]
    folder = get(source(site), tmp_path)
    assert contents(folder) == WHOLE
    assert [r for r in site.requests if r[0] == "/images.gz"] == [
        ("/images.gz", None),
        ("/images.gz", "bytes=1000-"),
        ("/images.gz", "bytes=6000-"),
    ]


def test_a_download_that_failed_leaves_nothing(site, tmp_path):
    site.cut_after = [1000, 10, 10, 10]
    with pytest.raises(DataError, match=r"images\.gz .*1030 of"):
        get(source(site), tmp_path)
    assert list((tmp_path / "Tiny" / "raw").iterdir()) == []
    assert contents(get(source(site), tmp_path)) == WHOLE


def test_ctrl_c_leaves_nothing(site, tmp_path):
    def interrupt(what, share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(source(site), tmp_path, on_progress=interrupt)
    assert list((tmp_path / "Tiny" / "raw").iterdir()) == []


def test_a_server_that_ignores_range(site, tmp_path):
    site.cut_after, site.ignores_range = [1000], True
    assert contents(get(source(site), tmp_path)) == WHOLE


def test_a_wrong_checksum_is_refused_and_leaves_nothing(site, tmp_path):
    site.files["images.gz"] = gzip.compress(b"other")
    with pytest.raises(DataError, match=r"images\.gz .*sha256 .*Tiny/raw"):
        get(source(site), tmp_path)
    assert list((tmp_path / "Tiny" / "raw").iterdir()) == []
    assert len(site.requests) == 1
    site.files["images.gz"] = b"<html>please sign in</html>"
    with pytest.raises(DataError, match=r"images\.gz .*sha256"):
        get(source(site), tmp_path)


def test_not_found_is_not_tried_again(site, tmp_path):
    del site.files["images.gz"]
    with pytest.raises(DataError, match=r"images\.gz .*404.*ALIDPFL_DATA_DIR"):
        get(source(site), tmp_path)
    assert len(site.requests) == 1


def test_a_busy_server_is_tried_again(site, tmp_path):
    site.statuses = [503, 500]
    assert contents(get(source(site), tmp_path)) == WHOLE


def test_without_network_it_says_what_to_do(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
    with pytest.raises(DataError) as error:
        get("mnist", tmp_path, base_url=url)
    for remedy in (f"{url}train-images-idx3-ubyte.gz", str(tmp_path / "MNIST" / "raw"), "ALIDPFL_DATA_DIR"):
        assert remedy in str(error.value)


def test_only_http(tmp_path):
    with pytest.raises(DataError, match="file:///etc/"):
        get("mnist", tmp_path, base_url="file:///etc/")


def test_a_folder_that_cannot_be_written(site, tmp_path):
    (tmp_path / "Tiny").write_text("a file in the way")
    with pytest.raises(DataError, match=r"Tiny/raw"):
        get(source(site), tmp_path)


def test_several_at_once_do_not_mix(site, tmp_path):
    failures = []

    def run():
        try:
            get(source(site), tmp_path)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert contents(tmp_path / "Tiny" / "raw") == WHOLE


def tar_of(members):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            else:
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content or b""))
    return raw.getvalue()


def packed_source(site, members, files=None):
    packed = tar_of(members)
    site.files["all.tar.gz"] = packed
    return Source(
        name="tiny",
        folder="tiny-bin",
        base_url=site.url,
        files=files or known(**CONTENT),
        archive="all.tar.gz",
        archive_md5=hashlib.md5(packed, usedforsecurity=False).hexdigest(),
        megabytes=1,
    )


def test_an_archive_gives_its_known_files_and_nothing_else(site, tmp_path):
    extra = [("tiny-bin/readme.html", b"x"), ("../escape", b"x"), ("/abs", b"x"), ("tiny-bin/labels2", None)]
    members = [*extra, *((f"tiny-bin/{name}", content) for name, content in CONTENT.items())]
    into = tmp_path / "data"
    folder = get(packed_source(site, members), into)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENT
    assert sorted(path.name for path in into.iterdir()) == ["tiny-bin"]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    site.requests.clear()
    get(packed_source(site, members), into)
    assert site.requests == []


@pytest.mark.parametrize(
    ("members", "value"),
    [
        ([("tiny-bin/images", CONTENT["images"])], "tiny-bin/labels"),
        ([("tiny-bin/images", CONTENT["images"]), ("tiny-bin/labels", None)], "tiny-bin/labels"),
        ([("tiny-bin/images", b"other"), ("tiny-bin/labels", CONTENT["labels"])], "images in .*sha256"),
    ],
)
def test_an_archive_with_other_files_is_refused(site, tmp_path, members, value):
    with pytest.raises(DataError, match=value):
        get(packed_source(site, members), tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.glob("tiny-bin/*")}
    assert all(CONTENT[name] == content for name, content in written.items())


def test_an_archive_with_a_wrong_sum_is_not_unpacked(site, tmp_path):
    tiny = packed_source(site, [(f"tiny-bin/{name}", content) for name, content in CONTENT.items()])
    site.files["all.tar.gz"] += b"x"
    with pytest.raises(DataError, match=r"all\.tar\.gz .*md5"):
        get(tiny, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_downloaded(tmp_path):
    with pytest.raises(ConfigError, match=r"'strokes'.*mnist, fashion_mnist, cifar10"):
        get("strokes", tmp_path)


@pytest.mark.real_data
def test_the_known_sums_are_those_of_the_real_files(data_dir):
    for name, real in SOURCES.items():
        for file in real.files:
            assert download.is_whole(data_dir / real.folder / file.name, file), f"{name}: {file.name}"


@pytest.mark.real_data
def test_real_files_through_a_server(data_dir, tmp_path):
    raw = data_dir / "MNIST" / "raw"
    with serving(Site(files={path.name: path.read_bytes() for path in raw.iterdir()}, cut_after=[50_000])) as site:
        folder = get("mnist", tmp_path, base_url=site.url)
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in raw.iterdir())
