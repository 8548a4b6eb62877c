"""Bugs between a configuration and its clients, most of them found by a review of the tests; see `tests/mutants.py`."""

REACHES, KILLS = "tests/runs/test_what_reaches_clients.py", "tests/runs/test_kill_and_resume.py"
EXECUTE, CLIENT = "tests/runs/test_execute.py", "tests/federation/test_client.py"
NODES, ROUNDS = "tests/flower/test_run.py", "tests/vault/test_rounds.py"
RUNS, ENGINES, VAULT = (f"src/alidpfl/{name}" for name in ("runs", "engines", "vault"))

RUN_MUTANTS = (
    (
        "runs: own files are pooled and dealt out by label",
        "src/alidpfl/data/partition.py",
        'if split != "natural" and dataset.natural_clients is not None and not dataset.is_synthetic:',
        "if False:",
        REACHES,
    ),
    (
        "runs: clip norm and randomness may change while a run goes on",
        f"{RUNS}/execute.py",
        '_FREE_TO_CHANGE = ("run.processes", "run.device")',
        '_FREE_TO_CHANGE = ("run.processes", "run.device", "method.clip_norm", "run.randomness")',
        REACHES,
    ),
    (
        "runs: other labels are not noticed",
        f"{RUNS}/build.py",
        "found = hashlib.sha256(data.targets.numpy().tobytes())",
        "found = hashlib.sha256()",
        REACHES,
    ),
    (
        "runs: a round more may be released again",
        f"{RUNS}/execute.py",
        '.get("round", 0) + 1:',
        '.get("round", 0) + 2:',
        KILLS,
    ),
    (
        "runs: a rehearsal trains on records",
        f"{ENGINES}/runner.py",
        "made_up = ClientData(inputs=inputs, targets=targets, rows=rows)",
        "made_up = shared.client(plan.client)",
        EXECUTE,
    ),
    (
        "runs: the trial of a model takes the records",
        "src/alidpfl/federation/client.py",
        "rows=data.rows[:0])",
        "rows=data.rows)",
        CLIENT,
    ),
    (
        "runs: one vault with secure noise speaks for all",
        "src/alidpfl/flower/run.py",
        '"seeded" if any(SEEDED_NOISE',
        '"seeded" if all(SEEDED_NOISE',
        NODES,
    ),
    (
        "flower: steps that a vault left out count as run",
        "src/alidpfl/vault/messages.py",
        "steps=None if answer.steps == plan.steps else answer.steps",
        "steps=None",
        NODES,
    ),
    (
        "flower: answers of any size are read",
        "src/alidpfl/flower/engine.py",
        "if len(answer) > most:",
        "if False:",
        NODES,
    ),
    (
        "flower: the folder of keys is open to all",
        "src/alidpfl/flower/demo/certificates.py",
        "folder.mkdir(mode=0o700,",
        "folder.mkdir(mode=0o755,",
        "tests/flower/test_flower_command.py",
    ),
    (
        "vault: raw signals are sent unasked",
        f"{VAULT}/messages.py",
        "**_signals(update, request.signals),",
        '**_signals(update, ("secants", "gradient_norm", "raw")),',
        ROUNDS,
    ),
    (
        "vault: the ledger takes any reservation",
        f"{VAULT}/ledger.py",
        "if not 1 <= reservation.units <= affordable:",
        "if False:",
        ROUNDS,
    ),
    (
        "vault: what is reserved is not booked",
        f"{VAULT}/ledger.py",
        "        self.account.book(reservation.units, reservation.sample_rate, reservation.noise_multiplier)\n",
        "",
        "tests/fuzz/test_vault_requests.py",
    ),
)
