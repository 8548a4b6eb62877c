"""The ledger's file: what a crash leaves is distinguished from damage, cutting and restoring."""

import errno
import json
import shutil
from contextlib import contextmanager

import pytest

from alidpfl.errors import DataError
from alidpfl.store import files as files_module
from alidpfl.vault import chain as chain_module
from alidpfl.vault.chain import Chain, read_entries
from alidpfl.vault.heads import Head, parse_head
from alidpfl.vault.refusals import RefusalCode, VaultTroubleError

from .disk import Disk

GENESIS = {"kind": "ENROLLED", "vault": "v"}


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "other").mkdir()
    return tmp_path / "disk" / "ledger.jsonl", (tmp_path / "disk" / "head.json", tmp_path / "other" / "anchor")


@pytest.fixture
def chain(paths):
    made = Chain.create(*paths, GENESIS)
    for number in range(4):
        made.append({"kind": "X", "number": number})
    yield made
    made.close()


def reopened(paths) -> list:
    again = Chain.open(*paths)
    again.close()
    return [entry.values.get("number") for entry in again.entries]


@contextmanager
def refused(code):
    with pytest.raises(VaultTroubleError) as caught:
        yield
    assert caught.value.code is code


def test_lines_are_numbered_chained_and_sealed(chain, paths):
    raw = [json.loads(line) for line in paths[0].read_bytes().splitlines()]
    assert [line["counter"] for line in raw] == [0, 1, 2, 3, 4]
    assert [line["previous"] for line in raw] == ["", *(line["hash"] for line in raw[:-1])]
    assert reopened(paths) == [None, 0, 1, 2, 3]
    assert Head.read(paths[1][0]) == Head.read(paths[1][1]) == chain.head
    assert chain.head.counter == 4


@pytest.mark.parametrize("line", range(5))
def test_no_byte_can_change_unnoticed(chain, paths, line):
    """A chain with one flipped bit in any line is refused."""
    content = paths[0].read_bytes()
    start = sum(len(part) for part in content.splitlines(keepends=True)[:line])
    length = len(content.splitlines(keepends=True)[line])
    for position in (*range(start, start + length, 11), start + length - 1):
        damaged = bytearray(content)
        damaged[position] ^= 1
        paths[0].write_bytes(damaged)
        with pytest.raises(DataError, match=paths[0].name):
            reopened(paths)


def test_a_line_cut_anywhere_that_no_head_knows_is_dropped(chain, paths):
    """A crash while writing: the heads still name the line before."""
    before = [path.read_bytes() for path in paths[1]]
    size = paths[0].stat().st_size
    chain.append({"kind": "X", "number": 4})
    whole = paths[0].read_bytes()
    for end in (*range(size, len(whole), 17), len(whole) - 1):
        paths[0].write_bytes(whole[:end])
        for path, content in zip(paths[1], before, strict=True):
            path.write_bytes(content)
        assert reopened(paths) == [None, 0, 1, 2, 3]
        assert paths[0].read_bytes() == whole[:size]  # cut back, so that the next line stands on its own


@pytest.mark.parametrize("rest", [b"\0" * 700, b"\0" * 699 + b"\n", b'{"counter": 5'])
def test_what_a_power_cut_leaves_of_a_line_is_dropped(chain, paths, rest):
    with paths[0].open("ab") as file:
        file.write(rest)
    assert reopened(paths) == [None, 0, 1, 2, 3]


def test_a_whole_line_counts_even_where_no_head_knows_it(chain, paths):
    before = [path.read_bytes() for path in paths[1]]
    chain.append({"kind": "X", "number": 4})
    for path, content in zip(paths[1], before, strict=True):
        path.write_bytes(content)
    assert reopened(paths) == [None, 0, 1, 2, 3, 4]
    assert Head.read(paths[1][1]).counter == 5  # and the heads follow


def test_a_cut_line_that_a_head_knows_is_refused(chain, paths):
    """The vault acted on it: dropping it would lose what was spent."""
    content = paths[0].read_bytes()
    for end in (len(content) - 1, len(content) - 50, len(content) - len(content.splitlines()[-1]) - 1):
        paths[0].write_bytes(content[:end])
        with pytest.raises(DataError, match=r"\b4 .*\b5\b"):
            reopened(paths)


def test_a_damaged_line_with_others_after_it_is_refused_even_without_heads(chain, paths):
    raw = paths[0].read_bytes().splitlines(keepends=True)
    raw[2] = raw[2].replace(b'"number": 1', b'"number": 7')
    paths[0].write_bytes(b"".join(raw))
    for path in paths[1]:
        path.write_bytes(Head(vault="v", counter=1, hash=json.loads(raw[1])["hash"]).to_bytes())
    with pytest.raises(DataError, match="line 3"):
        reopened(paths)


def test_a_line_left_out_or_doubled_is_refused(chain, paths):
    raw = paths[0].read_bytes().splitlines(keepends=True)
    for changed in ([*raw[:2], *raw[3:]], [*raw[:2], raw[1], *raw[2:]], [*raw[:2], raw[3], raw[2], raw[4]]):
        paths[0].write_bytes(b"".join(changed))
        with pytest.raises(DataError):
            reopened(paths)


def test_a_missing_ledger_head_or_anchor_is_refused(chain, paths):
    for path in (paths[0], *paths[1]):
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(DataError, match=path.name):
            reopened(paths)
        path.write_bytes(b"{}")
        with pytest.raises(DataError):
            reopened(paths)
        path.write_bytes(content)
    assert reopened(paths) == [None, 0, 1, 2, 3]


def test_only_an_anchor_sees_a_restored_folder(chain, paths, tmp_path):
    shutil.copytree(paths[0].parent, tmp_path / "snapshot")
    noted = str(chain.head)
    chain.append({"kind": "X", "number": 4})
    later = str(chain.head)
    shutil.rmtree(paths[0].parent)
    shutil.copytree(tmp_path / "snapshot", paths[0].parent)
    with pytest.raises(DataError, match=paths[1][1].name):
        reopened(paths)
    without_anchor = (paths[0], paths[1][:1])
    assert reopened(without_anchor) == [None, 0, 1, 2, 3]  # as documented: without an anchor nothing detects it
    Chain.open(*without_anchor, [("note", parse_head(noted, "v"))]).close()
    with pytest.raises(DataError, match=r"note .*\b6\b"):  # a head that the owner noted works as well
        Chain.open(*without_anchor, [("note", parse_head(later, "v"))])


def test_another_history_and_another_vault_are_refused(chain, paths, tmp_path):
    fork = (tmp_path / "ledger.jsonl", (tmp_path / "head.json",))
    shutil.copy(paths[0], fork[0])
    shutil.copy(paths[1][0], fork[1][0])
    other = Chain.open(*fork)
    other.append({"kind": "X", "number": "other"})
    chain.append({"kind": "X", "number": 4})
    other.close()
    with pytest.raises(DataError, match="line 6"):
        Chain.open(fork[0], paths[1])
    stranger = Chain.create(tmp_path / "stranger", (tmp_path / "stranger.head",), {**GENESIS, "vault": "w"})
    stranger.close()
    with pytest.raises(DataError, match=r"stranger\.head"):
        Chain.open(paths[0], (tmp_path / "stranger.head",))


def test_a_line_of_another_history_does_not_fit_in(chain, paths, tmp_path):
    """It has the right number and its own hash, and no head names a later line."""
    raw = paths[0].read_bytes().splitlines(keepends=True)
    fork = (tmp_path / "ledger.jsonl", (tmp_path / "head.json",))
    fork[0].write_bytes(b"".join(raw[:2]))
    fork[1][0].write_bytes(Head(vault="v", counter=1, hash=json.loads(raw[1])["hash"]).to_bytes())
    other = Chain.open(*fork)
    for number in (1, 2):
        other.append({"kind": "X", "number": f"other {number}"})
    other.close()
    spliced = [*raw[:3], fork[0].read_bytes().splitlines(keepends=True)[3]]
    entries, rest = read_entries(b"".join(spliced))
    assert [entry.counter for entry in entries] == [0, 1, 2]
    assert rest == spliced[-1]


@pytest.mark.parametrize("text", ["", "7", "x:" + "0" * 64, "7:abc"])
def test_a_noted_head_is_checked(text):
    with pytest.raises(DataError, match="counter:hash"):
        parse_head(text, "v")


# --------------------------------------------------------------------------------------------------- while it is open


@pytest.mark.parametrize(
    "disk",
    [
        Disk("open", 1, errno.EROFS),
        Disk("write", 1, errno.ENOSPC),
        Disk("write", 1, most=10),  # the first head
        Disk("fsync", 2, errno.EIO),  # the second head
        Disk("write", 3, errno.ENOSPC),
        Disk("write", 3, most=100),  # the line itself
    ],
    ids=lambda disk: f"{disk.name}{disk.call}",
)
def test_a_full_disk_leaves_the_chain_as_it_was(chain, paths, monkeypatch, disk):
    before = paths[0].read_bytes()
    with monkeypatch.context() as patch:
        for module in (chain_module, files_module):
            patch.setattr(module, "os", disk)
        with refused(RefusalCode.DISK):
            chain.append({"kind": "X", "number": "no"})
    assert paths[0].read_bytes() == before
    chain.append({"kind": "X", "number": 4})  # as soon as there is room again
    assert reopened(paths) == [None, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("disk", [Disk("fsync", 3, errno.EIO), Disk("replace", 1, errno.EIO), Disk("replace", 2, 5)])
def test_what_may_not_have_reached_the_disk_counts_and_stops_everything(chain, paths, monkeypatch, disk):
    with monkeypatch.context() as patch:
        patch.setattr(chain_module, "os", disk)
        with refused(RefusalCode.LEDGER):
            chain.append({"kind": "X", "number": 4})
    with refused(RefusalCode.LEDGER):
        chain.append({"kind": "X", "number": 5})
    assert reopened(paths) == [None, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("what", ["deleted", "behind", "ahead", "a folder"])
def test_a_head_that_does_not_know_the_last_line_stops_a_running_vault(chain, paths, number, what):
    """Otherwise the lines of a served copy with the same anchor would be lost."""
    before, path = paths[0].read_bytes(), paths[1][number]
    kept = path.read_bytes()
    path.unlink()
    if what == "a folder":
        path.mkdir()
    elif what != "deleted":
        counter = chain.head.counter + {"behind": -1, "ahead": 1}[what]
        path.write_bytes(Head(vault="v", counter=counter, hash="0" * 64).to_bytes())
    with refused(RefusalCode.LEDGER):
        chain.append({"kind": "X", "number": 4})
    assert what != "deleted" or not path.exists()
    if what == "a folder":
        path.rmdir()
    path.write_bytes(kept)
    with refused(RefusalCode.LEDGER):
        chain.append({"kind": "X", "number": 4})
    assert paths[0].read_bytes() == before
    assert reopened(paths) == [None, 0, 1, 2, 3]


def test_what_was_read_is_brought_to_the_disk_before_anything_builds_on_it(chain, paths, monkeypatch):
    """A power cut could lose a line that was read only from memory. Then the heads would name a lost line."""
    earlier = Head(vault="v", counter=3, hash=chain.entries[3].hash).to_bytes()
    for path in paths[1]:
        path.write_bytes(earlier)
    with monkeypatch.context() as patch:
        patch.setattr(chain_module, "os", Disk("fsync", 1, errno.EIO))
        with pytest.raises(DataError, match=str(paths[0])):
            Chain.open(*paths)
    assert [path.read_bytes() for path in paths[1]] == [earlier, earlier]
    assert reopened(paths) == [None, 0, 1, 2, 3]


@pytest.mark.parametrize("what", ["deleted", "replaced", "longer"])
def test_a_file_changed_under_a_running_vault_stops_it(chain, paths, what):
    content = paths[0].read_bytes()
    if what != "longer":
        paths[0].unlink()
    if what == "replaced":
        paths[0].write_bytes(content)
    if what == "longer":
        with paths[0].open("ab") as file:
            file.write(b"x")
    with refused(RefusalCode.LEDGER):
        chain.append({"kind": "X", "number": 4})


def test_reading_stops_at_the_first_line_that_is_not_whole(chain, paths):
    entries, rest = read_entries(paths[0].read_bytes() + b"abc")
    assert (len(entries), rest) == (5, b"abc")
    assert read_entries(b"") == ([], b"")


def test_a_whole_last_line_by_a_second_writer_is_refused_and_not_dropped(chain, paths, tmp_path):
    """Locks may not work: the second writer acted on its line, and its charge must not vanish."""
    copy = tmp_path / "copy"
    copy.mkdir()
    before = paths[0].read_bytes()
    (copy / "ledger.jsonl").write_bytes(before)
    (copy / "head.json").write_bytes(paths[1][0].read_bytes())
    second = Chain.open(copy / "ledger.jsonl", (copy / "head.json",))
    second.append({"kind": "X", "number": "second"})
    second.close()
    chain.append({"kind": "X", "number": "first"})
    paths[0].write_bytes(paths[0].read_bytes() + (copy / "ledger.jsonl").read_bytes()[len(before) :])
    with pytest.raises(DataError, match="line 7"):
        Chain.open(*paths)
