"""Mutants that make a damaged file leak records, run code or release twice; `tests/mutants.py` runs them."""

FOUND, PICKLE = "tests/fuzz/test_found.py", "tests/faults/test_no_pickle.py"
TOLD = "tests/faults/test_nothing_private_is_told.py"

FAULT_MUTANTS = (
    (
        "faults: a damaged .npz file's error quotes its records",
        "src/alidpfl/data/own.py",
        'else f"{type(error).__name__}, damaged?"',
        "else str(error)",
        f"{FOUND} {TOLD}",
    ),
    (
        "faults: objects in .npz files are unpickled",
        "src/alidpfl/data/own.py",
        "np.load(file, allow_pickle=False)",
        "np.load(file, allow_pickle=True)",
        PICKLE,
    ),
    (
        "faults: objects in a cache are unpickled",
        "src/alidpfl/data/files.py",
        "np.load(file, allow_pickle=False)",
        "np.load(file, allow_pickle=True)",
        PICKLE,
    ),
    (
        "faults: a head may count from the end",
        "src/alidpfl/vault/chain.py",
        "if type(counter) is not int or counter < 0:",
        "if type(counter) is not int:",
        FOUND,
    ),
    (
        "faults: what training says of records is told",
        "src/alidpfl/vault/rounds.py",
        '_LOG.error("training failed with %s", type(error).__name__)',
        '_LOG.error("training failed with %s", error)',
        TOLD,
    ),
)
