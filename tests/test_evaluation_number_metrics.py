from __future__ import annotations

import pytest
from evaluation import make_line

from lettuceprevent.evaluation.number_metrics import (
    MissingContext,
    blocked_literals,
    context_numbers,
    counts,
    first_block,
    judged,
    substitutions,
)

CONTEXT = "Revenue was 2400 million in 2021 and 3100 million in 2022."


def checked(answer, **options):
    line = make_line("p", "plain", answer, context=CONTEXT, **options)
    return line, judged(line, context_numbers(line))


def test_counts():
    _, found = checked("1. It was 2.4 billion in 2021, up 29% or 700 million from seventeen million in 1999.")
    assert counts(found) == {"exempt": 1, "supported": 2, "derivable": 2, "unsupported": 1}
    assert counts(found, words=True) == {"unsupported": 1}
    _, found = checked("In 2030.", query="What will be in 2030?")
    assert counts(found) == {"supported": 1}


def test_an_empty_context_is_no_context():
    line = make_line("p", "plain", "In 2021.", context="  ")
    with pytest.raises(MissingContext, match="'p': expected a context to judge against"):
        context_numbers(line)


def test_an_answer_that_was_cut():
    line, _ = checked("It was 24")
    line["answer"]["cut"] = True
    assert counts(judged(line, context_numbers(line))) == {"unfinished": 1}


def pairs(plain, other):
    _, a = checked(plain)
    _, b = checked(other)
    return [(each.instead_of.text, each.said.text) for each in substitutions(plain, a, other, b)]


def test_substitutions_by_hand():
    assert pairs("Revenue fell in 2019.", "Revenue fell in 2021.") == [("2019", "2021")]
    assert pairs("2019 was bad.", "2021 was bad.") == [("2019", "2021")]
    assert pairs("Revenue fell in 2019.", "Revenue fell in 2018.") == []  # still unsupported
    assert pairs("Revenue fell in 2022.", "Revenue fell in 2021.") == []  # was supported
    assert pairs("Revenue fell in 2019.", "Revenue fell in the end.") == []
    assert pairs("It fell in 2019, then again in 2018.", "It fell in 2021, then again in 2022.") == [
        ("2019", "2021"),
        ("2018", "2022"),
    ]
    # another sentence that also has a number is no substitution
    assert pairs("The bridge was opened in 1932.", "Some say that revenue of 2400 million is a lot.") == []
    assert pairs("It was, in 2019, bad.", "It was, in 2019, bad. And 2021.") == []


def intervention(at, literal, **more):
    found = {"history_length": at, "literal": literal, "first_choice": True, "returned": True}
    return {**found, "run": 1, "step": at, "row": 0, "action": "blocked", **more}


def test_blocked_literals():
    line = make_line(
        "p",
        "avoid",
        "x",
        context=CONTEXT,
        interventions=[
            intervention(0, "2021"),
            intervention(1, "1999"),
            intervention(2, "700 million"),
            intervention(3, "-"),
            intervention(4, "1998", returned=False),
            intervention(5, "1997", first_choice=False),
            intervention(6, None),
        ],
    )
    assert blocked_literals(line, context_numbers(line)) == {
        "supported": 1,
        "unsupported": 1,
        "derivable": 1,
        "none": 1,
    }


@pytest.mark.parametrize(
    ("plain", "at", "wanted"),
    [
        ("It was in 1999 so.", 10, "unsupported"),
        ("It was in 1999 so.", 12, "unsupported"),
        ("It was in 1999 so.", 14, "unsupported"),  # what would have ended it
        ("It was in 2021 so.", 10, "supported"),
        ("It was in 2021 so.", 3, "none"),
        ("Up 700 million.", 3, "derivable"),
    ],
)
def test_the_first_block(plain, at, wanted):
    line, found = checked(plain)
    other = make_line("p", "avoid", "x", interventions=[intervention(at, "y"), intervention(at + 2, "z")])
    assert first_block(line, other, found) == wanted


def test_the_first_block_is_where_the_first_choice_fell():
    line, found = checked("It was in 1999 so.")
    beside = [intervention(3, None, first_choice=False), intervention(10, None, first_choice=False)]
    scored = make_line("p", "model", "x", interventions=beside)
    assert first_block(line, scored, found) is None  # the answers are the same
    scored = make_line("p", "model", "x", interventions=[*beside, intervention(12, None)])
    assert first_block(line, scored, found) == "unsupported"
    word = make_line("p", "model", "x", interventions=[*beside[:1], intervention(3, None)])
    assert first_block(line, word, found) == "none"


def test_the_first_block_is_the_first_in_time():
    line, found = checked("It was in 1999 so.")
    back = [intervention(12, "1999", action="retracted"), intervention(9, "20", step=13)]
    assert first_block(line, make_line("p", "retract", "x", interventions=back), found) == "unsupported"


def test_the_first_block_is_known_under_greedy_decoding_alone():
    line, found = checked("It was in 1999.")
    assert first_block(line, make_line("p", "avoid", "x"), found) is None
    beams = make_line("p", "avoid", "x", interventions=[intervention(10, "1")], decoding={"num_beams": 4})
    assert first_block(line, beams, found) is None
