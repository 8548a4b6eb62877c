import io
import math
from textwrap import dedent

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from alidpfl.reporting import Series, plot, supports_unicode

DIAGONAL = [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]


def draw(*points, labels="abcdefghij", **options):
    series = [Series(label=label, points=one) for label, one in zip(labels, points, strict=False)]
    return plot(series, **{"title": "title", "width": 4, "height": 4, **options})


def text(block):
    return dedent(block).strip("\n")


def test_a_diagonal_in_ascii():
    assert draw(DIAGONAL, unicode=False) == text("""
        title
        3 |   *
          |  *
          | *
        0 |*
          +----
           0  3 round
    """)


def test_a_diagonal_in_braille():
    # Two columns and four rows of dots in a character: a straight line of slope 2.
    assert draw([(0, 0.0), (1, 1.0)], width=2, height=2) == text("""
        title
        1 ┤ ⡜
        0 ┤⡜
          └──
           0 1 round
    """)


def test_several_series_have_marks_of_their_own():
    assert draw(DIAGONAL, [(x, 3 - y) for x, y in DIAGONAL]) == text("""
        title
        3 ┤▲  ●
          │ ▲●
          │ ●▲
        0 ┤●  ▲
          └────
           0  3 round
        ● a
        ▲ b
    """)


@pytest.mark.parametrize("gap", [None, math.nan, math.inf, -math.inf])
def test_a_gap_is_left_empty_and_does_not_stretch_the_axis(gap):
    assert draw([(0, 0.0), (1, 0.0), (2, gap), (3, 3.0)], unicode=False) == text("""
        title
        3 |   *
          |
          |
        0 |**
          +----
           0  3 round
    """)


def test_a_flat_line_runs_through_the_middle():
    assert draw([(0, 2.0), (3, 2.0)], height=3, unicode=False) == text("""
        title
        3 |
          |****
        1 |
          +----
           0  3 round
    """)


def test_labels_have_the_digits_that_tell_them_apart():
    assert "98.012 |" in draw([(0, 98.012), (1, 98.013)], unicode=False)
    assert draw([(10, -1.5), (250, 100.0)], width=8, unicode=False).splitlines()[-1] == "      10   250 round"


def test_a_thousand_rounds_are_not_written_as_powers_of_ten():
    assert draw([(0, 0.0), (1580, 12345.0)], width=12, unicode=False).splitlines()[-1] == "       0       1580 round"
    assert "12345 |" in draw([(0, 0.0), (1580, 12345.0)], unicode=False)
    assert "1e+30 |" in draw([(0, 0.0), (1, 1e30)], unicode=False)


def test_lines_on_one_another_take_turns():
    assert "0 |*+*+\n" in draw([(0, 0.0), (3, 0.0)], [(0, 0.0), (3, 0.0)], [(0, 9.0)], unicode=False)


def test_nothing_to_plot_is_said():
    for points in ([], [(0, None), (1, math.nan)]):
        assert draw(points) == "title\n(nothing to plot yet)"
    assert plot([], title="title") == "title\n(nothing to plot yet)"


@example([[(0.0, -1.2e308)]], 1, 1, False)  # half as much again is beyond all floats
@given(
    st.lists(st.lists(st.tuples(st.floats(-1e6, 1e6), st.none() | st.floats()), max_size=5), min_size=1, max_size=10),
    st.integers(1, 20),
    st.integers(1, 6),
    st.booleans(),
)
def test_any_numbers_stay_within_the_frame(points, width, height, unicode):
    drawn = draw(*points, width=width, height=height, unicode=unicode)
    lines = drawn.splitlines()
    if lines[1] == "(nothing to plot yet)":
        return
    margin = lines[height + 1].index("└" if unicode else "+") + 1
    assert all(len(line) <= margin + width for line in lines[1 : height + 1])
    assert unicode or drawn.isascii()


def test_streams_that_cannot_show_braille_are_noticed():
    assert supports_unicode(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    for encoding in ("ascii", "latin-1", "cp437"):
        assert not supports_unicode(io.TextIOWrapper(io.BytesIO(), encoding=encoding))
