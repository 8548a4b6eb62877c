"""Statistics of tables through a vault, and rounds on standardised rows: what is computed, charged and refused."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from alidpfl.data.table_sums import noised_sum_of_rows
from alidpfl.dpsgd.step import noise_grid
from alidpfl.federation.client import ClientData, release_stream
from alidpfl.privacy import GaussianRelease, PrivacyBudget, max_steps
from alidpfl.releases.queries import StatisticsQuery
from alidpfl.tables.encode import Encoder
from alidpfl.tables.standardise import RowStandardiser
from alidpfl.tables.statistics import Layout
from alidpfl.vault import training
from alidpfl.vault.folder import status
from alidpfl.vault.messages import (
    STANDARDISER,
    ReleaseRequest,
    decode_answer,
    decode_released,
    encode,
    standardiser_shapes,
)
from alidpfl.vault.refusals import RefusalCode, VaultRefusedError
from alidpfl.vault.service import public_info
from tests.tables.parts import table

from .parts import NOISE, SAMPLE_RATE, made_vault, opened, request
from .tables import held_out, schema, table_vault

ROWS = table(60, seed=1)
OPEN = {
    "unsafe": ["seeded-noise"],
    "seed": 3,
    "statistics__noise_multiplier": 5.0,
    "service__seconds_per_query": 0.01,
    "limits__max_clip_norm": 10.0,
}
LAYOUT = Layout(schema(), bins=4)


def asked(vault, **changes) -> ReleaseRequest:
    query = StatisticsQuery(
        bins=changes.pop("bins", 4), with_target=changes.pop("with_target", True), size=changes.pop("size", LAYOUT.size)
    )
    values = {"run": "a", "round": 0, "noise_multiplier": 6.0, "schema_sha256": vault.enrolment.schema_sha256}
    return ReleaseRequest(query=query, **{**values, **changes})


def trained_rows(rows=ROWS):
    return Encoder(schema()).encode(rows.filter(~held_out(rows)), needs_target=True)


def refused(vault, content, code):
    spent = vault.ledger.book.account.units, len(vault.ledger.book.reservations)
    with pytest.raises(VaultRefusedError) as error:
        vault.answer(content)
    assert error.value.code == code
    assert (vault.ledger.book.account.units, len(vault.ledger.book.reservations)) == spent


class TestStatistics:
    def test_they_are_the_noised_sum_over_the_trained_rows(self, tmp_path):
        with opened(table_vault(tmp_path, ROWS, **OPEN)) as vault:
            question = asked(vault)
            _, values = decode_released(vault.answer(encode(question, {})), question)
        rows = trained_rows()
        expected = noised_sum_of_rows(
            rows.inputs,
            rows.targets,
            LAYOUT,
            noise_multiplier=6.0,
            random=release_stream(3, "a", 0, 0, "statistics"),
        )
        assert values.tobytes() == expected.numpy().tobytes()

    def test_they_are_charged_once_and_answered_again(self, tmp_path):
        folder = table_vault(tmp_path, ROWS, **OPEN)
        with opened(folder) as vault:
            content = encode(asked(vault), {})
            first = vault.answer(content)
            assert vault.answer(content) == first
            refused(vault, encode(asked(vault, round=1), {}), RefusalCode.BUDGET)  # 2/36 is more than 1/25
            refused(
                vault, encode(asked(vault, bins=0, size=Layout(schema(), bins=0).size), {}), RefusalCode.CHANGED_REPLAY
            )
        assert (
            len([line for line in (folder.path / "ledger.jsonl").read_text().splitlines() if "RESERVED" in line]) == 1
        )
        assert status(folder.path)["units_spent"] == 0

    def test_the_steps_are_charged_beside_them_from_the_start(self, tmp_path):
        """As many steps are left as the accountant pays for beside one release with the owner's σ."""
        budget, spent = PrivacyBudget(epsilon=4.0, delta=1e-3), [GaussianRelease(noise_multiplier=5.0)]
        expected = max_steps(budget, SAMPLE_RATE, NOISE, accountant="rdp", already_spent=spent)
        with opened(table_vault(tmp_path, ROWS, **OPEN)) as vault:
            assert vault.ledger.book.account.affordable(SAMPLE_RATE, NOISE) == expected
            vault.answer(encode(asked(vault), {}))
            assert vault.ledger.book.account.affordable(SAMPLE_RATE, NOISE) == expected
            assert public_info(vault.enrolment, vault.policy)["statistics"]["noise_multiplier"] == 5.0

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"size": LAYOUT.size + 1}, RefusalCode.POLICY),
            ({"with_target": False}, RefusalCode.POLICY),
            ({"bins": 5}, RefusalCode.POLICY),
            ({"noise_multiplier": 4.9}, RefusalCode.BUDGET),
            ({"schema_sha256": "0" * 64}, RefusalCode.SCHEMA),
        ],
    )
    def test_what_does_not_fit_is_refused_and_costs_nothing(self, tmp_path, changes, code):
        with opened(table_vault(tmp_path, ROWS, **OPEN)) as vault:
            refused(vault, encode(asked(vault, **changes), {}), code)
            assert vault.answer(encode(asked(vault), {}))

    def test_an_owner_who_does_not_open_them_releases_none(self, tmp_path):
        with opened(table_vault(tmp_path, ROWS)) as vault:
            refused(vault, encode(asked(vault), {}), RefusalCode.POLICY)
            assert public_info(vault.enrolment, vault.policy)["statistics"] is None

    def test_records_that_are_no_table_have_none(self, tmp_path):
        with opened(made_vault(tmp_path, statistics__noise_multiplier=5.0)) as vault:
            refused(vault, encode(asked(vault), {}), RefusalCode.POLICY)

    def test_replay_over_neighbouring_tables(self, tmp_path):
        """With frozen noise, the answers of a vault with and without a row differ by C at most, and in nothing else."""
        place = int(np.flatnonzero(~held_out(ROWS))[5])
        told = []
        for name, rows in (("with", ROWS), ("without", ROWS.filter(np.arange(len(ROWS)) != place))):
            with opened(table_vault(tmp_path / name, rows, **OPEN)) as vault:
                question = asked(vault)
                answer, values = decode_released(vault.answer(encode(question, {})), question)
                told.append((answer.model_dump(), values.astype(np.float64)))
        assert told[0][0] == told[1][0]
        slack = noise_grid(6.0 * LAYOUT.sensitivity) * math.sqrt(LAYOUT.size)
        assert 0 < np.linalg.norm(told[0][1] - told[1][1]) <= LAYOUT.sensitivity * (1 + 1e-6) + slack

    def test_a_slot_is_measured_without_a_row(self, tmp_path):
        with opened(table_vault(tmp_path, ROWS, **OPEN)) as vault:
            cost = vault.trainer.cost(asked(vault))
            assert cost.round > 0
            assert cost.step == 0


class TestStandardisedRounds:
    WIDTH = schema().width

    def content(self, vault, mean=0.1, scale=0.7, **changes):
        shapes = {**vault.enrolment.shapes, **standardiser_shapes(self.WIDTH)}
        values = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        values[f"{STANDARDISER}mean"] += np.float32(mean)
        values[f"{STANDARDISER}scale"] += np.float32(scale)
        values |= changes.pop("weights", {})
        question = request(schema_sha256=vault.enrolment.schema_sha256, standardised=True, clip_norm=5.0, **changes)
        return encode(question, {name: array for name, array in values.items() if array is not None})

    def test_they_train_on_standardised_rows(self, tmp_path):
        with opened(table_vault(tmp_path, ROWS, **OPEN)) as vault:
            _, found = decode_answer(vault.answer(self.content(vault)))
            made = RowStandardiser(
                mean=np.full(self.WIDTH, 0.1, np.float32),
                scale=np.full(self.WIDTH, 0.7, np.float32),
                bound=schema().norm_bound,
            )
            data = vault.trainer._data
            moved = torch.from_numpy(made.rows(trained_rows().inputs))
            assert torch.equal(data.inputs, torch.from_numpy(trained_rows().inputs))  # the vault's own stay
            data.inputs.copy_(moved)
            plain = request(schema_sha256=vault.enrolment.schema_sha256, clip_norm=5.0)
            start = np.zeros(vault.enrolment.num_params, np.float32)
            expected = vault.trainer.job(plain)(start, plain.plan(plain.steps)).params
        flat = np.concatenate([found[name].reshape(-1) for name in found])
        assert np.sort(flat).tobytes() == np.sort(np.asarray(expected)).tobytes()

    @pytest.mark.parametrize("scale", [1e30, 3e38, -1e30, 1e-38])
    def test_no_mean_and_scale_can_break_the_bound(self, tmp_path, scale):
        with opened(table_vault(tmp_path, ROWS, **OPEN)) as vault:
            _, found = decode_answer(vault.answer(self.content(vault, mean=-scale / 2, scale=scale)))
            assert all(np.isfinite(array).all() for array in found.values())

    def test_no_denormal_is_computed_with(self):
        """A server that scales rows to denormals could tell by the time which rows are there."""
        tiny = RowStandardiser(mean=np.zeros(2, np.float32), scale=np.full(2, 1e-20, np.float32), bound=1.0)
        rows = torch.full((3, 2), 1e-20)
        assert (tiny.rows(rows.numpy()) > 0).all()
        assert not training._moved(rows, tiny).any()
        assert not training._Standardised(nn.Identity(), tiny)(rows).any()
        data = training._prepared(ClientData(inputs=rows, targets=rows, rows=torch.arange(3)), tiny)
        assert not data.prepare(rows).any()

    @pytest.mark.parametrize(
        ("weights", "code"),
        [
            ({f"{STANDARDISER}mean": np.full(WIDTH, math.nan, np.float32)}, RefusalCode.WEIGHTS),
            ({f"{STANDARDISER}scale": np.full(WIDTH, math.inf, np.float32)}, RefusalCode.WEIGHTS),
            ({f"{STANDARDISER}scale": np.ones(WIDTH + 1, np.float32)}, RefusalCode.MODEL),
            ({f"{STANDARDISER}scale": None}, RefusalCode.MODEL),
        ],
    )
    def test_what_does_not_fit_is_refused_and_costs_nothing(self, tmp_path, weights, code):
        with opened(table_vault(tmp_path, ROWS, **OPEN)) as vault:
            refused(vault, self.content(vault, weights=weights), code)

    def test_they_are_for_tables(self, tmp_path):
        with opened(made_vault(tmp_path)) as vault:
            shapes = {**vault.enrolment.shapes, **standardiser_shapes(6)}
            values = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
            refused(vault, encode(request(standardised=True), values), RefusalCode.POLICY)
