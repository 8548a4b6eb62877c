"""Every figure in the running text of docs/explanation/results.md about the paper's tables, from the same lines as the tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from reproduction.grid import cells, load_grid
from reproduction.results import Result
from reproduction.tables import Entry, Table, markdown_lines
from stored import lines

RESULTS = Path(__file__).parent.parent / "results"
SEARCHES = RESULTS / "tuning"
_MIDDLE = {"method.clip_norm": 1.0, "method.learning_rate": 1.0}
"""The point of the search that has another on each side; the others are edges."""


def quoted(tables: Sequence[Table], known: Mapping[str, Result]) -> dict[str, str]:
    """What reproduction/experiments/differences.md names in braces; "not run" where there is nothing to quote yet."""
    table_1 = [entry for table in tables if table.grid.name == "small" for entry in table.entries]
    entries = {(e.dataset, e.column, e.method, e.accountant): e for e in table_1}
    ali = entries.get(("mnist", "R_s = R_c/2", "ours:ali", "rdp-paper"))
    adap = entries.get(("mnist", "R_s = R_c/2", "adap_dpfl", "rdp"))
    edges, chosen = _at_the_edge()
    return {
        "reached": _reached(tables),
        "searched": _best("mnist", lambda point: "data.pixel_range" not in point),
        "bytes": _best("mnist", lambda point: point.get("data.pixel_range") == [0.0, 255.0]),
        "adap": _adap(adap) if adap and adap.accuracies else "not run",
        "ali": "not run" if ali is None or ali.mean is None else f"{ali.mean:.2f} % (n = {len(ali.by_seed)})",
        **{f"quiet_{clip_norm:g}": _without_noise(clip_norm) for clip_norm in (1.0, 10.0, 100.0)},
        "quiet_small_step": _best("mnist-without-noise", lambda point: point == _MIDDLE),
        "edges": f"{len(edges)} of {chosen}",
        "at_the_edge": "; ".join(f"{d}: {', '.join(m for _, m in ms)}" for d, ms in groupby(edges, key=lambda x: x[0])),
        "early_ends": _early_ends(known),
        "tight": "\n".join(_tight(table_1)),
    }


def _adap(entry: Entry) -> str:
    """Adap DP-FL seed by seed: accuracy, and the clients whose C left its floor (reproduction/experiments/clip_norms.py)."""
    floor = load_grid("small").tuned["mnist"]["adap_dpfl"]["method.options.smallest_clip_norm"]
    found = {line["seed"]: line for line in lines(RESULTS / "clip_norms.jsonl")}
    told = []
    for seed, accuracy in entry.by_seed.items():
        clients = sorted((one["records"], one["largest_clip_norm"]) for one in found[seed]["clients"])
        lifted = [f"{norm:.2f} with {records} records" for records, norm in clients if norm > floor]
        rounds = found[seed]["rounds"]
        told.append(f"seed {seed}: {accuracy:.2f} %, C within {rounds} rounds up to {', '.join(lifted) or floor}")
    return "; ".join(told)


def _reached(tables: Sequence[Table]) -> str:
    """Where ours is at the paper's figure or above, by the paper's accountant."""
    found = [
        (f"{e.dataset}, {e.column} ({t.grid.name})", e.method)
        for t in tables
        for e in t.entries
        if e.accountant == t.grid.accountants[0] and e.difference is not None and e.difference >= 0
    ]
    told = [f"{place}: {', '.join(m for _, m in group)}" for place, group in groupby(found, key=lambda x: x[0])]
    return "; ".join(told) or "nowhere"


def _best(search: str, wanted: Callable[[dict], bool]) -> str:
    found = [line["validation_accuracy"] for line in lines(SEARCHES / f"{search}.jsonl") if wanted(line["point"])]
    return f"{max(found):.2f}" if found else "not run"


def _without_noise(clip_norm: float) -> str:
    return _best("mnist-without-noise", lambda point: point["method.clip_norm"] == clip_norm)


def _at_the_edge() -> tuple[list[tuple[str, str]], int]:
    """(data set, method) whose search ended at an edge of the points tried, and how many searches there were."""
    tuned = load_grid("small").tuned
    all_chosen = [(dataset, method, point) for dataset, methods in tuned.items() for method, point in methods.items()]
    edges = [(d, m) for d, m, point in all_chosen if {key: point[key] for key in _MIDDLE} != _MIDDLE]
    return edges, len(all_chosen)


def _early_ends(known: Mapping[str, Result]) -> str:
    """After how many rounds the paper's rule has spent R_c where R_s = R_c, by data set; seed 0."""
    listed = cells(load_grid("small"), columns=["R_s = R_c"], methods=["ali_dpfl"], accountants=["rdp-paper"])
    found = {cell.dataset: known[cell.key].rounds for cell in listed if cell.key in known}
    return ", ".join(f"{rounds} rounds ({dataset})" for dataset, rounds in found.items()) or "not run"


def _tight(entries: Iterable[Entry]) -> list[str]:
    """Ours minus the paper's where steps are scarcest, by either accountant, over the methods that have both."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for entry in entries:
        if entry.column == "R_s = 2 R_c" and entry.difference is not None:
            found.setdefault(entry.dataset, {}).setdefault(entry.accountant, {})[entry.method] = entry.difference
    rows = []
    for dataset, by in found.items():
        both = by.get("rdp-paper", {}).keys() & by.get("pld", {}).keys()
        if both:
            rows.append([dataset, *(_range(by[name][method] for method in both) for name in ("rdp-paper", "pld"))])
    return markdown_lines(["R_s = 2 R_c", "ours - paper's, by the paper's accountant", "by `pld`"], rows)


def _range(changes: Iterable[float]) -> str:
    listed = list(changes)
    return f"{min(listed):+.2f} to {max(listed):+.2f}"
