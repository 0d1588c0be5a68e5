"""Omission by hand-worked examples: what goes from the context, what is marked, and when nothing is done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lettuceprevent.training.causal import omitted
from lettuceprevent.training.data import Example
from lettuceprevent.training.omission import without_support

CONTEXT = (
    "Anna Brown opened the harbour museum on Monday. Dr. Keller praised the roof. "
    "The garden was planted by volunteers from Oslo in 1998!\nTickets cost 12 dollars. Nobody came late."
)
PLANTED = "The garden was planted by volunteers from Oslo in 1998!"
OPENED = "Anna Brown opened the harbour museum on Monday."
EXAMPLE = Example("a", CONTEXT, "Summarise.", "Anna Brown opened the museum on Monday.")


def marked(example: Example) -> list[str]:
    return [example.answer[start:end] for start, end in example.spans]


def test_what_a_sentence_rests_on_is_left_out() -> None:
    found = without_support(EXAMPLE)
    assert found is not None
    assert found.context == CONTEXT.removeprefix(f"{OPENED} ")
    assert found.answer == EXAMPLE.answer and found.query == EXAMPLE.query
    assert marked(found) == ["Anna Brown opened the museum on Monday"]
    assert found.kinds == ("omission",) and found.id == "a+omission0"


def test_marked_is_what_was_lost_and_no_more() -> None:
    answer = "Perhaps volunteers planted the garden in 1998 together."
    found = without_support(replace(EXAMPLE, answer=answer))
    assert found is not None
    assert found.context == CONTEXT.replace(f"{PLANTED}\n", "\n")
    assert marked(found) == ["volunteers planted the garden in 1998"]


def test_no_other_supported_sentence_loses_a_word() -> None:
    # both rest on the same sentence of the context: none of them can be chosen
    answer = "Volunteers from Oslo planted the garden. The garden has volunteers from Oslo, planted in 1998."
    assert without_support(replace(EXAMPLE, answer=answer)) is None
    # here what is left out takes "garden" with it, which the other sentence has
    answer = "Volunteers from Oslo planted it in 1998. The garden is praised."
    assert without_support(replace(EXAMPLE, answer=answer)) is None
    # where that sentence is marked already, it may
    start = answer.index("The garden")
    found = without_support(replace(EXAMPLE, answer=answer, spans=((start, len(answer)),)))
    assert found is not None and marked(found) == ["Volunteers from Oslo planted it in 1998", answer[start:]]


@pytest.mark.parametrize(
    "changed",
    [
        {"context": OPENED},  # nothing would be left
        {"context": ""},
        {"answer": ""},
        {"answer": "It cost 12 dollars."},  # too few words to tell
        {"answer": "The famous sculptor travelled to Lisbon with Anna Brown."},  # the context never had it
        {"spans": ((5, 10),)},  # wrong already
        {"query": OPENED},  # the question says it
    ],
)
def test_nothing_is_left_out(changed: dict[str, object]) -> None:
    assert without_support(replace(EXAMPLE, **changed)) is None  # type: ignore[arg-type]


def test_same_seed_same_sentence() -> None:
    answer = "Anna Brown opened the museum on Monday. Volunteers from Oslo planted the garden in 1998."
    example = replace(EXAMPLE, answer=answer)
    found = [without_support(example, seed) for seed in range(20)]
    assert found == [without_support(example, seed) for seed in range(20)]
    assert {each.context for each in found if each} == {
        CONTEXT.removeprefix(f"{OPENED} "),
        CONTEXT.replace(f"{PLANTED}\n", "\n"),
    }


def test_a_share_of_the_answers() -> None:
    examples = [replace(EXAMPLE, id=str(number)) for number in range(40)]
    assert omitted(examples, 0.0, 0) == []
    assert omitted(examples, 1.0, 3) == [without_support(each, 3) for each in examples]
    assert 10 < len(omitted(examples, 0.5, 0)) < 30
