"""Audits of claims about persons: canaries are whole persons with more records than a step may take."""

from dataclasses import replace

import pytest
import torch

from alidpfl.audit import audit_run, audit_step
from alidpfl.audit.findings import Audit
from alidpfl.dpsgd import Groups
from alidpfl.federation import client
from alidpfl.reporting.audit_tables import audit_view
from tests.audit.parts import network, subject, too_little_noise

MOST = 3
PERSONS = torch.arange(20) // 4


def of_persons(**changes):
    return replace(subject(**changes), groups=Groups.of(PERSONS), max_records=MOST)


REAL = {
    "softmax": {},
    "network": {"model": network()},
    "grid": {"noise": "grid"},
    "update": {"method": "pe_dpfl", "variant": "output", "sigma": 1.0, "epsilon": 10.0, "model": network()},
}


@pytest.mark.parametrize("name", REAL)
def test_the_real_step_is_not_refuted_and_the_canary_is_strong(name):
    found = audit_step(of_persons(**REAL[name]), draws=200, seed=1)
    assert not found.is_refuted
    assert 0.9 < found.strength <= 1


def test_too_little_noise_is_refuted(monkeypatch):
    too_little_noise(monkeypatch, 1.25)
    assert audit_step(of_persons(), draws=2000, seed=2).is_refuted


def test_clipping_by_record_is_refuted(monkeypatch):
    """Each of k records moves the sum by C then."""

    def drawn(data, units, random):
        rows, _ = data.groups.draw(units, data.max_records, random)
        return rows.flatten(), None

    monkeypatch.setattr(client.ClientData, "drawn", drawn)
    step = client.dp_sgd_step

    def of_records(*given, rows, places, weights):
        assert len(places) <= len(rows)
        assert weights is None
        return step(*given, rows=rows, places=torch.arange(len(rows)))

    monkeypatch.setattr(client, "dp_sgd_step", of_records)
    assert audit_step(of_persons(), draws=500, seed=2).is_refuted


def test_one_run_has_persons_among_its_canaries():
    audited = of_persons(sigma=3.0, epsilon=2.0)
    found = audit_run(audited, canaries=60, seed=3)
    assert not found.is_refuted
    canaries = audited.canary_groups(torch.arange(60))
    assert len(canaries) == 60
    assert canaries.offsets.diff().unique().tolist() == [MOST + 1]


def test_the_verdict_says_what_a_canary_is():
    found = audit_step(of_persons(), draws=200, seed=1)
    document = Audit(claimed_epsilon=1.0, delta=1e-5, unit="person", step=found, run=None).to_json()
    assert document["unit"] == "person"
    assert any("whole person" in str(part) for part in audit_view(document).renderables)
