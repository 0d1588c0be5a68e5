"""The independent checker against the documented examples, and the finer points of the specification."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lettuceprevent.evaluation.numbers import ContextNumbers, canonical, check_answer, find_literals
from lettuceprevent.literals import _canonical as detector_shape

DOCS = Path(__file__).resolve().parents[1] / "docs" / "literals.md"
REFUSED = ("unsupported", "derivable", "rounded")


def examples() -> list[tuple[str, str, str]]:
    rows = []
    table = DOCS.read_text(encoding="utf-8").split("## Examples", 1)[1]
    for line in table.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and cells[0] not in ("context",) and not set(cells[0]) <= {"-"}:
            rows.append((cells[0].replace("\\n", "\n"), cells[1].replace("\\n", "\n"), cells[2]))
    return rows


@pytest.mark.parametrize(("context", "answer", "verdict"), examples())
def test_documented_example(context: str, answer: str, verdict: str) -> None:
    refused = [c.text for c in check_answer(answer, context) if c.status in REFUSED]
    assert refused == ([] if verdict == "supported" else [verdict.removeprefix("unsupported:").strip()])


def test_checker_and_detector_read_every_character_alike() -> None:
    meaning = set("0123456789-%.,:/+$€£¥₹\n")
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    read = [(char, detector_shape(char), canonical(char)) for char in characters]
    assert [each for each in read if meaning & {each[1], each[2]} and each[1] != each[2]] == []


def test_there_are_enough_examples() -> None:
    assert len(examples()) >= 60


def statuses(answer: str, context: str, **options: object) -> list[tuple[str, str]]:
    return [(c.text, c.status) for c in check_answer(answer, context, **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "literals"),
    [
        ("In 2021, 2022.", ["2021", "2022"]),
        ("a 10-day trip, mid-2014 and COVID-19", ["10", "2014", "COVID-19"]),
        ("10am-10pm", ["10am", "10pm"]),
        ("-5 (+3) x-7 a -2", ["-5", "+3", "x-7", "-2"]),
        ("5 million, 5 millions, 5m, 5ms", ["5 million", "5", "5m", "5ms"]),
        ("$2.4 billion dollars", ["$2.4 billion dollars"]),
        ("4th of April, 2015 and Sept. 5", ["4th of April, 2015", "Sept. 5"]),
        ("April 40, April 4,000, 5 may, 5 may 2015", ["April 40", "April 4,000", "5", "5 may 2015"]),
        ("2021-03-05T10:30", ["2021-03-05T10", "30"]),
        ("twenty-four, one hundred and five, five", ["twenty-four", "one hundred and five"]),
        ("call (555) 123-4567.", ["555) 123-4567"]),
        ("see https://a.b/c?d=1. Then", ["https://a.b/c?d=1"]),
        ("rated 4.5/5, 1 1/2 cups", ["4.5/5", "1 1/2"]),
        ("several hundred, a hundred", ["hundred"]),
        ("１２ ٣٤", ["１２", "٣٤"]),
        ("5% 6 % 7 percent", ["5%", "6 %", "7 percent"]),
    ],
)
def test_find_literals(text: str, literals: list[str]) -> None:
    assert [literal.text for literal in find_literals(text)] == literals
    assert all(text[lit.start : lit.end] == lit.text for lit in find_literals(text))


def test_options() -> None:
    assert statuses("50%", "cost $50", units=False) == [("50%", "supported")]
    assert statuses("thirty men", "12 men", number_words=False) == []
    assert statuses("about 1500", "exactly 1,499") == [("1500", "rounded")]
    assert statuses("about 1500", "exactly 1,499", rounding=True) == [("1500", "supported")]
    assert statuses("up 700 million", "from 2400 million to 3100 million") == [("700 million", "derivable")]
    assert statuses("up 29.2%", "from 2400 million to 3100 million") == [("29.2%", "derivable")]
    assert statuses("up 29.2%", "from 2400 million to 3100 million", derived=True) == [("29.2%", "supported")]
    assert statuses("1. A", "none", exempt=False) == [("1", "unsupported")]


def test_citations_count_passages() -> None:
    cited = statuses("so [1] and [2, 3]", "none", passages=3)
    assert cited == [("1", "exempt"), ("2", "exempt"), ("3", "exempt")]
    assert statuses("so [4]", "none", passages=3) == [("[4]", "unsupported")]


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("in 2021", "in 202"),
        ("3.1 billion", "now 3.1"),
        ("3.1 billion", "now 3.1 bil"),
        ("on April 19", "on April 1"),
        ("on April 19", "on 19 Ap"),
        ("at 18:30", "at 6:30 p"),
        ("COVID-19", "COVID-1"),
        ("none", "x\n1."),
        ("twenty-four men", "twenty"),
    ],
)
def test_a_cut_answer_may_end_in_a_beginning(context: str, answer: str) -> None:
    assert [c.status for c in check_answer(answer, context, cut=True)] == ["unfinished"]
    assert all(c.status in REFUSED for c in check_answer(answer, context))


def test_a_cut_does_not_excuse_a_wrong_literal() -> None:
    assert statuses("in 203", "in 2021", cut=True) == [("203", "unsupported")]


def test_what_starts_in_the_prompt_is_not_judged() -> None:
    assert statuses("99 men, 98 men", "none", prefix="19") == [("98", "unsupported")]


def test_a_context_is_parsed_once() -> None:
    numbers = ContextNumbers("In 2021 there were 12.")
    assert all(c.status == "supported" for c in check_answer("12 in 2021", numbers))
    assert [c.status for c in check_answer("13 in 2021", numbers)] == ["unsupported", "supported"]


def test_offsets_survive_other_scripts() -> None:
    text = "𝟚𝟘𝟚𝟙 und ²³ İ 5"
    assert [text[lit.start : lit.end] for lit in find_literals(text)] == ["𝟚𝟘𝟚𝟙", "²³", "5"]


@pytest.mark.parametrize(
    ("context", "answer", "status"),
    [
        ("2,500 people", "² ₁/₂ thousa", "unfinished"),
        ("500 people", "½", "unfinished"),
        ("at 10:20 pm", "10.", "unfinished"),
        ("1 disk", "1M", "unfinished"),
        ("1 disk", "1Mx", "unsupported"),
        ("call (731) 686-3309", "(731) 686-", "unfinished"),
        ("call (731) 686-3309", "686-", "unsupported"),
        ("500 people", "2½", "unsupported"),
    ],
)
def test_a_cut_literal_is_unfinished_only_if_it_may_become_supported(
    context: str, answer: str, status: str
) -> None:
    assert check_answer(answer, context, cut=True)[-1].status == status
