"""Queries to a vault: charged to their part of the records before these are read, answered once, refused in time."""

import json
import sys

import numpy as np
import pytest
import torch

from alidpfl.errors import BudgetExceededError, ConfigError, DataError
from alidpfl.privacy import GaussianFilter, PrivacyBudget, epsilon
from alidpfl.releases.queries import EvaluationQuery
from alidpfl.vault.enrolment import Enrolment
from alidpfl.vault.folder import ENROLMENT, POLICY, VaultFolder, status
from alidpfl.vault.ledger import Ledger, Reservation
from alidpfl.vault.messages import ReleaseRequest, decode_released, encode
from alidpfl.vault.policy import make_policy
from alidpfl.vault.refusals import RefusalCode, VaultRefusedError
from alidpfl.vault.service import public_info
from tests.runs.command import alidpfl
from tests.tables.parts import TOML, table

from .parts import CountingTrainer, FakeClock, body, lines, made_vault, opened, policy_values, request, spent
from .tables import held_out, table_vault

ROWS = table(60, seed=1)
QUERY = EvaluationQuery(task="class", outputs=2)
SLOT = 0.25
SERVICE = {"seconds_per_round": 0.005, "seconds_per_step": 0.001, "seconds_per_query": SLOT}


def evaluating(tmp_path, rows=ROWS, **changes) -> VaultFolder:
    return table_vault(tmp_path, rows, **{"evaluation": {}, "service": SERVICE, **changes})


def asked(vault, value: float = 0.0, **changes) -> bytes:
    values = {"run": "a", "round": 0, "noise_multiplier": 5.0, "query": QUERY, **changes}
    values.setdefault("schema_sha256", vault.enrolment.schema_sha256)
    weights = {name: np.full(shape, value, np.float32) for name, shape in vault.enrolment.shapes.items()}
    return encode(ReleaseRequest(**values), weights)


def trained(vault, **changes) -> bytes:
    weights = {name: np.zeros(shape, np.float32) for name, shape in vault.enrolment.shapes.items()}
    return encode(request(schema_sha256=vault.enrolment.schema_sha256, **changes), weights)


def refused(vault, content: bytes) -> VaultRefusedError:
    with pytest.raises(VaultRefusedError) as error:
        vault.answer(content)
    return error.value


class CountingReleases(CountingTrainer):
    """Counts what was released, and looks at the ledger at that moment."""

    def __init__(self) -> None:
        super().__init__()
        self.released, self.charged, self.book = 0, [], None

    def release_job(self, asked):
        def job(weights):
            self.released += 1
            self.charged.append(len(self.book.charged("held_out")))
            return np.full(asked.query.layout.size, self.released, np.float32)

        return job


# ------------------------------------------------------------------------------------------------------ what is charged


def test_a_query_reads_the_held_out_rows_and_is_charged_to_them_alone(tmp_path):
    folder = evaluating(tmp_path)
    with opened(folder) as vault:
        own = vault.trainer._held_out.records
        assert len(own) == int(held_out(ROWS).sum())
        both = torch.cat([own.inputs, vault.trainer._data.inputs])
        assert len(both) == len(ROWS)
        answer, values = decode_released(vault.answer(asked(vault)), ReleaseRequest(run="a", round=0,
            noise_multiplier=5.0, query=QUERY))  # fmt: skip
        assert (answer.run, answer.round, values.shape) == ("a", 0, (QUERY.layout.size,))
        book = vault.ledger.book
        assert (book.account.units, len(book.charged()), len(book.charged("held_out"))) == (0, 0, 1)
        vault.answer(trained(vault))
    told = status(folder.path)
    assert told["units_spent"] == 2
    budget = PrivacyBudget(epsilon=told["epsilon"], delta=told["delta"])
    one = GaussianFilter.for_budget(budget, "rdp").charge(5.0)
    assert told["evaluation"]["epsilon_spent"] == epsilon(one.mechanisms, budget.delta, "rdp")
    assert (told["evaluation"]["answered"], told["statistics"]) == (1, None)
    assert [json.loads(line).get("part") for line in lines(folder)[1:3]] == ["held_out", None]
    assert "part" not in json.loads(lines(folder)[3])  # rounds of training are written as before


def test_the_charge_is_on_the_disk_before_a_record_is_read(tmp_path):
    folder, trainer = evaluating(tmp_path), CountingReleases()
    with opened(folder, trainer) as vault:
        trainer.book = vault.ledger.book
        first = vault.answer(asked(vault))
        assert trainer.charged == [1]
        assert vault.answer(asked(vault)) == first  # a replay is the stored answer
        assert refused(vault, asked(vault, value=1.0)).code is RefusalCode.CHANGED_REPLAY
        assert refused(vault, asked(vault, noise_multiplier=6.0)).code is RefusalCode.CHANGED_REPLAY
        vault.answer(asked(vault, round=4))
        assert refused(vault, asked(vault, round=3)).code is RefusalCode.ROUND_ORDER
        vault.answer(trained(vault, round=0))  # rounds of training are counted by themselves
        assert trainer.released == 2
    with opened(folder, trainer) as vault:  # also after a restart
        assert vault.answer(asked(vault)) == first
    assert trainer.released == 2


def test_an_answer_that_was_stored_before_a_kill_is_sent(tmp_path, monkeypatch):
    folder, trainer = evaluating(tmp_path), CountingReleases()
    with opened(folder, trainer) as vault:
        trainer.book = vault.ledger.book
        monkeypatch.setattr(Ledger, "release", lambda *_: sys.exit())
        with pytest.raises(SystemExit):
            vault.answer(asked(vault))
        monkeypatch.undo()
    with opened(folder, trainer) as vault:
        first = vault.answer(asked(vault))
        assert vault.answer(asked(vault)) == first
        assert len(vault.ledger.book.charged("held_out")) == 1
    assert trainer.released == 1


def test_the_budget_of_held_out_rows_ends(tmp_path):
    folder, trainer = evaluating(tmp_path, evaluation={"epsilon": 1.0}), CountingReleases()
    with opened(folder, trainer) as vault:
        trainer.book = vault.ledger.book
        account = GaussianFilter.for_budget(PrivacyBudget(epsilon=1.0, delta=1e-3), "rdp")
        noise = account.noise_for(0.25)
        for number in range(4):
            vault.answer(asked(vault, round=number, noise_multiplier=noise))
        assert refused(vault, asked(vault, round=4, noise_multiplier=noise)).code is RefusalCode.BUDGET
        assert refused(vault, asked(vault, round=4, noise_multiplier=noise / 4)).code is RefusalCode.BUDGET
        assert vault.answer(trained(vault))  # training has its own
        reservation = next(iter(vault.ledger.book.reservations.values()))
        with pytest.raises(BudgetExceededError):
            vault.ledger.reserve(Reservation(**{**reservation.__dict__, "round": 9}))
    assert trainer.released == 4
    assert status(folder.path)["evaluation"]["epsilon_spent"] <= 1.0


def test_a_server_that_asks_for_millions_of_noisy_queries_is_refused(tmp_path):
    folder, trainer = evaluating(tmp_path, limits__max_queries=7), CountingReleases()
    with opened(folder, trainer) as vault:
        trainer.book, codes = vault.ledger.book, []
        for number in range(30):
            try:
                vault.answer(asked(vault, round=number, noise_multiplier=1e6))
            except VaultRefusedError as error:
                codes.append(error.code)
        assert trainer.released == 7
        assert codes == [RefusalCode.BUDGET] * 23
        assert vault.answer(trained(vault))
    assert status(folder.path)["refusals"] == {"budget": 23}
    assert status(folder.path)["rounds_charged"] == 1


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"noise_multiplier": 0.0}, RefusalCode.POLICY),
        ({"noise_multiplier": 1e-4}, RefusalCode.POLICY),
        ({"noise_multiplier": 1e7}, RefusalCode.POLICY),
        ({"noise_multiplier": 0.1}, RefusalCode.BUDGET),
        ({"query": EvaluationQuery(task="class", outputs=3)}, RefusalCode.POLICY),
        ({"query": EvaluationQuery(task="number", outputs=1)}, RefusalCode.POLICY),
        ({"query": EvaluationQuery(task="labels", outputs=2)}, RefusalCode.POLICY),
        ({"schema_sha256": "0" * 64}, RefusalCode.SCHEMA),
        ({"value": np.nan}, RefusalCode.WEIGHTS),
    ],
)
def test_queries_that_the_policy_does_not_allow_cost_nothing(tmp_path, changes, code):
    folder = evaluating(tmp_path)
    with opened(folder) as vault:
        assert refused(vault, asked(vault, **changes)).code is code
        assert not vault.ledger.book.reservations
    assert len(lines(folder)) == 1


def test_vaults_without_the_section_answer_no_query(tmp_path):
    for folder in (evaluating(tmp_path / "table", evaluation=None), made_vault(tmp_path)):
        with opened(folder) as vault:
            assert refused(vault, asked(vault)).code is RefusalCode.POLICY
            assert public_info(vault.enrolment, vault.policy)["evaluation"] is None


# ------------------------------------------------------------------------------------------- terms, records and folders


def test_the_terms_of_queries_are_pinned(tmp_path):
    policy = make_policy(policy_values(evaluation={}, service=SERVICE), "test")
    for before, after in (
        (None, {}),
        ({}, None),
        ({}, {"epsilon": 2.0}),
        ({"epsilon": 2.0}, {"epsilon": 3.0}),
    ):
        folder = evaluating(tmp_path / f"{before}{after}", evaluation=before)
        changed = make_policy(policy_values(evaluation=after, service=SERVICE), "test")
        (folder.path / POLICY).write_text(changed.to_toml())
        with pytest.raises(ConfigError, match="evaluation"), opened(folder):
            pass
    for before, after in ((3.0, 30.0), (30.0, 3.0), (None, 3.0), (3.0, None)):
        terms = [None if noise is None else {"noise_multiplier": noise} for noise in (before, after)]
        folder = evaluating(tmp_path / f"statistics {before} {after}", evaluation=None, statistics=terms[0])
        (folder.path / POLICY).write_text(
            make_policy(policy_values(statistics=terms[1], service=SERVICE), "test").to_toml()
        )
        with pytest.raises(ConfigError, match="statistics"), opened(folder):
            pass
    with pytest.raises(ConfigError, match="evaluation"):
        make_policy(policy_values(evaluation={"epsilon": 100.0}), "test")
    assert policy.pinned()["evaluation"] == {"epsilon": None}


def test_statistics_are_reserved_beside_the_steps(tmp_path):
    """The steps that a vault can afford are fewer by what its queries of the same records may spend."""
    plain = evaluating(tmp_path / "plain", evaluation=None)
    both = evaluating(tmp_path / "both", evaluation=None, statistics={"noise_multiplier": 3.0})
    left = [status(folder.path)["units_left"] for folder in (plain, both)]
    assert 0 < left[1] < left[0]
    assert status(both.path)["epsilon_spent"] > 0
    with opened(both) as vault:
        assert vault.ledger.book.affordable(3.0001, part="training") == 1
        assert vault.ledger.book.affordable(6.01, part="training") == 4
        assert vault.ledger.book.affordable(6.0, part="held_out") == 0


def test_a_folder_of_an_older_version_works(tmp_path):
    """Its enrolment and its policy know nothing of queries, nor do the lines of its ledger."""
    folder = evaluating(tmp_path, evaluation=None)
    assert "\n[evaluation]" not in (folder.path / POLICY).read_text()
    values = json.loads((folder.path / ENROLMENT).read_bytes())
    older = {key: value for key, value in values.items() if key != "held_out_sha256"}
    older["pinned"] = {key: part for key, part in values["pinned"].items() if key not in ("evaluation", "statistics")}
    Enrolment.model_validate(older).check_policy(folder.policy(), folder.path / POLICY)
    changed = make_policy(policy_values(evaluation={}), "test")
    with pytest.raises(ConfigError, match="evaluation"):
        Enrolment.model_validate(older).check_policy(changed, folder.path / POLICY)


def test_changed_held_out_rows_are_refused(tmp_path):
    folder = evaluating(tmp_path)
    place = int(np.flatnonzero(held_out(ROWS))[0])
    kept = [row for number, row in enumerate(ROWS.to_dicts()) if number != place]
    type(ROWS)(kept, schema=ROWS.schema).write_csv(tmp_path / "rows.csv")
    with pytest.raises(DataError), opened(folder):
        pass
    other = evaluating(tmp_path / "other", evaluation=None)  # it never reads them, so it need not notice
    type(ROWS)(kept, schema=ROWS.schema).write_csv(tmp_path / "other" / "rows.csv")
    with opened(other):
        pass


def test_evaluations_need_rows_that_are_held_out(tmp_path):
    with pytest.raises(ConfigError, match="held_out"):
        made_vault(tmp_path, evaluation={})


# ----------------------------------------------------------------------------------------------------------------- time


class SlowReleases(CountingReleases):
    """Takes as long as it is told to."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock, self.seconds = clock, 0.0

    def release_job(self, asked):
        job = super().release_job(asked)

        def slow(weights):
            self.clock.pass_(self.seconds)
            return job(weights)

        return slow


def test_answers_leave_at_the_end_of_a_public_slot(tmp_path):
    clock = FakeClock()
    trainer = SlowReleases(clock)
    with opened(evaluating(tmp_path), trainer, clock=clock) as vault:
        trainer.book, taken = vault.ledger.book, []
        for number, trainer.seconds in enumerate((0.0, 0.1, 0.2, 0.3)):
            start = clock.seconds
            vault.answer(asked(vault, round=number))
            taken.append(clock.seconds - start)
    assert taken == pytest.approx([SLOT, SLOT, SLOT, 2 * SLOT])


def test_the_slot_does_not_depend_on_the_number_of_held_out_rows(tmp_path):
    """It is measured for as many rows as are likely, which follows from public numbers."""
    likely = []
    out = np.flatnonzero(held_out(ROWS))
    for number, gone in enumerate(((), out[:1], out)):
        rows = ROWS.filter(~np.isin(np.arange(len(ROWS)), gone))
        folder = evaluating(tmp_path / str(number), rows, service={"seconds_per_round": 1.0, "seconds_per_step": 1.0})
        with opened(folder) as vault:
            likely.append(vault.trainer._held_out.likely)
            measured = vault.slots.timetable.seconds(ReleaseRequest(run="a", round=0, noise_multiplier=5.0,
                query=QUERY), 0)  # fmt: skip
            assert 0.005 <= measured < 60
    assert len(set(likely)) == 1
    assert likely[0] > len(out)


# ------------------------------------------------------------------------------------------------------------- commands


def test_init_allows_evaluations_where_the_schema_holds_rows_out(tmp_path):
    ROWS.write_csv(tmp_path / "rows.csv")
    (tmp_path / "schema.toml").write_text(TOML)
    terms = ["--epsilon", 2, "--delta", 1e-5, "--sample-rate", 0.2, "--min-noise-multiplier", 2]
    terms += ["--max-steps-per-round", 5, "--accountant", "rdp", "--schema", tmp_path / "schema.toml"]

    def init(name, *more):
        return alidpfl("vault", "init", "--dir", tmp_path / name, "--data", tmp_path / "rows.csv",
                       *map(str, terms), *more)  # fmt: skip

    for name, more, expected in (("yes", [], True), ("no", ["--no-evaluate"], False)):
        done = init(name, *more)
        assert done.exit_code == 0, done.stderr
        assert (VaultFolder(path=tmp_path / name).policy().evaluation is not None) == expected
        shown = alidpfl("vault", "status", "--dir", tmp_path / name)
        assert ("held-out rows" in shown.stdout) == expected


def test_a_request_that_is_no_query_is_still_a_round(tmp_path):
    folder = made_vault(tmp_path)
    with opened(folder, CountingTrainer()) as vault:
        vault.answer(body())
    assert spent(folder) == 2
