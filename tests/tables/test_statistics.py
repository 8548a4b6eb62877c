"""Private statistics: what a row adds, the noise, and what is read from the noised sum."""

import json
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alidpfl.data.table_sums import noised_sum_of_rows
from alidpfl.dpsgd import RandomStream
from alidpfl.dpsgd.step import noise_grid
from alidpfl.errors import BudgetExceededError, ConfigError, DataError
from alidpfl.privacy import GaussianRelease, PrivacyBudget, epsilon
from alidpfl.runs import statistics as command_module
from alidpfl.runs.statistics import NoisedSum, TableStatistics, table_statistics
from alidpfl.tables import parse_schema
from alidpfl.tables.encode import Encoder
from alidpfl.tables.estimates import QUANTILES, column_statistics
from alidpfl.tables.statistics import Layout
from tests.runs.command import alidpfl as command
from tests.tables.parts import COLUMNS, TARGET, hospitals, schema, table

TARGETS = (
    TARGET,
    {"column": "died", "kind": "number", "low": 0, "high": 30},
    {"columns": ["died", "moved"], "kind": "labels"},
)
SECRET = 1e-9  # as good as no noise


def every_schema():
    """Return schemas with each kind of target, with and without missing values and bins."""
    return [
        (parse_schema({"target": target, "columns": COLUMNS, "missing": missing}), bins)
        for target in TARGETS
        for missing in ("indicator", "refuse")
        for bins in (0, 1, 7)
    ]


def value_of(name, random, may_miss):
    """Return a value that a hostile or careless owner may have."""
    if may_miss and random.random() < 0.2:
        return None
    numbers = [0.0, -1e300, 1e300, 5e-324, 54.999, 0.2, 15.0, 110.0, -0.0, float(random.normal(50, 40))]
    texts = {"sex": ["f", "m", "x", "other"], "smoker": ["yes", "no"]}
    return str(random.choice(texts.get(name, numbers)))


def rows_of(agreed, count, random):
    may_miss = agreed.missing == "indicator"
    found = [{name: value_of(name, random, may_miss) for name in COLUMNS} for _ in range(count)]
    target = agreed.target
    for row in found:
        if target.kind == "labels":
            row |= {name: str(random.choice(["yes", "no"])) for name in target.columns}
        else:
            row["died"] = str(random.choice(["no", "yes"] if target.kind == "class" else [-1e9, 0, 3.5, 30, 1e9]))
    return found


def encoded(agreed, rows):
    return Encoder(agreed).encode(pl.DataFrame(rows, infer_schema_length=None), needs_target=True)


class TestSensitivity:
    @pytest.mark.parametrize(("agreed", "bins"), every_schema())
    def test_no_row_adds_more_than_c_and_one_row_adds_just_that(self, agreed, bins):
        layout, random = Layout(agreed, bins=bins), np.random.default_rng(0)
        found = encoded(agreed, rows_of(agreed, 300, random))
        norms = np.linalg.norm(layout.vectors(found.inputs, found.targets).astype(np.float64), axis=1)
        assert norms.max() <= layout.sensitivity * (1 + 1e-7)
        kind = agreed.target.kind
        numbers, others = 2 + (kind == "number"), 2 + {"class": 1, "number": 0, "labels": 2}[kind]
        assert layout.sensitivity == math.sqrt(numbers * (3 if bins else 2) + others)
        longest = {"age": "1e300", "creatinine": "-1e300", "sex": "x", "smoker": "no"}
        longest |= {"moved": "no"} if kind == "labels" else {}
        row = encoded(agreed, [longest | {"died": "1e9" if kind == "number" else "no"}])
        assert np.linalg.norm(layout.vectors(row.inputs, row.targets)) == pytest.approx(layout.sensitivity)

    @pytest.mark.parametrize(("agreed", "bins"), every_schema())
    def test_replay_over_neighbouring_tables(self, agreed, bins):
        """With frozen noise, a table and the table without one row differ by at most C and the grid's rounding."""
        layout, random = Layout(agreed, bins=bins), np.random.default_rng(1)
        sigma = 0.5
        slack = noise_grid(sigma * layout.sensitivity) * math.sqrt(layout.size)
        for pair in range(12):
            count = (1, 2, 40, 4097)[pair % 4] if pair < 4 else int(random.integers(1, 60))
            rows = encoded(agreed, rows_of(agreed, count, random))
            gone = int(random.integers(count))
            totals = [
                noised_sum_of_rows(
                    rows.inputs[kept],
                    rows.targets[kept],
                    layout,
                    noise_multiplier=sigma,
                    random=RandomStream.seeded(pair),
                ).double()
                for kept in (np.arange(count), np.delete(np.arange(count), gone))
            ]
            assert totals[0].shape == (layout.size,)
            assert float((totals[0] - totals[1]).norm()) <= layout.sensitivity * (1 + 1e-6) + slack

    @pytest.mark.parametrize("hostile", [math.nan, math.inf, -math.inf, 1e30])
    def test_inputs_that_no_encoder_writes_count_for_c_at_most(self, hostile):
        layout = Layout(schema())
        honest = encoded(schema(), rows_of(schema(), 20, np.random.default_rng(2)))
        changed = honest.inputs.copy()
        changed[7, 0] = hostile
        totals = [
            noised_sum_of_rows(
                changed[kept], honest.targets[kept], layout, noise_multiplier=0.5, random=RandomStream.seeded(0)
            ).double()
            for kept in (np.arange(20), np.delete(np.arange(20), 7))
        ]
        slack = noise_grid(0.5 * layout.sensitivity) * math.sqrt(layout.size)
        assert float((totals[0] - totals[1]).norm()) <= layout.sensitivity * (1 + 1e-6) + slack
        assert bool(totals[0].isfinite().all())

    @given(data=st.data())
    def test_a_rows_vector_depends_on_that_row_alone(self, data):
        agreed, bins = data.draw(st.sampled_from(every_schema()))
        layout, random = Layout(agreed, bins=bins), np.random.default_rng(data.draw(st.integers(0, 1000)))
        rows = encoded(agreed, rows_of(agreed, 30, random))
        some = np.sort(random.choice(30, data.draw(st.integers(1, 30)), replace=False))
        whole = layout.vectors(rows.inputs, rows.targets)[some]
        assert whole.tobytes() == layout.vectors(rows.inputs[some], rows.targets[some]).tobytes()


class TestNoise:
    @pytest.mark.parametrize("noise", ["gaussian", "grid"])
    def test_it_has_the_claimed_deviation_and_no_correlation(self, noise):
        """40,000 values: the deviation is within 5 standard errors, 1.8 %. 3 in 10 million runs fail."""
        layout, rows = Layout(schema(), bins=91), encoded(schema(), rows_of(schema(), 50, np.random.default_rng(3)))
        exact = layout.vectors(rows.inputs, rows.targets).astype(np.float64).sum(0)
        draws = np.stack(
            [
                noised_sum_of_rows(
                    rows.inputs,
                    rows.targets,
                    layout,
                    noise_multiplier=3.0,
                    random=RandomStream.seeded(seed),
                    noise=noise,
                ).numpy()
                - exact
                for seed in range(40_000 // layout.size)
            ]
        ) / (3.0 * layout.sensitivity)
        count = draws.size
        assert abs(draws.std() - 1) <= 5 / math.sqrt(2 * count)
        assert abs(draws.mean()) <= 5 / math.sqrt(count)
        assert abs((draws[:, 1:] * draws[:, :-1]).mean()) <= 5 / math.sqrt(count)

    def test_two_releases_have_different_noise(self, tmp_path):
        files, budget = hospitals(tmp_path), PrivacyBudget(epsilon=1.0, delta=1e-5)
        first, second = (table_statistics(tmp_path / "schema.toml", files, budget=budget, bins=2) for _ in range(2))
        assert not (first.sums["north"].total == second.sums["north"].total).all()


def read(agreed, rows, bins=20, noise=0.0, total=None):
    layout = Layout(agreed, bins=bins)
    exact = layout.vectors(rows.inputs, rows.targets).astype(np.float64).sum(0)
    values = exact if total is None else total
    return {column.column: column for column in column_statistics(layout, values, len(rows), noise)}


class TestEstimates:
    def test_without_noise_they_are_the_statistics_of_the_rows(self):
        frame, rows = table(4000), encoded(schema(), table(4000).to_dicts())
        found = read(schema(), rows, noise=SECRET)
        age = frame["age"].to_numpy()
        assert found["age"].mean.value == pytest.approx(age.mean())
        assert found["age"].deviation.value == pytest.approx(age.std())
        assert (found["age"].edges[0], found["age"].edges[-1], len(found["age"].edges)) == (0, 110, 21)
        known = frame["creatinine"].drop_nulls().to_numpy().clip(0.2, 15)
        assert found["creatinine"].missing.value == pytest.approx(frame["creatinine"].null_count() / 4000)
        assert found["creatinine"].mean.value == pytest.approx(np.exp(np.log(known).mean()), rel=1e-5)
        assert found["creatinine"].deviation.value == pytest.approx(np.exp(np.log(known).std()), rel=1e-5)
        for name, values, width in (("age", age, 5.5), ("creatinine", np.log(known), math.log(75) / 20)):
            for share in QUANTILES:
                estimate = found[name].quantiles[share]
                inside = [math.log(x) for x in estimate] if name == "creatinine" else list(estimate)
                assert abs(inside[0] - np.quantile(values, share)) <= width
                assert inside[1] - 1e-9 <= np.quantile(values, share, method="inverted_cdf") <= inside[2] + 1e-9
        assert found["sex"].shares.keys() == {"f", "m", "other"}
        assert found["sex"].shares["other"].value == pytest.approx((frame["sex"] == "x").mean())
        assert found["smoker"].yes.value == pytest.approx((frame["smoker"] == "yes").mean())
        assert found["died"].shares["yes"].value == pytest.approx((frame["died"] == "yes").mean())
        assert found["died"].missing is None

    def test_number_targets_and_labels(self):
        for target, rows in (
            ({"column": "died", "kind": "number", "low": 0, "high": 30}, [{"died": x} for x in (0, 3, 30, 90)]),
            ({"columns": ["died", "moved"], "kind": "labels"}, [{"died": "yes", "moved": x} for x in ("no", "yes")]),
        ):
            agreed = schema(target=target)
            filled = [{"age": 5, "creatinine": 1, "sex": "f", "smoker": "no"} | row for row in rows]
            found = read(agreed, encoded(agreed, filled), noise=SECRET)
            if target["kind"] == "number":
                assert found["died"].mean.value == pytest.approx((0 + 3 + 30 + 30) / 4)
            else:
                assert (found["died"].yes.value, found["moved"].yes.value) == (pytest.approx(1), pytest.approx(0.5))

    def test_without_bins_there_are_no_quantiles(self):
        found = read(schema(), encoded(schema(), table(50).to_dicts()), bins=0, noise=SECRET)
        assert found["age"].quantiles is None
        assert found["age"].shares is None
        assert found["age"].edges == ()
        assert found["age"].mean is not None

    def test_a_column_without_values_is_not_divided_by_noise(self):
        rows = [{**row, "age": None, "smoker": None} for row in table(500).to_dicts()]
        found = read(schema(), encoded(schema(), rows), noise=20.0)
        assert (found["age"].mean, found["age"].deviation, found["age"].quantiles) == (None, None, None)
        assert found["smoker"].yes is None
        assert found["age"].missing.value > 0.8

    def test_a_category_named_other_keeps_its_own_share(self):
        columns = {"sex": {"kind": "category", "values": ["other", "m"]}}
        agreed = parse_schema({"target": TARGET, "columns": columns})
        found = read(
            agreed, encoded(agreed, [{"sex": "other", "died": "no"}, {"sex": "x", "died": "no"}]), noise=SECRET
        )
        assert {name: share.value for name, share in found["sex"].shares.items()} == {
            "other": 0.5,
            "m": 0,
            "other_": 0.5,
        }

    @pytest.mark.parametrize("noise", [5.0, 60.0])
    def test_intervals_cover_the_true_values(self, noise):
        """600 releases of 3,000 rows: each interval covers in 95 % of them, within 5 standard errors."""
        rows, random = encoded(schema(), table(3000).to_dicts()), np.random.default_rng(4)
        layout = Layout(schema(), bins=10)
        exact = layout.vectors(rows.inputs, rows.targets).astype(np.float64).sum(0)
        truth, hits, times = flat(read(schema(), rows, bins=10, noise=SECRET)), {}, 600
        for _ in range(times):
            total = exact + random.normal(size=layout.size) * noise
            for name, estimate in flat(read(schema(), rows, bins=10, noise=noise, total=total)).items():
                inside = estimate.low - 1e-9 <= truth[name].value <= estimate.high + 1e-9
                hits[name] = hits.get(name, 0) + inside
        least = 0.95 - 5 * math.sqrt(0.95 * 0.05 / times)
        for name, count in hits.items():
            assert count / times >= least, name
            clipped = name[1] == "missing" or name[0] == "quantile" or truth[name].value < 3 * noise / 3000
            assert clipped or count / times <= 1 - 0.05 + 5 * math.sqrt(0.95 * 0.05 / times), name

    def test_the_noise_on_the_number_of_rows_is_in_the_interval_of_a_quantile(self):
        """At an edge with exactly 95 % of the values below it, 2.5 % of releases rule out the bin above, within 4 sd.

        Noise on the number of missing values moves the number of values, and with it the rows that must lie below.
        """
        agreed = parse_schema({"target": TARGET, "columns": {"age": {"kind": "number", "low": 0, "high": 20}}})
        layout, random, noise, times = Layout(agreed, bins=20, with_target=False), np.random.default_rng(5), 20.0, 4000
        exact = np.array([0.0, 4000.0, *[9500 / 19] * 19, 500.0, 3000.0])  # the sums, 20 bins, and missing values
        ruled_out = 0
        for _ in range(times):
            total = exact + random.normal(size=layout.size) * noise
            (age,) = column_statistics(layout, total, 13_000, noise)
            ruled_out += age.quantiles[0.95].high < 19.5
        assert abs(ruled_out / times - 0.025) < 4 * math.sqrt(0.025 * 0.975 / times)

    def test_the_overall_has_the_noise_of_all_clients(self):
        agreed, layout = schema(), Layout(schema(), bins=4)
        sums = {
            name: NoisedSum(total=np.full(layout.size, 30, np.float32), rows=100, noise_multiplier=sigma)
            for name, sigma in (("a", 3.0), ("b", 4.0))
        }
        found = TableStatistics(schema=agreed, bins=4, sums=sums, budget=None)
        same = column_statistics(layout, np.full(layout.size, 60.0), 200, 5.0 * layout.sensitivity)
        assert found.overall() == same
        assert found.of_client("a") == column_statistics(layout, sums["a"].total, 100, 3.0 * layout.sensitivity)


def flat(columns):
    """Return all estimates by column and name."""
    found = {}
    for name, column in columns.items():
        for what in ("missing", "mean", "deviation", "yes"):
            if (estimate := getattr(column, what)) is not None:
                found[name, what] = estimate
        found |= {("quantile", name, share): estimate for share, estimate in (column.quantiles or {}).items()}
        found |= {("share", name, cell): estimate for cell, estimate in (column.shares or {}).items()}
    return found


class TestCommand:
    def test_every_client_spends_the_budget_and_no_more(self, tmp_path):
        files, budget = hospitals(tmp_path), PrivacyBudget(epsilon=0.5, delta=1e-6)
        found = table_statistics(tmp_path / "schema.toml", files, budget=budget)
        assert {name: sums.rows for name, sums in found.sums.items()} == {"north": 150, "south": 250}
        for sums in found.sums.values():
            sigma = sums.noise_multiplier
            assert epsilon([GaussianRelease(noise_multiplier=sigma)], 1e-6) <= 0.5
            assert epsilon([GaussianRelease(noise_multiplier=sigma - 1e-3)], 1e-6) > 0.5
        assert found.to_json()["sensitivity"] == pytest.approx(math.sqrt(2 * 3 + 3))

    def test_the_budget_is_looked_at_before_any_row(self, tmp_path, monkeypatch):
        files = hospitals(tmp_path)
        monkeypatch.setattr(command_module.Encoder, "encode", lambda *_, **__: pytest.fail("read before the charge"))
        with pytest.raises(BudgetExceededError):
            table_statistics(tmp_path / "schema.toml", files, budget=PrivacyBudget(epsilon=1e-8, delta=1e-12))

    @pytest.mark.parametrize("own", [(), ("--json",)])
    def test_it_warns_that_held_out_rows_are_read_and_counted(self, tmp_path, own):
        files = hospitals(tmp_path)
        asked = ("statistics", "--schema", tmp_path / "schema.toml", "--data", *files, *own)
        warned = [line for line in command(*asked).stderr.splitlines() if line.startswith("warning:")]
        assert sum("held_out=0.2" in line for line in warned) == 1
        agreed = (tmp_path / "schema.toml").read_text()
        (tmp_path / "schema.toml").write_text(agreed.replace("held_out = 0.2", "held_out = 0.0"))
        assert "held_out" not in command(*asked).stderr

    def test_vaults_read_training_rows_only_so_there_is_no_warning(self):
        sums = {"a": NoisedSum(total=np.zeros(Layout(schema()).size, np.float32), rows=100, noise_multiplier=3.0)}
        of_vaults = TableStatistics(schema=schema(held_out=0.2), bins=20, sums=sums, budget=None)
        assert of_vaults.warnings == ()

    def test_it_prints_a_table_and_writes_json(self, tmp_path):
        files = hospitals(tmp_path, sizes=(1500, 2500))
        out = tmp_path / "out.json"
        table(10).write_csv(tmp_path / "test.csv")  # public, and left out
        own = ["statistics", "--schema", tmp_path / "schema.toml", "--data", *files, tmp_path / "test.csv"]
        shown = command(*own, "--epsilon", "2", "--bins", "4", "-o", out)
        assert shown.exit_code == 0, shown.stderr
        for text in ("creatinine (log)", "north", "south", "smoker", "missing", "ε = 2", str(out)):
            assert text in shown.stdout
        document = json.loads(out.read_text())
        assert document["clients"].keys() == {"north", "south"}
        assert (document["rows"], document["epsilon"], document["delta"]) == (4000, 2.0, 1e-6)
        known = pl.concat([pl.read_csv(file) for file in files])["age"].mean()
        value, low, high = document["columns"]["age"]["mean"].values()
        assert abs(value - known) < 3 * (high - low)  # 12 deviations of the noise
        assert len(document["columns"]["age"]["edges"]) == 5
        assert document["schema_sha256"] == schema(held_out=0.2).sha256
        again = command(*own, "-o", out)
        assert again.exit_code == 2
        assert "costs epsilon again" in again.stderr
        stored = command("statistics", "--show", out, "--json")
        assert (stored.exit_code, json.loads(stored.stdout)) == (0, document)
        out.write_text(out.read_text().replace('"rows": 4000', '"rows": NaN'))
        damaged = command("statistics", "--show", out, "--json")
        assert (damaged.exit_code, damaged.stdout) == (2, "")
        printed = command(*own, "--json", "--bins", "0")
        assert "quantiles" not in json.loads(printed.stdout)["columns"]["age"]

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            (("--epsilon", "0"), "epsilon"),
            (("--delta", "1"), "delta"),
            (("--bins", "-1"), "bins=-1"),
            (("--bins", "100000"), "bins=100000"),
            (("--epsilon", "1e-9", "--delta", "1e-12"), "epsilon"),
            (("--schema", "nowhere.toml"), "nowhere.toml"),
        ],
    )
    def test_what_cannot_work_is_one_line(self, tmp_path, change, named):
        files = hospitals(tmp_path)
        shown = command("statistics", "--schema", tmp_path / "schema.toml", "--data", *files, *change)
        assert shown.exit_code == 2
        assert named in shown.stderr
        assert len(shown.stderr.strip().splitlines()) == 1

    def test_a_bad_value_is_named_by_its_place_and_not_quoted(self, tmp_path):
        files = hospitals(tmp_path)
        files[0].write_text(files[0].read_text().replace("yes", "perhaps", 1))
        with pytest.raises(DataError) as caught:
            table_statistics(tmp_path / "schema.toml", files, budget=PrivacyBudget(epsilon=1.0, delta=1e-5))
        assert "north.csv" in str(caught.value)
        assert "perhaps" not in str(caught.value)

    def test_public_rows_alone_are_no_client(self, tmp_path):
        hospitals(tmp_path)
        table(10).write_csv(tmp_path / "test.csv")
        with pytest.raises(ConfigError, match="test"):
            table_statistics(
                tmp_path / "schema.toml", [tmp_path / "test.csv"], budget=PrivacyBudget(epsilon=1.0, delta=1e-5)
            )
