"""Bugs, one at a time, each of which must turn a test red: `make mutants`.

First the tests run without any mutant: one that is red anyway counts for nothing. The mutants are the bugs that have
broken private systems elsewhere, or would break this one. A survivor fails the run: it means that a check we rely on
cannot fail. What was found is kept in .mutants.jsonl while code and tests stay as they are: stopped, the next run goes
on from there. Which test killed a mutant last is kept in reproduction/results/killers.json, to be tried first the next time.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.audit.mutants import AUDIT_MUTANTS  # noqa: E402
from tests.dpsgd.mutants import GRID_MUTANTS  # noqa: E402
from tests.faults.mutants import FAULT_MUTANTS  # noqa: E402
from tests.features.mutants import FEATURE_MUTANTS  # noqa: E402
from tests.flower.mutants import FLOWER_MUTANTS  # noqa: E402
from tests.mutation import (  # noqa: E402
    Mutant,
    Progress,
    check_baseline,
    chosen,
    forget_killers_that_are_gone,
    keep_killer,
    killers,
)
from tests.runs.mutants import RUN_MUTANTS  # noqa: E402
from tests.vault.mutants import VAULT_MUTANTS  # noqa: E402

STEP, CLIPPING, RANDOM = "tests/dpsgd/test_step.py", "tests/dpsgd/test_clipping.py", "tests/dpsgd/test_randomness.py"
MODELS, NATIVE = "tests/dpsgd/test_model_check.py", "src/alidpfl/dpsgd/_native_kernels.h"
CLIENT, LOOP, SERVER = (f"tests/federation/test_{name}.py" for name in ("client", "loop", "server"))
LEDGER, CURVATURE = "tests/privacy/test_client_ledger.py", "tests/federation/test_curvature.py"
REPLAY = "tests/replay/test_training.py"
GOLDEN, ACCOUNTANTS = "tests/privacy/test_accounting_golden.py", "tests/privacy/test_accountants.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "noise divided by the batch size",
        "src/alidpfl/dpsgd/step.py",
        "add_noise(clipped.gradients, settings.noise_scale, random)",
        "add_noise(clipped.gradients, settings.noise_scale / settings.expected_batch_size, random)",
        STEP,
    ),
    Mutant(
        "the norms of sequences round by their place",
        "src/alidpfl/dpsgd/layers.py",
        "gram = padded_gram(grads) * products",
        "gram = torch.bmm(grads, grads.mT) * products",
        "tests/dpsgd/test_padding.py",
    ),
    Mutant(
        "accounts kept at another δ are taken over",
        "src/alidpfl/privacy/client_ledger.py",
        """            "delta": self._budget.delta,
            "accountant": self._accountant,
""",
        """            "accountant": self._accountant,
""",
        LEDGER,
    ),
    Mutant(
        "accounts with other releases before the first step are taken over",
        "src/alidpfl/privacy/client_ledger.py",
        """            "rdp_of_releases": self._fresh.rdp_spent,
""",
        "",
        LEDGER,
    ),
    Mutant(
        "not all terms of accounts are compared",
        "src/alidpfl/privacy/client_ledger.py",
        "for key, new in terms.items() if saved.get(key) != new}",
        'for key, new in terms.items() if saved.get(key) != new and key != "delta"}',
        LEDGER,
    ),
    Mutant(
        "an update is clipped to S but for rounding",
        "src/alidpfl/federation/client.py",
        "plan.clip_norm * SAFETY / norm",
        "plan.clip_norm / norm",
        CLIENT,
    ),
    Mutant(
        "a linear layer rounds by a sample's place",
        "src/alidpfl/dpsgd/padding.py",
        "if width % _EVEN else tensor",
        "if False else tensor",
        "tests/dpsgd/test_padding.py",
    ),
    Mutant(
        "frozen layers round by a sample's place",
        "src/alidpfl/dpsgd/padding.py",
        "if isinstance(module, nn.Linear)]",
        "if isinstance(module, nn.Linear) and module.weight.requires_grad]",
        "tests/dpsgd/test_padding.py",
    ),
    Mutant(
        "a sequence's gradient rounds by its place",
        "src/alidpfl/dpsgd/layers.py",
        "stored(padded_bmm(grad_output.mT, inputs))",
        "stored(torch.bmm(grad_output.mT, inputs))",
        "tests/dpsgd/test_padding.py",
    ),
    Mutant(
        "a convolution's gradient rounds by its place",
        "src/alidpfl/dpsgd/conv.py",
        "values[part].flatten(0, 1).copy_(padded_bmm(copied, grads[part].flatten(0, 1)))",
        "torch.bmm(copied, grads[part].flatten(0, 1), out=values[part].flatten(0, 1))",
        "tests/dpsgd/test_padding.py",
    ),
    Mutant(
        "a convolution's gradient by kernel rows rounds by its place",
        "src/alidpfl/dpsgd/conv.py",
        "gradients.copy_(padded_bmm(grads, windows[:, first : first + grads.shape[2]]))",
        "torch.bmm(grads, windows[:, first : first + grads.shape[2]], out=gradients)",
        "tests/dpsgd/test_padding.py",
    ),
    Mutant(
        "small pieces of a batch are not padded",
        "src/alidpfl/dpsgd/clipping.py",
        "size = padded_size(used)",
        "size = max(used, min(padded_size(used), self._microbatch_size))",
        "tests/dpsgd/test_padding.py",
    ),
    Mutant(
        "squares of tiny gradients underflow",
        "src/alidpfl/dpsgd/layers.py",
        "squared = squared_norms(grad_output.double())",
        "squared = squared_norms(grad_output)",
        CLIPPING,
    ),
    Mutant(
        "a secure run goes on from an older checkpoint",
        "src/alidpfl/runs/execute.py",
        "if not prepared.repeats_rounds and written >",
        "if False and written >",
        "tests/runs/test_kill_and_resume.py",
    ),
    Mutant(
        "records are drawn twice as often as is charged for",
        "src/alidpfl/federation/client.py",
        "poisson_sample(len(data), plan.sample_rate, random)",
        "poisson_sample(len(data), min(1.0, 2 * plan.sample_rate), random)",
        CLIENT,
    ),
    Mutant(
        "a charge books nothing",
        "src/alidpfl/privacy/client_ledger.py",
        "        self._spend(client, steps, noise_multiplier)\n        self._steps[client] += steps\n",
        "        self._spend(client, steps, noise_multiplier)\n",
        REPLAY,
    ),
    Mutant(
        "a worker's error quotes records",
        "src/alidpfl/simulation/workers.py",
        "training or evaluation failed with {type(error).__name__}",
        "training or evaluation failed with {error!r}",
        "tests/simulation/test_withheld_errors.py",
    ),
    Mutant(
        "un-noised signals need no permission",
        "src/alidpfl/federation/planning.py",
        "if self.uses_raw_signals and UNACCOUNTED_SIGNALS not in settings.unsafe:",
        "if False:",
        "tests/runs/test_execute.py::test_unnoised_signals_must_be_asked_for_and_are_told_everywhere",
    ),
    Mutant(
        "files that show private records are claimed to be covered",
        "src/alidpfl/federation/loop.py",
        "return not (self._planner.uses_raw_signals or self.settings.shows_private_data)",
        "return not self._planner.uses_raw_signals",
        "tests/runs/test_what_reaches_clients.py",
    ),
    Mutant(
        "a record that is no number stops a client",
        "src/alidpfl/federation/client.py",
        "        return result.noised_sum\n",
        "        if result.private.num_non_finite:\n"
        '            raise DataError("a record is no number")\n'
        "        return result.noised_sum\n",
        "tests/vault/test_records.py",
    ),
    Mutant(
        "noise not scaled by the clip norm",
        "src/alidpfl/dpsgd/step.py",
        "return self.noise_multiplier * self.clip_norm if",
        "return self.noise_multiplier if",
        STEP,
    ),
    Mutant(
        "noise skipped on an empty batch",
        "src/alidpfl/dpsgd/step.py",
        "    add_noise(clipped.gradients, settings.noise_scale, random)",
        "    if len(inputs):\n        add_noise(clipped.gradients, settings.noise_scale, random)",
        STEP,
    ),
    Mutant(
        "seed reused: the same noise every step",
        "src/alidpfl/dpsgd/step.py",
        "noise = random.normal(sum(sizes))",
        "noise = RandomStream.seeded(0).normal(sum(sizes))",
        STEP,
    ),
    Mutant(
        "the same noise for every tensor",
        "src/alidpfl/dpsgd/step.py",
        "zip(gradients.items(), noise.split(sizes), strict=True)",
        "((item, noise[: item[1].numel()]) for item in gradients.items())",
        STEP,
    ),
    Mutant(
        "low-order bits of the noised sum are released",
        "src/alidpfl/dpsgd/step.py",
        "noised.div_(grid).round_().mul_(grid)",
        "noised",
        STEP,
    ),
    Mutant(
        "the grid follows the data",
        "src/alidpfl/dpsgd/step.py",
        "noised.div_(grid).round_().mul_(grid)",
        "noised.div_(grid * (1 + float(noised.abs().max()))).round_().mul_(grid)",
        STEP,
    ),
    Mutant(
        "huge layer inputs times denormal gradients are summed",
        "src/alidpfl/dpsgd/layers.py",
        "squared_norms=precise(squared * squared_inputs, squared_inputs)",
        "squared_norms=squared * squared_inputs",
        CLIPPING,
    ),
    Mutant(
        "the same, where a layer has positions",
        "src/alidpfl/dpsgd/layers.py",
        "        squared = precise(squared, squared_lengths.sum(1))\n",
        "",
        CLIPPING,
    ),
    Mutant(
        "a norm that is rounding error alone counts as zero",
        "src/alidpfl/dpsgd/layers.py",
        "    return (squared.sqrt_() + 2.0**-23 * total).square_()\n",
        "    return squared - terms * 2.0**-52 * total.square()\n",
        f"{CLIPPING}::test_positions_that_nearly_cancel_are_clipped "
        f"{CLIPPING}::test_tokens_whose_rows_nearly_cancel_are_clipped",
    ),
    Mutant(
        "time tells which record met denormals",
        "src/alidpfl/federation/tensors.py",
        "    torch.set_flush_denormal(True)  # for this thread only\n",
        "",
        CLIENT,
    ),
    Mutant(
        "a client trains with denormals",
        "src/alidpfl/federation/client.py",
        "        with steady_arithmetic():\n            return self._trained(params, data, plan, random)\n",
        "        return self._trained(params, data, plan, random)\n",
        CLIENT,
    ),
    Mutant(
        "a cap on weights that does not cap",
        "src/alidpfl/federation/server.py",
        "found[client] = min(cap, left * weights[client] / total)",
        "found[client] = left * weights[client] / total",
        SERVER,
    ),
    Mutant(
        "clients are charged for steps that nobody runs",
        "src/alidpfl/federation/planning.py",
        "self._settings.max_local_steps or decision.local_steps",
        "decision.local_steps",
        LOOP,
    ),
    Mutant(
        "divisor is the realised batch size",
        "src/alidpfl/dpsgd/step.py",
        "settings.learning_rate / settings.expected_batch_size)",
        "settings.learning_rate / max(1, len(inputs)))",
        STEP,
    ),
    Mutant(
        "mean instead of sum of the losses",
        "src/alidpfl/dpsgd/recording.py",
        "torch.autograd.grad(values.sum(),",
        "torch.autograd.grad(values.mean(),",
        CLIPPING,
    ),
    Mutant(
        "clip norm ignored",
        "src/alidpfl/dpsgd/gradient_forms.py",
        "factors = (limit / norms).clamp_max(1)",
        "factors = torch.ones_like(norms)",
        CLIPPING,
    ),
    Mutant(
        "clipped by the largest layer's norm, not by all",
        "src/alidpfl/dpsgd/clipping.py",
        "squared += gradients.squared_norms",
        "squared = torch.maximum(squared, gradients.squared_norms)",
        CLIPPING,
    ),
    Mutant(
        "no margin for the rounding of norms",
        "src/alidpfl/dpsgd/clipping.py",
        "SAFETY = 1 - 1e-6",
        "SAFETY = 1",
        f"{CLIPPING} {STEP}",
    ),
    Mutant(
        "non-finite gradients only weighted with zero",
        "src/alidpfl/dpsgd/clipping.py",
        "factors, dropped = clip_factors(norms, limit).to(self._dtype), to_drop(norms)",
        "factors, dropped = clip_factors(norms, limit).to(self._dtype), None",
        STEP,
    ),
    Mutant(
        "only the last microbatch counts",
        "src/alidpfl/dpsgd/clipping.py",
        "sums[name] = sums[name].double().add_(gradient) if name in sums else gradient",
        "sums[name] = gradient",
        CLIPPING,
    ),
    Mutant(
        "dropout not seeded",
        "src/alidpfl/dpsgd/guards.py",
        "torch.default_generator.manual_seed(seed)",
        "pass",
        CLIPPING,
    ),
    Mutant(
        "sums over positions in single precision",
        "src/alidpfl/dpsgd/layers.py",
        "return _outer(*(t.flatten(0, 1).double() for t in (inputs, grad_output))).to(inputs.dtype)",
        "return _outer(*(t.flatten(0, 1) for t in (inputs, grad_output)))",
        CLIPPING,
    ),
    Mutant(
        "Gram matrices in single precision",
        "src/alidpfl/dpsgd/layers.py",
        "grads = grad_output.double()",
        "grads = grad_output",
        CLIPPING,
    ),
    Mutant(
        "long norms in single precision",
        "src/alidpfl/dpsgd/gradient_forms.py",
        "_EXACT_LENGTH = 256",
        "_EXACT_LENGTH = 1 << 20",
        CLIPPING,
    ),
    Mutant(
        "large batches summed in single precision",
        "src/alidpfl/dpsgd/clipping.py",
        "sums[name].double().add_(gradient)",
        "sums[name].add_(gradient)",
        CLIPPING,
    ),
    Mutant(
        "the same dropout masks every step",
        "src/alidpfl/dpsgd/step.py",
        "seed = random.integer()",
        "seed = 0 * random.integer()",
        STEP,
    ),
    Mutant(
        "a buffer may remember data",
        "src/alidpfl/dpsgd/model_check.py",
        "if name not in before or before[name][0] is not buffer or before[name][1] != buffer._version:",
        "if False:",
        MODELS,
    ),
    Mutant(
        "repeated tokens counted apart",
        "src/alidpfl/dpsgd/layers.py",
        "equal = (tokens.unsqueeze(1) == tokens.unsqueeze(2)).double()",
        "equal = torch.eye(tokens.shape[1], dtype=torch.float64)",
        CLIPPING,
    ),
    Mutant(
        "batch norm accepted",
        "src/alidpfl/dpsgd/model_check.py",
        "if isinstance(module, _BatchNorm) and",
        "if False and",
        MODELS,
    ),
    Mutant(
        "mixing of samples not noticed",
        "src/alidpfl/dpsgd/model_check.py",
        "_TOLERANCE = 1e-4",
        "_TOLERANCE = 1e9",
        MODELS,
    ),
    Mutant(
        "native kernel forgets rows in the norm",
        NATIVE,
        "                total += NAME(one_##V)(",
        "                NAME(one_##V)(",
        CLIPPING,
    ),
    Mutant(
        "native pooling lets the gradient of a dead unit through",
        NATIVE,
        "(uint8_t)(none ? NONE : who)",
        "(uint8_t)(who)",
        CLIPPING,
    ),
    Mutant(
        "shuffled batches of a fixed size",
        "src/alidpfl/dpsgd/step.py",
        "(random.uniform(num_records) < chance).nonzero().squeeze(1)",
        "random.uniform(num_records).argsort()[: round(num_records * sample_rate)]",
        RANDOM,
    ),
    Mutant(
        "sampling at a higher rate",
        "src/alidpfl/dpsgd/step.py",
        "random.uniform(num_records) < chance",
        "random.uniform(num_records) < 1.1 * chance",
        RANDOM,
    ),
    Mutant(
        "noise 3 % too small",
        "src/alidpfl/dpsgd/randomness.py",
        "        return out[:count]",
        "        return 0.97 * out[:count]",
        RANDOM,
    ),
    Mutant(
        "a forked process repeats the noise",
        "src/alidpfl/dpsgd/randomness.py",
        "if self.is_secure and os.getpid() != self._owner:",
        "if False:",
        RANDOM,
    ),
    Mutant(
        "the secure stream has a fixed key",
        "src/alidpfl/dpsgd/randomness.py",
        "return cls(os.urandom(_KEY_BYTES), secure=True)",
        "return cls(bytes(_KEY_BYTES), secure=True)",
        RANDOM,
    ),
    Mutant(
        "the search returns the unsafe end",
        "src/alidpfl/privacy/step_search.py",
        "        probe = min(max(probe, fits + 1), too_many - 1)\n    return fits",
        "        probe = min(max(probe, fits + 1), too_many - 1)\n    return too_many",
        GOLDEN,
    ),
    Mutant(
        "the quick search takes what does not quite fit",
        "src/alidpfl/privacy/step_search.py",
        "        if value <= limit:\n            fits = min(fits, probe)",
        "        if value <= 1.05 * limit:\n            fits = min(fits, probe)",
        "tests/privacy/test_step_search.py tests/privacy/test_gaussian_dp.py",
    ),
    Mutant(
        "calibration one notch too low",
        "src/alidpfl/privacy/accounting.py",
        "return on_grid(guess)",
        "return on_grid(guess + 1)",
        ACCOUNTANTS,
    ),
    Mutant(
        "what was already spent is forgotten",
        "src/alidpfl/privacy/accounting.py",
        "function(merged([*spent, replace(step, steps=steps)]), budget.delta)",
        "function(merged([replace(step, steps=steps)]), budget.delta)",
        ACCOUNTANTS,
    ),
    Mutant(
        "an optimistic loss distribution",
        "src/alidpfl/privacy/accountants.py",
        "pessimistic_estimate=True",
        "pessimistic_estimate=False",
        f"{GOLDEN} {ACCOUNTANTS} tests/privacy/test_numerics.py",
    ),
    Mutant(
        "the filter lets one charge too many pass",
        "src/alidpfl/privacy/filter.py",
        "if not self._epsilon(rdp_spent) <= self.budget.epsilon:",
        "if not self._epsilon(self.rdp_spent) <= self.budget.epsilon:",
        "tests/privacy/test_filter.py",
    ),
    Mutant(
        "clients charged after they answered",
        "src/alidpfl/federation/loop.py",
        "        self._charge(plans)  # before dispatch: a requested round counts as spent, whatever comes back\n"
        "        updates = self._dispatch(plans)\n",
        "        updates = self._dispatch(plans)\n        self._charge(plans)\n",
        LOOP,
    ),
    Mutant(
        "dropouts not charged",
        "src/alidpfl/federation/loop.py",
        "        for plan in plans:\n            rate = 1.0",
        "        lost = self._planner.failures(self.progress.round, [plan.client for plan in plans])\n"
        "        for plan in (p for p in plans if p.client not in lost):\n            rate = 1.0",
        LOOP,
    ),
    Mutant(
        "a step more than the budget pays for",
        "src/alidpfl/privacy/client_ledger.py",
        "return self.max_steps - self._steps[client]",
        "return self.max_steps - self._steps[client] + 1",
        LEDGER,
    ),
    Mutant(
        "the accounts start anew after a restart",
        "src/alidpfl/federation/loop.py",
        '        self._ledger.restore(values["ledger"])\n',
        "",
        LOOP,
    ),
    Mutant(
        "the filter forgets what less noise costs",
        "src/alidpfl/privacy/client_ledger.py",
        "step = SampledGaussian(sample_rate=self._sample_rate, noise_multiplier=noise_multiplier, steps=steps)\n"
        "        self._filters",
        "step = SampledGaussian(sample_rate=self._sample_rate, noise_multiplier=1.1, steps=steps)\n"
        "        self._filters",
        LEDGER,
    ),
    Mutant(
        "a client divides by its realised batch size",
        "src/alidpfl/federation/client.py",
        "settings = _step_settings(plan, learning_rate, divisor)",
        "settings = _step_settings(plan, learning_rate, max(1, len(records)))",
        CLIENT,
    ),
    Mutant(
        "un-noised signals sent without being asked for",
        "src/alidpfl/federation/client.py",
        'if "raw" in plan.signals else None',
        "if True else None",
        CLIENT,
    ),
    Mutant(
        "un-noised signals admitted without a word",
        "src/alidpfl/federation/planning.py",
        "if self.uses_raw_signals and UNACCOUNTED_SIGNALS not in settings.unsafe:",
        "if False:",
        LOOP,
    ),
    Mutant(
        "records claim that epsilon covers un-noised signals",
        "src/alidpfl/federation/loop.py",
        "return not (self._planner.uses_raw_signals or self.settings.shows_private_data)",
        "return True",
        LOOP,
    ),
    Mutant(
        "noise on an update for sensitivity S, not 2S",
        "src/alidpfl/federation/client.py",
        "add_noise(released, 2 * plan.clip_norm",
        "add_noise(released, plan.clip_norm",
        CLIENT,
    ),
    Mutant(
        "the same noise every round",
        "src/alidpfl/simulation/runner.py",
        "RandomStream.seeded(self._seed, plan.round, plan.client)",
        "RandomStream.seeded(self._seed, plan.client)",
        "tests/federation/test_noise_keys.py",
    ),
    Mutant(
        "the same noise for every client",
        "src/alidpfl/simulation/runner.py",
        "RandomStream.seeded(self._seed, plan.round, plan.client)",
        "RandomStream.seeded(self._seed, plan.round)",
        "tests/federation/test_noise_keys.py",
    ),
    Mutant(
        "secure noise from only 256 distinct keys",
        "src/alidpfl/dpsgd/randomness.py",
        "return cls(os.urandom(_KEY_BYTES), secure=True)",
        "return cls(hashlib.sha256(os.urandom(1)).digest(), secure=True)",
        RANDOM,
    ),
    Mutant(
        "new keys after a fork from only 256",
        "src/alidpfl/dpsgd/randomness.py",
        "self._stream, self._owner = _keystream(os.urandom(_KEY_BYTES)), os.getpid()",
        "self._stream, self._owner = _keystream(os.urandom(1) * _KEY_BYTES), os.getpid()",
        RANDOM,
    ),
    Mutant(
        "updates with NaN averaged in",
        "src/alidpfl/federation/server.py",
        "if not math.isfinite(moved):",
        "if False:",
        SERVER,
    ),
    Mutant(
        "secants keep the part of the noise that moved the weights",
        "src/alidpfl/federation/curvature.py",
        "noise=step_size * (added + first.sampling),",
        "noise=0.0,",
        CURVATURE,
    ),
    Mutant(
        "the model moves without a quorum",
        "src/alidpfl/federation/loop.py",
        "aggregated = len(accepted) >= self._server_settings.least_updates(len(plans))",
        "aggregated = len(accepted) >= 1",
        LOOP,
    ),
    Mutant(
        "clipped layer by layer",
        "src/alidpfl/dpsgd/clipping.py",
        "sums[name] = found.pop(name).weighted_sum(factors, dropped)",
        "own = found.pop(name)\n"
        "                by_layer = clip_factors(own.squared_norms.sqrt(), limit).to(self._dtype)\n"
        "                sums[name] = own.weighted_sum(by_layer, dropped)",
        CLIPPING,
    ),
    Mutant(
        "no noise where a client drew no record",
        "src/alidpfl/dpsgd/step.py",
        "    add_noise(clipped.gradients, settings.noise_scale, random)",
        "    if rows is None or len(rows):\n        add_noise(clipped.gradients, settings.noise_scale, random)",
        REPLAY,
    ),
    Mutant(
        "which noise is drawn depends on the batch",
        "src/alidpfl/dpsgd/step.py",
        "    # Empty batch: still add noise,",
        "    random.uniform(0 if rows is None else len(rows))\n    # Empty batch: still add noise,",
        REPLAY,
    ),
    Mutant(
        "batch sizes are logged",
        "src/alidpfl/federation/client.py",
        "        if self._objective.before_step is not None:\n",
        '        __import__("logging").getLogger(__name__).debug("%d drawn", len(records))\n'
        "        if self._objective.before_step is not None:\n",
        REPLAY,
    ),
    Mutant(
        "the hash of the records is written where everybody reads",
        "src/alidpfl/runs/execute.py",
        '"clients": clients}',
        '"clients": clients, "records": prepared.clients}',
        "tests/replay/test_run_directories.py",
    ),
    Mutant(
        "un-noised curvature follows the weights unasked",
        "src/alidpfl/federation/planning.py",
        "signals=self._signals(),",
        'signals=self._signals() | {"raw"},',
        REPLAY,
    ),
)


MUTANTS += tuple(
    Mutant(*parts)
    for parts in (
        *VAULT_MUTANTS,
        *FLOWER_MUTANTS,
        *FEATURE_MUTANTS,
        *GRID_MUTANTS,
        *AUDIT_MUTANTS,
        *FAULT_MUTANTS,
        *RUN_MUTANTS,
    )
)

KNOWN_BUGS: dict[str, tuple[str, ...]] = {
    "noise / batch size": ("noise divided by the batch size",),
    "sum versus mean": ("mean instead of sum of the losses",),
    "clip per layer": ("clipped layer by layer", "clipped by the largest layer's norm, not by all"),
    "noise skipped on an empty batch": ("noise skipped on an empty batch", "no noise where a client drew no record"),
    "shuffle instead of Poisson": ("shuffled batches of a fixed size",),
    "accountant reset": ("the accounts start anew after a restart", "vault: the ledger is forgotten at a restart"),
    "seed reused": ("seed reused: the same noise every step", "the same noise every round"),
    "unsafe search end": ("the search returns the unsafe end",),
    "divisor = realised size": (
        "divisor is the realised batch size",
        "a client divides by its realised batch size",
    ),
    "ledger written after training": (
        "clients charged after they answered",
        "vault: the round is reserved after it was trained",
    ),
    "replay accepted": (
        "vault: a changed replay is answered",
        "vault: a lost round is trained again under its charge",
    ),
}
"""What is known to break private training, in the words of docs/explanation/privacy.md, and the mutants that are each of them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="the mutants with this in their name, or in their file's path")
    parser.add_argument("--known", action="store_true", help="those that have broken private systems before")
    parser.add_argument("--since", metavar="COMMIT", help="those whose file or tests have changed since")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--afresh", action="store_true", help="forget what was found before")
    parser.add_argument("--list", action="store_true", help="name them, and do nothing")
    asked = parser.parse_args()
    known = {name for names in KNOWN_BUGS.values() for name in names}
    mutants = [m for m in chosen(MUTANTS, asked.only, asked.since) if not asked.known or m.name in known]
    if not mutants:
        sys.exit("no mutant is meant by that; see --list")
    if asked.list:
        print("\n".join(f"{mutant.name}: {mutant.file}" for mutant in mutants))
        return
    path = ROOT / ".mutants.jsonl"
    if asked.afresh:
        path.unlink(missing_ok=True)
    hunt(mutants, Progress(path), asked.jobs)


def hunt(mutants: list[Mutant], progress: Progress, jobs: int) -> None:
    """Run them all and say which test killed each; exit with an error if one survived."""
    print("without any mutant: ", end="", flush=True)
    forget_killers_that_are_gone(mutants)
    check_baseline(mutants, progress)
    print("all tests pass", flush=True)
    left = []
    for mutant in mutants:
        if mutant.name in progress.killed:
            print(f"{mutant.name}: was killed by {progress.killed[mutant.name]}")
        else:
            left.append(mutant)
    survivors = []
    for number, (mutant, test) in enumerate(killers(left, jobs), 1):
        print(f"[{number}/{len(left)}] {mutant.name}: {f'killed by {test}' if test else 'SURVIVED'}", flush=True)
        if test is None:
            survivors.append(mutant.name)
        else:
            progress.note_killed(mutant, test)
            keep_killer(mutant, test)
    if survivors:
        sys.exit(f"{len(survivors)} of {len(mutants)} survived: {', '.join(survivors)}")
    print(f"all {len(mutants)} killed")


if __name__ == "__main__":
    main()
