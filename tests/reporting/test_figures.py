import math
import re
import sys
import xml.etree.ElementTree as ET

import pytest

from alidpfl.errors import ConfigError, DataError
from alidpfl.reporting import RunSnapshot
from alidpfl.reporting.figures import run_figure, save
from alidpfl.reporting.snapshot import NOT_COVERED
from tests.reporting.runs import SUMMARY, make_run

pytest.importorskip("matplotlib")


def save_figure(snapshots, path):
    save(lambda: run_figure(snapshots), path)


@pytest.fixture
def snapshots(tmp_path):
    return [RunSnapshot.load(make_run(tmp_path / name)) for name in ("one", "two")]


def test_three_panels_with_a_line_for_each_run(snapshots):
    accuracy, steps, epsilon = run_figure(snapshots).axes
    assert [axes.get_ylabel() for axes in (accuracy, steps, epsilon)] == [
        "test accuracy (%)",
        "local steps τ",
        "ε spent",
    ]
    assert epsilon.get_xlabel() == "round"
    assert [len(axes.get_lines()) for axes in (accuracy, steps, epsilon)] == [2, 2, 2]
    line = accuracy.get_lines()[0]
    assert list(line.get_xdata()) == [1, 3, 5]  # where it was evaluated, counted from 1
    assert list(line.get_ydata()) == [60.0, 62.0, 64.0]
    assert list(steps.get_lines()[1].get_ydata()) == [2, 3, 4, 2, 3]
    assert [text.get_text() for text in accuracy.get_legend().get_texts()] == ["one", "two"]


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("b.SVG", b"<?xml")])
def test_the_extension_chooses_the_format(snapshots, tmp_path, name, start):
    save_figure(snapshots, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_the_same_runs_give_the_same_bytes(snapshots, tmp_path, name):
    contents = set()
    for _ in range(2):
        save_figure(snapshots, tmp_path / name)
        contents.add((tmp_path / name).read_bytes())
    assert len(contents) == 1


def test_an_svg_is_well_formed(snapshots, tmp_path):
    save_figure(snapshots[:1], tmp_path / "a.svg")
    assert ET.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")  # noqa: S314


@pytest.mark.parametrize("name", ["a.pdf", "a", "a.png.txt"])
def test_another_extension_is_refused(snapshots, tmp_path, name):
    with pytest.raises(ConfigError, match=re.escape(name)):
        save_figure(snapshots, tmp_path / name)


def test_a_folder_that_does_not_exist_is_named(snapshots, tmp_path):
    with pytest.raises(DataError, match=r"nowhere/a\.svg"):
        save_figure(snapshots, tmp_path / "nowhere" / "a.svg")


def test_names_that_matplotlib_would_misread(tmp_path):
    names = ["_hidden", "costs $1 and $x_{$", "un-noised"]
    snapshots = [RunSnapshot.load(make_run(tmp_path / name, covers_everything=name != "un-noised")) for name in names]
    save_figure(snapshots, tmp_path / "a.svg")
    texts = [text.get_text() for text in run_figure(snapshots).axes[0].get_legend().get_texts()]
    assert texts == [" _hidden", r"costs \$1 and \$x_{\$", f"un-noised ({NOT_COVERED})"]


def test_runs_without_rounds_or_finite_numbers(tmp_path):
    paths = [
        make_run(tmp_path / "empty", rounds=0),
        make_run(tmp_path / "one", rounds=1),
        make_run(tmp_path / "lost", accuracy=math.nan, epsilon=math.inf),
    ]
    save_figure([RunSnapshot.load(path) for path in paths], tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_extra_is_named(snapshots, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"\[report\]"):
        save_figure(snapshots, tmp_path / "a.svg")


def test_the_global_state_of_matplotlib_is_left_alone(snapshots, tmp_path):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    save_figure(snapshots, tmp_path / "a.png")
    assert dict(mpl.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_a_run_on_classes_has_a_panel_of_calibration(tmp_path, snapshots):
    curve = [{"predicted": p, "observed": p / 2, "low": 0.0, "high": p, "count": 9} for p in (0.75, 0.25)]
    calibrated = RunSnapshot.load(make_run(tmp_path / "run", summary={**SUMMARY, "calibration": curve}))
    panel = run_figure([*snapshots, calibrated]).axes[-1]
    assert panel.get_xlabel() == "predicted probability"
    runs = [container.lines[0] for container in panel.containers]
    assert [list(line.get_xdata()) for line in runs] == [[], [], [0.25, 0.75]]
    assert list(runs[2].get_ydata()) == [0.125, 0.375]
    ends = [segment[:, 1].tolist() for segment in panel.containers[2].lines[2][0].get_segments()]
    assert ends == [[0.0, 0.25], [0.0, 0.75]]
    save_figure([calibrated], tmp_path / "a.svg")
