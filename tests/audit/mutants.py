"""Bugs of the audit's own statistics, and bugs of the engine that the audit must find; see `tests/mutants.py`."""

BOUNDS_TESTS = "tests/audit/test_bounds.py"
STEP_TESTS, RUN_TESTS = "tests/audit/test_one_step.py", "tests/audit/test_one_run.py"
NOISE_TESTS = "tests/audit/test_noise.py"
BOUNDS, STEP, RUN, NOISE = (f"src/alidpfl/audit/{name}.py" for name in ("bounds", "one_step", "one_run", "noise"))
REAL_STEP = f"{STEP_TESTS}::test_the_real_step_is_not_refuted_and_the_canary_is_strong"

AUDIT_MUTANTS = (
    (
        "audit: plain frequencies in place of Clopper and Pearson's bound",
        BOUNDS,
        "float(betainccinv(count + 1, total - count, error))",
        "max(count, 1) / total",
        BOUNDS_TESTS,
    ),
    (
        "audit: the whole error for either arm",
        BOUNDS,
        "error = (1 - confidence) / 2",
        "error = 1 - confidence",
        BOUNDS_TESTS,
    ),
    (
        "audit: false alarms alone count",
        BOUNDS,
        "for count in (false_positives, false_negatives)]\n    return max(0.0, -sum",
        "for count in (false_positives, false_positives)]\n    return max(0.0, -sum",
        BOUNDS_TESTS,
    ),
    (
        "audit: δ costs nothing",
        BOUNDS,
        ".max()) * canaries * delta)",
        ".max()) * 0.0)",
        BOUNDS_TESTS,
    ),
    (
        "audit: the unsafe end of the search for ε",
        BOUNDS,
        "        low, high = (middle, high) if is_refuted(middle) else (low, middle)\n    return low",
        "        low, high = (middle, high) if is_refuted(middle) else (low, middle)\n    return high + 1e-3",
        BOUNDS_TESTS,
    ),
    (
        "audit: the arms change places",
        STEP,
        "return tuple(observed[False]), tuple(observed[True])",
        "return tuple(observed[True]), tuple(observed[False])",
        REAL_STEP,
    ),
    (
        "audit: what a group shows is said of one record",
        STEP,
        "draws, confidence) / arms.copies",
        "draws, confidence)",
        REAL_STEP,
    ),
    (
        "audit: the noise has no part in the verdict",
        STEP,
        "self.lower_bound > self.claimed or self.noise.problem is not None",
        "self.lower_bound > self.claimed",
        NOISE_TESTS,
    ),
    (
        "audit: every weight has the whole error to itself",
        NOISE,
        "error / max(1, read)",
        "error",
        NOISE_TESTS,
    ),
    (
        "audit: as much likeness is allowed for many products as for one",
        NOISE,
        "terms = min(self._releases, _COMPARED) * torch.arange(size - 1, 0, -1, dtype=torch.float64)",
        "terms = torch.ones(size - 1, dtype=torch.float64)",
        NOISE_TESTS,
    ),
    (
        "audit: a release that is no number is passed over",
        NOISE,
        "if self.not_finite:",
        "if False:",
        NOISE_TESTS,
    ),
    (
        "audit: what lies under the noise of an update is taken for nothing",
        "src/alidpfl/audit/arms.py",
        "unnoised={False: without},",
        "unnoised={False: torch.zeros_like(without)},",
        NOISE_TESTS,
    ),
    (
        "audit: only every other release is looked at",
        "src/alidpfl/audit/arms.py",
        "({} if gradients.is_random else {True: -shift})",
        "{}",
        NOISE_TESTS,
    ),
    (
        "audit: both signs of a sum have the whole error",
        NOISE,
        "exponent = math.log(2 / error)",
        "exponent = math.log(1 / error)",
        NOISE_TESTS,
    ),
    (
        "audit: coarse weights are read all the same",
        NOISE,
        "self._is_read = coarse <= _READABLE * scale",
        "self._is_read = coarse >= 0",
        NOISE_TESTS,
    ),
    (
        "audit: the best attempt is picked for nothing",
        RUN,
        "each = 1 - (1 - confidence) / len(made)",
        "each = confidence",
        f"{RUN_TESTS}::test_the_best_of_several_attempts_pays_for_the_choice",
    ),
    (
        "audit: lowest scores guessed to be in",
        RUN,
        "scores.argsort(descending=True)",
        "scores.argsort()",
        f"{RUN_TESTS}::test_the_highest_scores_are_guessed_in_and_the_lowest_out",
    ),
    (
        "audit: canaries that are out leave a gap in the number of records",
        RUN,
        "clients=[torch.cat([torch.arange(own), rows])]",
        "clients=[torch.cat([torch.arange(own), rows[is_in]])]",
        f"{RUN_TESTS}::test_a_client_has_as_many_records_whatever_the_coins",
    ),
    (
        "audited: a fifth less noise",
        "src/alidpfl/dpsgd/randomness.py",
        "        return out[:count]",
        "        return 0.8 * out[:count]",
        f"{STEP_TESTS}::test_the_real_step_is_not_refuted_by_as_many_draws_as_find_a_fifth_less_noise",
    ),
    (
        "audited: nothing is clipped",
        "src/alidpfl/dpsgd/gradient_forms.py",
        "factors = (limit / norms).clamp_max(1)",
        "factors = torch.ones_like(norms)",
        REAL_STEP,
    ),
    (
        "audited: an update is noised for half of what it can move by",
        "src/alidpfl/federation/client.py",
        "add_noise(released, 2 * plan.clip_norm",
        "add_noise(released, plan.clip_norm",
        f"{REAL_STEP}[update]",
    ),
    (
        "audited: only the first step of a round has noise",
        "src/alidpfl/federation/client.py",
        "            gradient = self._step(data, plan, learning_rate, divisor, random)\n",
        "            gradient = self._step(data, plan, learning_rate, divisor, random)\n"
        '            plan = __import__("dataclasses").replace(plan, noise_multiplier=0.01)\n',
        REAL_STEP,
    ),
)
