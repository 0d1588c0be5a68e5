from __future__ import annotations

import pytest

from lettuceprevent.grounding import Grounding, as_groundings


def test_one_string_is_shared():
    assert as_groundings("a context", rows=4) == [Grounding(("a context",))]


def test_list_is_passages_for_one_row():
    assert as_groundings(["a", "b"]) == [Grounding(("a", "b"))]
    assert as_groundings(["a", "b"], rows=1)[0].text == "a\n\nb"


def test_list_is_rows_where_the_length_fits():
    assert [g.text for g in as_groundings(["a", "b"], rows=2)] == ["a", "b"]
    assert [g.text for g in as_groundings([["a", "b"], "c"], rows=2)] == ["a\n\nb", "c"]
    assert [g.text for g in as_groundings([["a", "b"], ["c"]])] == ["a\n\nb", "c"]


@pytest.mark.parametrize(("value", "rows"), [(["a", "b"], 3), ([["a"], ["b"]], 3)])
def test_other_lengths_raise(value, rows):
    with pytest.raises(ValueError, match="expected"):
        as_groundings(value, rows=rows)


@pytest.mark.parametrize("value", ["", "  \n", [], ["", " "], [["a"], [""]]])
def test_empty_context_raises(value):
    with pytest.raises(ValueError, match="expected"):
        as_groundings(value)


@pytest.mark.parametrize("value", [None, 7, b"bytes", [["a"], 3]])
def test_wrong_types_raise(value):
    with pytest.raises(TypeError, match="expected"):
        as_groundings(value)


def test_query_shared_or_per_row():
    assert [g.query for g in as_groundings(["a", "b"], "q", rows=2)] == ["q", "q"]
    assert [g.query for g in as_groundings("a", ["q", "r"], rows=2)] == ["q", "r"]
    with pytest.raises(ValueError, match="expected"):
        as_groundings(["a", "b"], ["q", "r", "s"], rows=2)


def test_key_depends_on_content_only():
    assert Grounding(("a", "b")).key == Grounding(("a", "b")).key
    assert Grounding(("a", "b")).key != Grounding(("a\n\nb",)).key
    assert Grounding(("a",), "q").key != Grounding(("a",)).key
