"""Fill the generated parts of the documentation: `make docs`.

A generated part of a page stands between two comments:

    <!-- generated: NAME -->
    ...
    <!-- end -->

`python -m docs.generate` fills all of them. It also writes the pages that are generated as a whole: the settings, and
the results (`reproduction/pages`).
`python -m docs.generate --record` first runs the commands of the first tutorial again, which takes minutes, and stores
what they print in docs/recorded.json. It also trains for the table of docs/how-to/own-data.md.
`python -m docs.generate --record-test LOG` stores the result lines of a log of `make test` there.
"""

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "docs" / "recorded.json"
SETTINGS = ROOT / "docs" / "reference" / "configuration.md"
_BLOCK = re.compile(r"^(<!-- generated: (\S+) -->\n).*?^(<!-- end -->)$", re.MULTILINE | re.DOTALL)
_TEST_RESULT = re.compile(r"All checks passed!|Success: no issues found.*|Contracts: .*|.*\d+ passed.*")
_METRICS = {"auc": "AUC", "r2": "R²"}
_BOTH_RUNS = 120  # columns of a terminal that shows two runs side by side
_RECORDS_IN_ALL, _RUNS = (150, 600, 1200, 9000), 4
_DATASETS = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}


def pages() -> list[Path]:
    """Return every page that may have generated parts."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    r"""Return the text of a page with all of its generated parts filled.

    >>> print(filled("<!-- generated: sum -->\nold\n<!-- end -->", {"sum": lambda: str(1 + 1)}))
    <!-- generated: sum -->
    2
    <!-- end -->
    """

    def replacement(found: re.Match[str]) -> str:
        start, name, end = found.groups()
        if name not in blocks:
            raise KeyError(f"no generated part is named {name!r}; docs/generate.py has {', '.join(sorted(blocks))}")
        return f"{start}{blocks[name]().strip()}\n{end}"

    return _BLOCK.sub(replacement, text)


def generated() -> dict[Path, str]:
    """Return what each page with generated content should contain."""
    from docs.settings_reference import reference
    from reproduction.pages import pages as pages_of_results

    texts = {page: page.read_text(encoding="utf-8") for page in pages()}
    contents = {page: filled(text, BLOCKS) for page, text in texts.items() if _BLOCK.search(text)}
    return {**contents, **pages_of_results(), SETTINGS: reference()}


def recorded() -> dict[str, Any]:
    """Return what the commands of the first tutorial printed when they were last recorded."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def record() -> None:
    """Run the commands of the first tutorial, train with few and many records, and store what comes out."""
    from alidpfl.runs import Config

    with tempfile.TemporaryDirectory() as folder:
        first = _alidpfl(folder, "run")
        run = next((Path(folder) / "runs").iterdir())
        outcome = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        run.rename(run.with_name("first"))
        _alidpfl(folder, "run", "--set", "method.policy=ratio", "--out", "runs/second")
        compared = _alidpfl(folder, "compare", "runs/first", "runs/second", columns=_BOTH_RUNS)
        strict = ("--set", "privacy.epsilon=0.5", "--set", "method.policy=ratio", "--out", "runs/strict")
        strict_run = _alidpfl(folder, "run", *strict)
        open_ = ("--set", "privacy.epsilon=1000000", "--set", "method.policy=ratio", "--out", "runs/open")
        open_run = _alidpfl(folder, "run", *open_)
        planned = ("--plan", "auto", "--max-epochs", "8", "--set", "method.policy=ratio", "--out", "runs/planned")
        planned_run = _alidpfl(folder, "run", *planned)
    kept = {key: value for key, value in outcome.items() if key not in ("out", "seconds", "client_epsilon")}
    result = re.sub(r"(?<=-)\d[\d-]*$", "...", first[-1])
    lines = {
        "run": [*(line for line in first if line.startswith(("the privacy budget", "round "))), result],
        "compare": compared[: next(at for at, line in enumerate(compared) if line.startswith("└")) + 1],
        "strict": [strict_run[-1]],
        "open": [open_run[-1]],
        "planned": [*(line for line in planned_run if line.startswith("plan:")), planned_run[-1]],
    }
    enough = [_accuracy_with(count) for count in _RECORDS_IN_ALL]
    _store({"config": Config().to_dict(), "outcome": kept, "printed": {**_printed(), **lines}, "enough": enough})


def _accuracy_with(count: int) -> dict[str, float]:
    """Train a linear model for three clients with so many records in all. Return the accuracy, a mean of some runs."""
    import torch

    import alidpfl
    from alidpfl.planner import PlanRequest, choose_setting

    def made_up(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(size, 20, generator=torch.Generator().manual_seed(seed))
        return inputs, inputs[:, :3].argmax(1)

    model, found = torch.nn.Linear(20, 3), []
    request = PlanRequest(epsilon=2.0, delta=1e-5, clients=3, samples=count, max_rounds=50, num_params=63)
    setting, _ = choose_setting(request, request.max_rounds)
    for seed in range(_RUNS):
        torch.manual_seed(seed)
        model.reset_parameters()
        clients = [made_up(count // 3, 10 * seed + client) for client in range(3)]
        privacy = alidpfl.Privacy(
            epsilon=2.0, delta=1e-5, sample_rate=setting.sample_rate, noise_multiplier=setting.noise_multiplier
        )
        settings = {"max_rounds": 50, "learning_rate": 1, "policy": "ratio", "schedule": "late_decay", "seed": seed}
        test = made_up(4000, 10 * seed + 3)
        with alidpfl.federate(model, clients, test=test, privacy=privacy, processes=1, **settings) as federation:
            _ = list(federation)
            found.append(federation.evaluate().accuracy)
    return {"records": count, "signal_to_noise": setting.signal_to_noise, "accuracy": sum(found) / len(found)}


def record_test(log: Path) -> None:
    """Store the result lines of a log of `make test`."""
    lines = [line.strip("= ") for line in log.read_text(encoding="utf-8").splitlines()]
    results = list(dict.fromkeys(line for line in lines if _TEST_RESULT.fullmatch(line)))
    _store({**recorded(), "printed": {**_printed(), "test": results}})


def _printed() -> dict[str, list[str]]:
    return recorded()["printed"] if RECORDED.exists() else {}


def _store(record: dict[str, Any]) -> None:
    RECORDED.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _alidpfl(folder: str | Path, *words: str, columns: int = 100) -> list[str]:
    """Run a command on a terminal of this width; return its lines, those on standard error first."""
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "alidpfl", *words],
        cwd=folder,
        env={**os.environ, "COLUMNS": str(columns)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.rstrip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]


def _fenced(lines: list[str], language: str = "text") -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def _first_run() -> str:
    printed = recorded()["printed"]
    *rounds, result = printed["run"]
    run = [*rounds[:2], "...", rounds[-1], "...", result]  # left out: rounds, then a table of the settings and curves
    return _fenced(["$ make run", *run, "$ make test", *printed.get("test", [])], "console")


def _recorded_lines(name: str) -> Callable[[], str]:
    return lambda: _fenced(recorded()["printed"][name])


def _result_line() -> str:
    return _fenced(recorded()["printed"]["run"][-1:])


def _headline() -> dict[str, tuple[float, float]]:
    """Return the paper's accuracy and ours, the mean of six seeds at ε = 2 in 158 rounds, for each data set."""
    lines = (ROOT / "reproduction" / "results" / "best.jsonl").read_text(encoding="utf-8").splitlines()
    found = [line for line in map(json.loads, lines) if (line["table"], line["ratio"]) == ("small", "1/2")]
    pairs = {}
    for dataset in _DATASETS:
        runs = [line for line in found if line["dataset"] == dataset]
        if sorted(line["seed"] for line in runs) != list(range(6)):
            raise ValueError(f"best.jsonl must have seeds 0 to 5 of {dataset}")
        if not all(line["epsilon"] <= 2.0 and line["covers_everything"] for line in runs):  # noqa: PLR2004
            raise ValueError(f"best.jsonl has runs of {dataset} beyond ε = 2")
        pairs[dataset] = (runs[0]["paper"], sum(line["accuracy"] for line in runs) / len(runs))
    return pairs


def _recipes() -> str:
    rows = [f"| {_DATASETS[name]} | {paper:.2f} % | {ours:.2f} % |" for name, (paper, ours) in _headline().items()]
    return "\n".join(["| | paper's ALI-DPFL | recipe |", "| --- | --- | --- |", *rows])


def _paper() -> str:
    """Return the sentence on the paper's figures: MNIST at ε = 2, in the column R_s = R_c/2 of Table I."""
    from reproduction.grid import load_grid
    from reproduction.results import read_results
    from reproduction.tables import table_so_far

    known = {result.key: result for result in read_results(ROOT / "reproduction" / "results" / "small.jsonl")}
    (entry,) = (
        entry
        for entry in table_so_far(load_grid("small"), known).entries
        if (entry.dataset, entry.column, entry.accountant, entry.method)
        == ("mnist", "R_s = R_c/2", "rdp-paper", "ali_dpfl")
    )
    paper, ours = _headline()["mnist"]
    told = (
        f"At ε = 2, our [recipe](docs/how-to/recipes.md) for MNIST (a softmax on fixed features) has {ours:.2f} % "
        f"accuracy. We chose its settings by the results of earlier runs, and ε does not cover that choice. At the "
        f"same ε, the paper reports {paper:.2f} % with its own network. We ran its method with that network and got "
        f"{entry.mean:.2f} %. [All results](docs/explanation/results.md)."
    )
    return textwrap.fill(told, 120, break_on_hyphens=False)


def _more_noise() -> str:
    """Return the sentences that compare the noise of the planned run with that of the first run."""
    record = recorded()
    (plan,) = (line for line in record["printed"]["planned"] if line.startswith("plan:"))
    rate, noise = (float(re.search(rf"{symbol} = ([\d.]+)", plan)[1]) for symbol in "qσ")  # type: ignore[index]
    before, less_noise = record["config"]["privacy"]["sample_rate"], record["outcome"]["noise_multiplier"]
    return (
        f"In the second run of section 4, q was {before:g} and σ was {less_noise:.2f}. Batches are now "
        f"{rate / before:g} times as large, but σ is\nonly {noise / less_noise:.1f} times as large. "
        "So each record has a smaller share of noise, at the same ε."
    )


def _certainty() -> str:
    """Return how sure an observer can be that a record was used, after it seemed 50 % likely, for some ε."""
    values = (0.1, 0.5, 1, 2, 4, 8)
    shares = [1 / (1 + math.exp(-epsilon)) for epsilon in values]
    rows = (
        ["ε", *map(str, values)],
        ["---"] * (len(values) + 1),
        ["at most", *(f"{100 * share:.{2 if share > 0.99 else 0}f} %" for share in shares)],  # noqa: PLR2004
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _enough() -> str:
    """Return the accuracy by the number of records in all."""
    found = recorded()["enough"]
    rows = (
        ["records in all", *(f"{one['records']:,}" for one in found)],
        ["---"] * (len(found) + 1),
        ["signal-to-noise by the planner", *(f"{one['signal_to_noise']:.0f}" for one in found)],
        [f"accuracy, mean of {_RUNS} runs", *(f"{one['accuracy']:.0f} %" for one in found)],
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _accounting() -> str:
    return _fenced(_alidpfl(ROOT, "account"))


def _batch_and_noise() -> str:
    from alidpfl.privacy import PrivacyBudget, noise_multiplier_for

    steps, rows = 158, []
    for rate in (0.015, 0.06, 0.25, 1.0):
        noise = noise_multiplier_for(PrivacyBudget(epsilon=2.0, delta=1e-5), sample_rate=rate, steps=steps)
        rows.append(f"| {rate:g} | {noise:.4g} | {noise / rate:.3g} | {rate * steps:.3g} |")
    return "\n".join(["| q | σ (pld) | σ/q | epochs q·T |", "| --- | --- | --- | --- |", *rows])


def _persons() -> str:
    """Return ε of a person with several records, where one record has ε = 2 at δ = 1e-5, by Gaussian DP."""
    from scipy.optimize import brentq

    from alidpfl.privacy import PrivacyBudget
    from alidpfl.privacy.gaussian_dp import gaussian_delta, gaussian_parameter

    delta, counts = 1e-5, (1, 2, 5, 30)
    one = gaussian_parameter(PrivacyBudget(epsilon=2.0, delta=delta))
    found = [brentq(lambda epsilon, mu=count * one: gaussian_delta(mu, epsilon) - delta, 0, 600) for count in counts]
    rows = (
        ["records of the person", *map(str, counts)],
        ["---"] * (len(counts) + 1),
        ["ε of the person", *(f"{epsilon:.1f}" for epsilon in found)],
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _hostile(split: str) -> Callable[[], str]:
    def block() -> str:
        from reproduction.experiments import hostile

        return f"{hostile.table(split)}\n\n{hostile.reached(split)}"

    return block


def _calibration() -> str:
    """Return predicted and observed shares of `flchain` by clip norm, in tenths of the predicted probability."""
    from benchmarks.clinical import CALIBRATION

    curves = json.loads(CALIBRATION.read_text(encoding="utf-8"))
    heads = [f"C = {curve['clip_norm']:.3g}" for curve in curves]
    rows = [["predicted, observed at", *heads], ["---"] * (len(curves) + 1)]
    for tenth in range(10):
        found = [[part for part in curve["curve"] if int(10 * part["predicted"]) == tenth] for curve in curves]
        cells = [", ".join(f"{part['predicted']:.2f}, {part['observed']:.2f}" for part in parts) for parts in found]
        rows.append([f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}", *cells])
    for key in ("log_loss", "calibration", "auc"):
        rows.append([key.replace("_", " "), *(f"{curve['metrics'][key]:.3f}" for curve in curves)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _clinical() -> str:
    """Return the mean and the worst results on the clinical tables, by table."""
    from benchmarks.clinical import RESULTS, TABLES, differences

    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = [["question", "metric", "private", "pooled", "largest gap to pooled"], ["---"] * 5]
    for schema, (_, metric, what) in TABLES.items():
        found = [row for row in results if row["table"] == schema]
        means = (f"{sum(row[side][metric] for row in found) / len(found):.3f}" for side in ("private", "pooled"))
        rows.append([what, _METRICS[metric], *means, f"{max(0.0, -min(differences(found))):.3f}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "accounting": _accounting,
    "batch-and-noise": _batch_and_noise,
    "calibration": _calibration,
    "certainty": _certainty,
    "clinical": _clinical,
    "compare": _recorded_lines("compare"),
    "enough": _enough,
    "first-run": _first_run,
    "first-run-lines": _recorded_lines("run"),
    "hostile-iid": _hostile("iid"),
    "hostile-recipe": _hostile("recipe"),
    "more-noise": _more_noise,
    "open": _recorded_lines("open"),
    "paper": _paper,
    "persons": _persons,
    "planned": _recorded_lines("planned"),
    "recipes": _recipes,
    "result-line": _result_line,
    "strict": _recorded_lines("strict"),
}
"""What fills each generated part, by its name."""


def main(words: list[str]) -> None:
    """Fill all generated parts, after recording if that is asked for."""
    if words[:1] == ["--record"]:
        record()
    elif words[:1] == ["--record-test"]:
        record_test(Path(words[1]))
    for page, content in generated().items():
        if not page.exists() or page.read_text(encoding="utf-8") != content:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(content, encoding="utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
