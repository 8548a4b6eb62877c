"""Break the code on purpose, one bug at a time; each must turn a test red. Usage: `python -m tests.mutation --help`.

First the tests run without a mutant. A surviving mutant fails the run: a check that we rely on cannot fail. Results are
kept in .mutants.jsonl while code and tests stay the same, so a stopped run continues. The test that killed a mutant
last is kept in killers.json and tried first.
"""

import argparse
import sys

from tests.mutation.catalogue import ROOT, Mutant, load_mutants
from tests.mutation.runner import (
    Progress,
    check_baseline,
    choose,
    find_killers,
    forget_missing_killers,
    keep_killers,
    known_killers,
)


def main() -> None:
    """Parse the options and run the chosen mutants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="mutants with this in their name or file")
    parser.add_argument("--known", action="store_true", help="bugs that have broken private systems before")
    parser.add_argument("--since", metavar="COMMIT", help="mutants with files or tests that changed since then")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--afresh", action="store_true", help="forget earlier results")
    parser.add_argument("--list", action="store_true", help="list them, and do nothing")
    options = parser.parse_args()
    mutants = choose(load_mutants(), options.only, options.since)
    mutants = [mutant for mutant in mutants if not options.known or mutant.known_bug]
    if not mutants:
        sys.exit("no mutant matches; see --list")
    if options.list:
        print("\n".join(f"{mutant.name}: {mutant.file}" for mutant in mutants))
        return
    path = ROOT / ".mutants.jsonl"
    if options.afresh:
        path.unlink(missing_ok=True)
    hunt(mutants, Progress(path), options.jobs)


def hunt(mutants: list[Mutant], progress: Progress, jobs: int) -> None:
    """Run the mutants and print the test that killed each; exit with an error if one survived."""
    print("without a mutant: ", end="", flush=True)
    forget_missing_killers(mutants)
    check_baseline(mutants, progress)
    print("all tests pass", flush=True)
    left = [mutant for mutant in mutants if mutant.name not in progress.killed]
    survivors = []
    for number, (mutant, test) in enumerate(find_killers(left, jobs), 1):
        print(f"[{number}/{len(left)}] {mutant.name}: {f'killed by {test}' if test else 'SURVIVED'}", flush=True)
        if test is None:
            survivors.append(mutant.name)
        else:
            progress.note_killed(mutant, test)
            keep_killers({**known_killers(), mutant.name: test})
    if survivors:
        sys.exit(f"{len(survivors)} of {len(mutants)} survived: {', '.join(survivors)}")
    print(f"all {len(mutants)} killed")


if __name__ == "__main__":
    main()
