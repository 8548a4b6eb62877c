"""Bugs of the tables: a figure that nobody measured, or what ε does not cover unmarked; tests/mutants.py runs them."""

GRIDS, RUNS, SECTIONS, SHARED = (
    f"tests/reproduction/test_{name}.py" for name in ("grids", "reproduce", "experiments", "shared_rounds")
)
CODE = "src/alidpfl/reproduction"

REPRODUCTION_MUTANTS = (
    (
        "reproduction: what a run says of its own coverage is not asked",
        f"{CODE}/tables.py",
        "covered=place not in leaky and all(result.covers_everything for result in runs),",
        "covered=place not in leaky,",
        SECTIONS,
    ),
    (
        "reproduction: every result is covered",
        f"{CODE}/run.py",
        "covers_everything=outcome.covers_everything,",
        "covers_everything=True,",
        RUNS,
    ),
    (
        "reproduction: the best round's accuracy is taken",
        f"{CODE}/run.py",
        "        accuracy=outcome.accuracy,",
        "        accuracy=max(record.accuracy for record in records if record.accuracy is not None),",
        RUNS,
    ),
    (
        "reproduction: a line with the key of another run is taken",
        f"{CODE}/results.py",
        "if not result.key == key == key_of(result.settings):",
        "if False:",
        RUNS,
    ),
    (
        "reproduction: a result beyond its ε is taken",
        f"{CODE}/results.py",
        'if result.epsilon > result.settings.get("privacy.epsilon", math.inf):',
        "if False:",
        RUNS,
    ),
    (
        "reproduction: a run under other settings is gone on with",
        f"{CODE}/run.py",
        "if are_same_run(config, parse_config(RunDirectory.open(directory).config())):",
        "if True:",
        RUNS,
    ),
    (
        "reproduction: another grid takes the paper's figures by its name",
        f"{CODE}/grid.py",
        "if content != _text(path.stem):",
        "if False:",
        f"{GRIDS}::test_no_other_grid_can_take_the_name_of_one_that_ships",
    ),
    (
        "reproduction: fixed τ are drawn by whichever accountant",
        f"{CODE}/report.py",
        "and e.accountant == table.grid.accountants[0]\n                and e.method",
        "and e.accountant == table.grid.accountants[-1]\n                and e.method",
        SECTIONS,
    ),
    (
        "reproduction: that a cell has one seed is not told",
        f"{CODE}/report.py",
        "if single := sum(len(entry.accuracies) == 1 for entry in run):",
        "if single := 0:",
        SECTIONS,
    ),
    (
        "reproduction: the best fixed τ of a comparison is that of its luckiest seed",
        "reproduction/experiments/adaptivity.py",
        "key=lambda name: _mean(runs[name])",
        "key=lambda name: max(result.accuracy for result in runs[name].values())",
        SECTIONS,
    ),
    (
        "reproduction: the best fixed τ of a comparison has seeds of its own",
        "reproduction/experiments/adaptivity.py",
        "key=lambda name: _mean(runs[name])",
        "key=lambda name: _mean(methods[name])",
        SECTIONS,
    ),
    (
        "reproduction: pairs with the same τ are counted as wins",
        "reproduction/experiments/adaptivity.py",
        "if one.local_steps == other.local_steps:",
        "if False:",
        SECTIONS,
    ),
    (
        "reproduction: seeds of one split are one pair",
        "reproduction/experiments/adaptivity.py",
        'told_by = ("data.name", "data.partition", "data.dirichlet_beta", "run.seed")',
        'told_by = ("data.name", "data.partition", "data.dirichlet_beta")',
        SECTIONS,
    ),
    (
        "reproduction: the search looks at the test set",
        f"{CODE}/grids/tuning.toml",
        '"run.evaluate_on" = "validation"',
        '"run.evaluate_on" = "test"',
        f"{GRIDS}::test_the_search_never_sees_the_test_set_nor_a_seed_of_the_tables",
    ),
    (
        "reproduction: a recipe beyond its ε is shown",
        f"{CODE}/report.py",
        'is_private = run["covers_everything"] is True and numbers["epsilon"] <= numbers["epsilon_allowed"]',
        "is_private = True",
        SECTIONS,
    ),
    (
        "reproduction: the best fixed τ is that with the luckiest seeds",
        f"{CODE}/report.py",
        "fixed[steps].mean_over(paired)",
        "fixed[steps].mean",
        SECTIONS,
    ),
    (
        "reproduction: rounds are shared between seeds",
        f"{CODE}/shared_rounds.py",
        '        "seed": config.run.seed,\n',
        "",
        SHARED,
    ),
)
