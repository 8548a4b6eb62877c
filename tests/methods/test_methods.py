"""The contract of every method, and the changes that each one makes."""

import copy
import json

import pytest
import torch

from alidpfl.dpsgd import PerSampleClipper, RandomStream, cross_entropy
from alidpfl.errors import ConfigError, UnsupportedModelError
from alidpfl.federation.tensors import flatten, trained
from alidpfl.methods import METHODS, AdapDpfl, PeDpfl, make_method
from alidpfl.models.cnn import paper_cnn
from alidpfl.policies import POLICIES
from alidpfl.types import ClientUpdate

NUMBERS = {"clip_norm": 1.0, "noise_multiplier": 1.1}


def update(client: int, gradient_norm: float | None) -> ClientUpdate:
    return ClientUpdate(client=client, params=torch.zeros(1), gradient_norm=gradient_norm)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_the_contract(name):
    method = make_method(name, **NUMBERS)
    assert method.name == name
    assert METHODS[name].default_policy in POLICIES
    state = json.loads(json.dumps(method.start()))
    assert method.clip_and_noise(state, client=3).clip_norm == 1.0
    assert method.clip_and_noise(state, client=3).noise_multiplier == 1.1
    later = method.observe(state, [update(0, 0.5)], public_loss=1.0)
    assert json.loads(json.dumps(later)) == later


def test_default_policies_are_those_of_the_papers():
    found = {name: (method.default_policy, method.default_local_steps) for name, method in METHODS.items()}
    assert found["fedavg_dp"] == ("fixed", 1)
    assert found["ali_dpfl"][0] == "ali"
    assert found["adap_dpfl"] == found["pe_dpfl"] == ("fixed", 3)


@pytest.mark.parametrize("name", METHODS)
def test_objectives_use_the_given_loss(name):
    def zero(outputs, targets):
        return 0 * cross_entropy(outputs, targets)

    objective = make_method(name, **NUMBERS).objective(torch.nn.Linear(4, 2), zero)
    assert torch.equal(objective.loss(objective.model(torch.ones(3, 4)), torch.tensor([0, 1, 1])), torch.zeros(3))


@pytest.mark.parametrize("name", METHODS)
def test_objectives_train_the_models_own_parameters_in_their_order(name):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    objective = make_method(name, **NUMBERS).objective(model)
    assert torch.equal(flatten(trained(objective.model)), flatten(trained(model)))


@pytest.mark.parametrize("name", METHODS)
def test_objectives_can_be_clipped_exactly(name):
    """On the paper's CNN: the clipper's probe compares every objective with plain autograd, sample by sample."""
    objective = make_method(name, **NUMBERS).objective(paper_cnn((1, 28, 28)))
    if objective.before_step:
        objective.before_step(RandomStream.seeded(0))
    clipper = PerSampleClipper(objective.model, loss=objective.loss)
    clipped = clipper.clipped_sum(torch.randn(3, 1, 28, 28), torch.tensor([0, 1, 2]), clip_norm=0.5, seed=0)
    total = sum(float(g.double().square().sum()) for g in clipped.gradients.values()) ** 0.5
    assert 0 < total <= 3 * 0.5


def test_unknown_methods_and_settings_are_named():
    with pytest.raises(ConfigError, match=r"method='fedavg'.*'fedavg_dp'"):
        make_method("fedavg", **NUMBERS)
    with pytest.raises(ConfigError, match="momentum"):
        make_method("fedavg_dp", momentum=0.9, **NUMBERS)


class TestAdapDpfl:
    method = AdapDpfl(**NUMBERS, clip_factor=2.0, noise_decay=0.9)

    def test_each_clients_clip_norm_follows_its_own_noised_gradients(self):
        state = self.method.observe(self.method.start(), [update(0, 0.25), update(1, 100.0), update(2, 0.0)], None)
        assert self.method.clip_and_noise(state, 0).clip_norm == 0.5
        assert self.method.clip_and_noise(state, 1).clip_norm == self.method.largest_clip_norm
        assert self.method.clip_and_noise(state, 2).clip_norm == self.method.smallest_clip_norm
        assert self.method.clip_and_noise(state, 3).clip_norm == 1.0  # never heard of

    @pytest.mark.parametrize("lie", [float("nan"), float("inf"), -1.0])
    def test_a_lying_client_gets_a_clip_norm_within_bounds(self, lie):
        state = self.method.observe(self.method.start(), [update(0, lie)], None)
        clip_norm = self.method.clip_and_noise(state, 0).clip_norm
        assert self.method.smallest_clip_norm <= clip_norm <= self.method.largest_clip_norm

    def test_noise_falls_after_three_falls_of_the_public_loss_in_a_row(self):
        state, noises = self.method.start(), []
        for loss in (1.0, 0.9, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4):
            state = self.method.observe(state, [], loss)
            noises.append(self.method.clip_and_noise(state, 0).noise_multiplier)
        # 0.95 > 0.9 breaks the first row; 0.95, 0.9, 0.8, 0.7 is the first of three falls, then counting starts anew.
        assert noises == pytest.approx([1.1] * 5 + [0.99] * 3 + [0.891])

    def test_settings_out_of_range_are_named(self):
        with pytest.raises(ConfigError, match=r"noise_decay=1\.5"):
            AdapDpfl(**NUMBERS, noise_decay=1.5)
        with pytest.raises(ConfigError, match=r"clip_norm=1\.0 .*largest_clip_norm=0\.5"):
            AdapDpfl(**NUMBERS, largest_clip_norm=0.5)


class TestPeDpfl:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    inputs, targets = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 0, 1])

    def test_the_loss_is_that_of_a_perturbed_classifier(self):
        """Against the formula written out: ℓ(φ, c) + λ mean_u [ℓ(φ, c + u) − ℓ(φ, c)]."""
        method = PeDpfl(**NUMBERS, regularisation=0.3, perturbation=0.7, draws=2)
        objective = method.objective(self.model)
        objective.before_step(RandomStream.seeded(4))
        ours = objective.loss(objective.model(self.inputs), self.targets)

        plain = cross_entropy(self.model(self.inputs), self.targets)
        moved = []
        head = objective.model[2]
        for perturbation in head.perturbations:
            other = copy.deepcopy(self.model)
            with torch.no_grad():
                other[2].weight += perturbation.weight
                other[2].bias += perturbation.bias
            moved.append(cross_entropy(other(self.inputs), self.targets))
        expected = plain + 0.3 * (torch.stack(moved).mean(0) - plain)
        assert torch.allclose(ours, expected, atol=1e-6)
        assert not torch.allclose(ours, plain, atol=1e-3)

    def test_every_step_draws_anew_and_at_the_right_scale(self):
        method = PeDpfl(**NUMBERS, perturbation=0.2)
        objective = method.objective(torch.nn.Sequential(torch.nn.Linear(100, 50)))
        random = RandomStream.seeded(4)
        objective.before_step(random)
        first = objective.model[0].perturbations[0].weight.clone()
        objective.before_step(random)
        assert not torch.equal(first, objective.model[0].perturbations[0].weight)
        assert float(first.std()) == pytest.approx(0.2, rel=0.07)  # 5,000 draws: 7 standard errors

    def test_the_users_model_is_left_alone(self):
        names = [name for name, _ in self.model.named_parameters()]
        PeDpfl(**NUMBERS).objective(self.model)
        assert [name for name, _ in self.model.named_parameters()] == names

    def test_a_model_without_a_classifier_is_refused(self):
        with pytest.raises(UnsupportedModelError, match=r"nn\.Linear"):
            PeDpfl(**NUMBERS).objective(torch.nn.Conv2d(1, 2, 3))

    def test_settings_out_of_range_are_named(self):
        with pytest.raises(ConfigError, match="draws=0"):
            PeDpfl(**NUMBERS, draws=0)
        with pytest.raises(ConfigError, match="variant='both'"):
            PeDpfl(**NUMBERS, variant="both")
