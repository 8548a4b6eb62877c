"""The data set `table`: files are clients, and held-out rows are the test part."""

import tracemalloc

import polars as pl
import pytest
import torch

from alidpfl.data import load
from alidpfl.errors import ConfigError, DataError
from tests.tables.parts import TOML, hospitals, table


def loaded(folder, **options):
    return load("table", schema_file=folder / "schema.toml", **options)


def rows_of(part):
    """Every record as bytes, so that parts can be compared as sets."""
    return [
        inputs.numpy().tobytes() + bytes([int(target)])
        for inputs, target in zip(part.inputs, part.targets, strict=True)
    ]


def test_files_are_clients_and_rows_are_held_out(tmp_path):
    files = hospitals(tmp_path)
    dataset = loaded(tmp_path, files=files)
    assert dataset.client_names == ("north", "south")
    assert (dataset.num_classes, dataset.input_shape, dataset.is_synthetic) == (2, (10,), False)
    assert dataset.test_is_held_out
    assert len(dataset.train) + len(dataset.test) == 400
    assert 0.1 < len(dataset.test) / 400 < 0.3
    assert [len(rows) for rows in dataset.natural_clients] != [150, 250]
    whole = dataset.encoder.encode(files[0], needs_target=True)
    north = dataset.natural_clients[0]
    assert set(rows_of(dataset.train)[: len(north)]) < {
        row.tobytes() + bytes([int(target)]) for row, target in zip(whole.inputs, whole.targets, strict=True)
    }
    assert torch.equal(loaded(tmp_path, data_dir=tmp_path).train.inputs, dataset.train.inputs)
    assert torch.equal(loaded(tmp_path, files=[tmp_path / "*.csv"]).train.inputs, dataset.train.inputs)
    assert torch.equal(loaded(tmp_path, files=[tmp_path]).test.inputs, dataset.test.inputs)
    assert len(loaded(tmp_path, files=files, seed=1).test) != len(dataset.test)


def test_neighbouring_tables_differ_in_one_record_of_one_part(tmp_path):
    """Remove each of some rows: it leaves the part that it was in, and all else keeps its place."""
    (north,) = hospitals(tmp_path, sizes=(60,))
    made, before = pl.read_csv(north), loaded(tmp_path, files=[north])
    for gone in range(0, 60, 7):
        made.with_row_index().filter(pl.col("index") != gone).drop("index").write_csv(north)
        after = loaded(tmp_path, files=[north])
        lost = []
        for one, other in ((before.train, after.train), (before.test, after.test)):
            old, new = rows_of(one), rows_of(other)
            if len(new) < len(old):
                place = next((i for i, row in enumerate(new) if row != old[i]), len(new))
                old = [*old[:place], *old[place + 1 :]]
                lost.append(gone)
            assert old == new
        assert lost == [gone]


def test_a_test_file_is_public_and_nothing_is_held_out(tmp_path):
    files = hospitals(tmp_path)
    table(30, seed=9).write_parquet(tmp_path / "test.parquet")
    dataset = loaded(tmp_path, files=[*files, tmp_path / "test.parquet"])
    assert (len(dataset.train), len(dataset.test), dataset.test_is_held_out) == (400, 30, False)
    with pytest.raises(DataError, match=r"test\.parquet"):
        loaded(tmp_path, files=[tmp_path / "test.parquet"])


def test_mistakes(tmp_path):
    files = hospitals(tmp_path)
    with pytest.raises(ConfigError, match="schema_file"):
        load("table", files=files)
    with pytest.raises(ConfigError, match="files"):
        loaded(tmp_path)
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="none"):
        loaded(tmp_path, files=[tmp_path / "none" / "*.csv"])
    with pytest.raises(DataError, match="none"):
        loaded(tmp_path, files=[tmp_path / "none"])
    (tmp_path / "none" / "north.csv").write_bytes(files[0].read_bytes())
    with pytest.raises(DataError, match=r"north\.csv"):
        loaded(tmp_path, files=[*files, tmp_path / "none"])
    (tmp_path / "schema.toml").write_text(TOML.replace("held_out = 0.2", "held_out = 0.0"))
    with pytest.raises(DataError, match="held_out=0"):
        loaded(tmp_path, files=files)
    (tmp_path / "schema.toml").write_text(TOML.replace("held_out = 0.2", "held_out = 0.999999999"))
    with pytest.raises(DataError, match=r"north\.csv"):
        loaded(tmp_path, files=files)


def test_no_row_is_copied_more_than_once(tmp_path):
    """Count the bytes of arrays with all rows: the encoded ones, and those that are trained on."""
    files = hospitals(tmp_path, sizes=(20_000, 20_000))
    loaded(tmp_path, files=files)  # imports and caches
    tracemalloc.start()
    dataset = loaded(tmp_path, files=files)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    encoded = dataset.train.inputs.nbytes + dataset.test.inputs.nbytes
    assert peak < 2.8 * encoded  # 2.5: the vectors twice, and targets; one more copy would be 3.5
