"""The searches for settings, and the test of the planner's measure."""

from typing import Any

from alidpfl.planner import PlanRequest
from alidpfl.planner.optimise import signal_to_noise
from alidpfl.privacy import PrivacyBudget, noise_multiplier_bound
from reproduction.grid import cells
from reproduction.pages.sources import Sources
from reproduction.tables import as_markdown, markdown_lines, table_so_far


def blocks(sources: Sources) -> dict[str, str]:
    """Return the generated parts of the page about searches."""
    every = list(cells(sources.search))
    table = table_so_far(sources.search, sources.known)
    best = {line["point"]["method.schedule"]: line["validation_accuracy"] for line in reversed(_mnist(sources))}
    return {
        "search": "" if table is None else as_markdown(table).partition("\n")[2].strip(),
        "search_done": f"{sum(cell.key in sources.known for cell in every)} of {len(every)}",
        "searches": "\n".join(_search(sources, name) for name in sources.names("tuning")),
        "decay_on_mnist": f"{best['late_decay']:.2f} % instead of {best['constant']:.2f} %",
        "planner_fashion": _planner(sources, "fashion-mnist", samples=54_000, num_params=7_850),
        "planner_strokes": _planner(sources, "strokes", samples=57_000, num_params=26_010, max_rounds=50),
    }


def _mnist(sources: Sources) -> list[dict[str, Any]]:
    """Return the points at C = 1 and η = 1 of the search on MNIST, best first."""
    keys = {"method.schedule", "method.clip_norm", "method.learning_rate"}
    found = [line for line in sources.lines("tuning/mnist") if line["point"].keys() == keys]
    found = [x for x in found if (x["point"]["method.clip_norm"], x["point"]["method.learning_rate"]) == (1.0, 1.0)]
    return sorted(found, key=lambda line: -float(line["validation_accuracy"]))


def _search(sources: Sources, name: str) -> str:
    found = sorted(sources.lines(f"tuning/{name}"), key=lambda line: -float(line["validation_accuracy"]))
    rows = [
        [
            f"{line['validation_accuracy']:.2f} %",
            str(line["steps"]),
            ", ".join(f"{key} = {value}" for key, value in line["point"].items()),
        ]
        for line in found
    ]
    return "\n".join([f"### {name}\n", *markdown_lines(["validation accuracy", "steps", "settings"], rows), ""])


def _planner(sources: Sources, name: str, *, samples: int, num_params: int, max_rounds: int = 0) -> str:
    """Return a table of signal-to-noise and accuracy, each point at its best step size."""
    best: dict[tuple[int, int, float], dict[str, Any]] = {}
    for line in sources.lines(f"planner/{name}"):
        point = line["point"]
        rounds = point.get("federation.max_rounds", max_rounds)
        key = (rounds, point["privacy.max_steps"], point["privacy.sample_rate"])
        if key not in best or line["validation_accuracy"] > best[key]["validation_accuracy"]:
            best[key] = line
    budget = PrivacyBudget(epsilon=2.0, delta=1e-5)
    rows = []
    for (rounds, steps, rate), line in sorted(best.items(), key=lambda item: item[0][:2]):
        request = PlanRequest(
            epsilon=2.0, delta=1e-5, clients=10, samples=samples, max_rounds=rounds, num_params=num_params
        )
        ratio = signal_to_noise(request, rate, noise_multiplier_bound(budget, rate, steps), steps)
        numbers = [str(rounds), f"{steps // rounds}", f"{rate:.4g}", f"{rate * steps:.3g}", f"{ratio:.1f}"]
        rows.append([*numbers, str(line["point"]["method.learning_rate"]), f"{line['validation_accuracy']:.2f} %"])
    return "\n".join(markdown_lines(["rounds", "τ", "q", "epochs", "signal-to-noise", "η", "accuracy"], rows))
