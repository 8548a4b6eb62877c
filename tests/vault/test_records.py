"""Only weights and noised signals depend on the records."""

import numpy as np
import pytest

from alidpfl.vault.folder import status
from alidpfl.vault.messages import decode_answer
from alidpfl.vault.refusals import VaultRefusedError
from alidpfl.vault.service import public_info

from .parts import NUM_CLASSES, NUM_FEATURES, NUM_RECORDS, body, made_vault, opened

ASKED = (
    {},
    {"steps": 10**6},
    {"noise_multiplier": 1.0},
    {"signals": ["raw"]},
    {"signals": ["secants", "gradient_norm"], "steps": 3},
    {"method": "pe_dpfl", "options": {"draws": 2}},
    {"sample_rate": 1e-9, "steps": 3},  # batches without a single record
)


def others(inputs, classes):
    random = np.random.default_rng(1)
    inputs[:] = random.normal(size=inputs.shape)
    classes[:] = random.integers(NUM_CLASSES, size=len(classes))


def filled(rows: slice, value: float):
    def fill(inputs, classes):
        inputs[rows] = value

    return fill


RECORDS = {
    "others": others,
    "one huge": filled(slice(1), 3e38),
    "one tiny": filled(slice(1), 1e-42),
    "all huge": filled(slice(None), -3e38),
    "all zero": filled(slice(None), 0.0),
}
NOT_FINITE = {
    "one NaN": filled(slice(1), np.nan),
    "one infinite": filled(slice(1), -np.inf),
    "all NaN": filled(slice(None), np.nan),
    "all infinite": filled(slice(None), np.inf),
}


def told_by(folder, spoil=None) -> list:
    """All that leaves a vault, and all that its ledger and status say, except noised values."""
    with opened(folder) as vault:
        if spoil is not None:
            spoil(vault.trainer._data.inputs, vault.trainer._data.targets)
        vault.clock, said = (lambda: 0), []
        for k, changes in enumerate(ASKED):
            try:
                answer, after = decode_answer(vault.answer(body(round=k, **changes)))
            except VaultRefusedError as error:
                said.append((error.code, str(error)))
                continue
            noised = {"secants", "gradient_norm"}
            said.append((answer.model_dump(exclude=noised), *(getattr(answer, name) is None for name in noised)))
            said.append({name: (values.shape, bool(np.isfinite(values).all())) for name, values in after.items()})
        reservations = list(vault.ledger.book.reservations.values())
        info = public_info(vault.enrolment, vault.policy)
    now = status(folder.path)
    last = [{k: v for k, v in refusal.items() if k != "time"} for refusal in now.pop("last_refusals")]
    own = ("vault", "head")  # random names and hashes that follow from them
    return [said, reservations, last, *({k: v for k, v in d.items() if k not in own} for d in (now, info))]


def enrolled(tmp_path, name: str, number: int, change=None):
    random = np.random.default_rng(0)
    classes = random.integers(NUM_CLASSES, size=number)
    inputs = random.normal(size=(number, NUM_FEATURES)).astype(np.float32)
    if change is not None:
        change(inputs, classes)
    np.savez(tmp_path / f"{name}.npz", x=inputs, y=classes)
    return made_vault(tmp_path, name)


@pytest.mark.parametrize("number", [NUM_RECORDS, 1])
@pytest.mark.parametrize("name", RECORDS)
def test_nothing_but_weights_and_noised_signals_depends_on_the_records(tmp_path, caplog, name, number):
    """Two vaults with equally many but different records give the same texts, numbers and refusals."""
    expected = told_by(enrolled(tmp_path, "usual", number))
    check_served(expected)
    assert told_by(enrolled(tmp_path, "unusual", number, RECORDS[name])) == expected
    assert caplog.text == ""


@pytest.mark.parametrize("number", [NUM_RECORDS, 1])
@pytest.mark.parametrize("name", NOT_FINITE)
def test_nor_where_they_are_no_numbers(tmp_path, caplog, name, number):
    """Enrolment refuses such records, but the vault must not rely on that."""
    expected = told_by(enrolled(tmp_path, "usual", number))
    assert told_by(enrolled(tmp_path, "unusual", number), spoil=NOT_FINITE[name]) == expected
    assert caplog.text == ""


def check_served(told: list) -> None:
    """Otherwise equal refusals would prove little."""
    served = [part for part in told[0] if isinstance(part, dict)]
    assert len(served) == 5
    assert all(is_finite for weights in served for _, is_finite in weights.values())
