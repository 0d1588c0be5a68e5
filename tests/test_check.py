from __future__ import annotations

import pytest
from examples import examples

from lettuceprevent.check import check_text


@pytest.mark.parametrize(("context", "answer", "wrong"), examples())
def test_examples_of_the_page(context: str, answer: str, wrong: str | None) -> None:
    unsupported = [v.text for v in check_text(context, answer) if v.status == "unsupported"]
    assert unsupported == ([wrong] if wrong else [])


def test_evidence_points_into_the_context() -> None:
    context = "Revenue was 2400 million in 2021."
    first, second = check_text(context, "It was 2.4 billion, up 12%.")
    assert (first.status, first.evidence) == ("supported", "2400 million")
    assert first.span is not None and context[slice(*first.span)] == "2400 million"
    assert (second.status, second.evidence, second.text) == ("unsupported", None, "12%")


def test_options() -> None:
    context = "Revenue was 2400 million in 2021 and 3100 million in 2022."
    rate = "It grew by 29.17%."
    assert check_text(context, rate)[0].status == "unsupported"
    assert check_text(context, rate, derived=True)[0].status == "supported"
    assert check_text("3,862 people", "over 3,800 people")[0].status == "unsupported"
    assert check_text("3,862 people", "over 3,800 people", rounding=True)[0].status == "supported"
    assert check_text("cost $50", "50%", units=False)[0].status == "supported"
    assert check_text("nothing", "thirty men", number_words=False) == []
    assert check_text("nothing", "1. One", exemptions=False)[0].status == "unsupported"


def test_the_query_supports_too() -> None:
    assert check_text("no number", "In 2014", query="What was in 2014?")[0].status == "supported"


def test_an_empty_context_raises() -> None:
    with pytest.raises(ValueError, match="context"):
        check_text("  ", "5")


@pytest.mark.parametrize(
    ("context", "answer", "evidence"),
    [
        ("18 people on 2021-03-05", "18 percent", "18"),
        ("18 people on 2021-03-05", "the 18th", "18"),
        ("18 people on 2021-03-05", "March 5, 2021", "2021-03-05"),
        ("open 10:0-22:0", "10 PM", "10:0-22:0"),
        ("18 people", "1. a list [1]", None),
    ],
)
def test_shared_endings_have_evidence(context: str, answer: str, evidence: str | None) -> None:
    assert check_text(context, answer)[0].evidence == evidence
