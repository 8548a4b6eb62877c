"""Bugs in noise on a grid, and in the independence of a record's gradient. `tests/mutants.py` runs them."""

GRID, ONE_BY_ONE, PADDING = (f"src/alidpfl/dpsgd/{name}.py" for name in ("grid_noise", "one_by_one", "padding"))
SAMPLER_TESTS, GRID_TESTS, PADDING_TESTS = (
    f"tests/dpsgd/test_{name}.py" for name in ("rounded_gaussian", "grid", "padding")
)
RUN_TESTS, ROUND_TESTS = "tests/runs/test_grid_noise.py", "tests/vault/test_rounds.py"

GRID_MUTANTS = (
    (
        "grid: 64 bits decide where they cannot tell",
        GRID,
        "for place in np.flatnonzero(unclear):",
        "for place in np.flatnonzero(unclear[:0]):",
        SAMPLER_TESTS,
    ),
    (
        "grid: tails are cut off at the table's end",
        GRID,
        "found[place] = _resolved(int(words[place]), random)",
        "found[place] = min(_resolved(int(words[place]), random), len(table) - 1)",
        SAMPLER_TESTS,
    ),
    (
        "grid: densities in place of probabilities",
        GRID,
        "u, v, w = square / 6, square**2 / 120, square**3 / 5040",
        "u, v, w = square * 0, square * 0, square * 0",
        SAMPLER_TESTS,
    ),
    (
        "grid: zero is counted twice, once for each sign",
        GRID,
        "total += 2 * probability if k else probability",
        "total += 2 * probability",
        SAMPLER_TESTS,
    ),
    (
        "grid: all noise has one sign",
        GRID,
        "1 - 2 * bits, out=part)",
        "1 - 0 * bits, out=part)",
        SAMPLER_TESTS,
    ),
    (
        "grid: nearest whole numbers, however long",
        GRID,
        "if float(whole @ whole) <= self.largest_square:",
        "if float(whole @ whole) <= 1.01 * self.largest_square:",
        GRID_TESTS,
    ),
    (
        "grid: the bound is rounded up",
        GRID,
        "return int((DEVIATION / Fraction(self.noise_multiplier)) ** 2)",
        "return int((DEVIATION / Fraction(self.noise_multiplier)) ** 2) + 300",
        GRID_TESTS,
    ),
    (
        "grid: gradients are not rounded",
        GRID,
        "for rounding in (torch.round, torch.trunc):",
        "for rounding in (torch.clone, torch.clone):",
        GRID_TESTS,
    ),
    (
        "grid: no noise on an empty batch",
        GRID,
        "noised = total + rounded_gaussian(size, random)",
        "noised = total + (rounded_gaussian(size, random) if bool(total.any()) else 0)",
        GRID_TESTS,
    ),
    (
        "grid: a sample's dropout depends on who else was drawn",
        ONE_BY_ONE,
        "torch.default_generator.manual_seed((seed + place) % _SEEDS)",
        "pass",
        GRID_TESTS,
    ),
    (
        "grid: clients draw floating-point noise all the same",
        "src/alidpfl/federation/client.py",
        '    if noise == "grid":\n        return OneByOneClipper',
        '    if noise == "grit":\n        return OneByOneClipper',
        RUN_TESTS,
    ),
    (
        "grid: statistics keep floating-point noise",
        "src/alidpfl/runs/features.py",
        "noise_multiplier=privacy.statistics_noise, noise=privacy.noise)",
        "noise_multiplier=privacy.statistics_noise)",
        RUN_TESTS,
    ),
    (
        "grid: a vault does not heed its owner",
        "src/alidpfl/vault/training.py",
        "seed=policy.seed, noise=policy.noise)",
        "seed=policy.seed)",
        ROUND_TESTS,
    ),
    (
        "a record's chance a little above the rate",
        "src/alidpfl/dpsgd/step.py",
        "chance = math.floor(sample_rate * 2.0**53) * 2.0**-53",
        "chance = sample_rate",
        "tests/dpsgd/test_randomness.py",
    ),
    (
        "padding: batches keep their size",
        PADDING,
        '_MULTIPLE = 32 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 16',
        "_MULTIPLE = 1",
        PADDING_TESTS,
    ),
    (
        "padding: the padding of a batch is added too",
        "src/alidpfl/dpsgd/clipping.py",
        "        factors[used:] = 0\n",
        "",
        "tests/dpsgd/test_clipping.py",
    ),
    (
        "padding: a deferred layer adds the padding of the batch",
        "src/alidpfl/dpsgd/clipping.py",
        "late.clipped_sum(pad_rows(squared[:used], size, math.inf), limit)",
        "late.clipped_sum(squared, limit)",
        "tests/dpsgd/test_clipping.py",
    ),
    (
        "grid: a model may remember the records before",
        "src/alidpfl/dpsgd/one_by_one.py",
        "if not torch.equal(found[0].nan_to_num(), found[-1].nan_to_num()):",
        "if False:",
        "tests/dpsgd/test_grid.py",
    ),
    (
        "precision: autocast reaches private steps",
        "src/alidpfl/dpsgd/guards.py",
        "with torch.autocast(device.type, enabled=False):\n            yield",
        "if True:\n            yield",
        "tests/dpsgd/test_precision.py",
    ),
    (
        "precision: products take the process's own",
        "src/alidpfl/dpsgd/guards.py",
        '            switch.fp32_precision = "ieee"\n',
        "            pass\n",
        "tests/dpsgd/test_precision.py",
    ),
    (
        "a model is tried at its first weights only",
        "src/alidpfl/dpsgd/model_check.py",
        "if number != 1:",
        "if number != 9:",
        "tests/dpsgd/test_model_check.py",
    ),
)
