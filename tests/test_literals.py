from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lettuceprevent.literals import canonical, lex_state, scan


def found(text: str) -> list[str]:
    return [text[literal.start : literal.end] for literal in scan(text) if not literal.words]


@pytest.mark.parametrize(
    ("text", "literals"),
    [
        ("Revenue was 2400 million in 2021, 2,400 units.", ["2400 million", "2021", "2,400"]),
        ("a 10-day trip, 5 millionaires, mid-2021", ["10", "5", "2021"]),
        ("COVID-19, A320s, H1N1, 3D and MP3", ["COVID-19", "A320s", "H1N1", "3D", "MP3"]),
        (
            "$2.4 billion dollars, US$5, -5.13% and .9 percent",
            ["$2.4 billion dollars", "$5", "-5.13%", ".9 percent"],
        ),
        ("On April 4, 2021, and 5 March; 5 may have died", ["April 4, 2021", "5 March", "5"]),
        ("from 10 AM to 8:30 p.m. or 22:0", ["10 AM", "8:30 p.m.", "22:0"]),
        ("April 19, 1 man; 2021, 2022", ["April 19", "1", "2021", "2022"]),
        ("23½ and 23 1/2", ["23½", "23 1/2"]),
        ("call (555) 123-4567 or 192.168.1.1", ["555) 123-4567", "192.168.1.1"]),
        ("see www.a.com/2021/x. now 5", ["www.a.com/2021/x.", "5"]),
        ("won 5-1, 10–15, the 2021-22 season, 24/7", ["5-1", "10–15", "2021-22", "24/7"]),
        ("sources [1] and [2, 3]", ["[1]", "[2, 3]"]),
        ("₂₀₁₄ ٢٠١٥ １２", ["₂₀₁₄", "٢٠١٥", "１２"]),
        ("5pm-7pm and the 1990s", ["5pm", "7pm", "1990s"]),
        ("word-5 but 5-word", ["word-5", "5"]),
    ],
)
def test_literals_of_a_text(text: str, literals: list[str]) -> None:
    assert found(text) == literals


def test_list_markers_only_at_the_start_of_a_line() -> None:
    assert [x.marker for x in scan("1. A 2. B\n2) C\n- 3. D\n4.5")] == [True, False, True, True, False]


def test_number_words() -> None:
    words = [x.text for x in scan("twenty-one hundred and five, half a million, tennis, ten, one") if x.words]
    assert words == ["twenty-one hundred and five", "half a million", "ten", "one"]


@given(st.text(max_size=60))
def test_canonical_keeps_offsets_and_is_idempotent(text: str) -> None:
    once = canonical(text)
    assert len(once) == len(text)
    assert canonical(once) == once


@given(st.text(alphabet="0159 .,:/-$%abmntho\n()[]½–", max_size=40))
def test_scan_covers_every_digit_once(text: str) -> None:
    chars = canonical(text)
    covered = [False] * len(text)
    last = 0
    for literal in scan(text):
        assert last <= literal.start < literal.end
        last = literal.end
        covered[literal.start : literal.end] = [True] * (literal.end - literal.start)
    assert all(c for c, char in zip(covered, chars, strict=True) if char.isdigit())


@pytest.mark.parametrize(
    "shape", ["0000 million", "april 0, 0000", "0:00 p.m.", "~-0", "two hundred and five"]
)
def test_every_beginning_of_a_lexeme_is_alive(shape: str) -> None:
    for end in range(1, len(shape) + 1):
        assert lex_state(shape[:end]) is not None
    state = lex_state(shape)
    assert state is not None and state.accepts
