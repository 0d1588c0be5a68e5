from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lettuceprevent.surface import (
    clock_styles,
    decimal_forms,
    fraction_forms,
    number_of,
    readings,
    scaled_forms,
    value_of_words,
    word_forms,
)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("twelve", 12),
        ("two hundred and five", 205),
        ("two thousand four hundred", 2400),
        ("twenty fourteen", 2014),
        ("nineteen ninety nine", 1999),
        ("half a million", 500_000),
        ("quarter of a million", 250_000),
        ("two dozen", 24),
        ("twenty first", 21),
        ("nine eleven", None),
        ("one two", None),
    ],
)
def test_value_of_words(words: str, value: int | None) -> None:
    assert value_of_words(words) == value


def test_forms() -> None:
    assert decimal_forms(Fraction(2400)) == ["2400", "2,400"]
    assert decimal_forms(Fraction(9, 10)) == ["0.9", ".9"]
    assert decimal_forms(Fraction(1, 3)) == []
    assert fraction_forms(Fraction(47, 2)) == ["23½", "23 1/2"]
    assert {"2.4 billion", "2.4bn", "2,400 million", "2400 million"} <= set(
        scaled_forms(Fraction(24 * 10**8))
    )
    assert "twenty fourteen" in word_forms(Fraction(2014))
    assert clock_styles(9, 5) == ["9:5", "9:05", "09:05"]
    assert readings("1,57", decimal_comma=True) == [Fraction(157, 100)]
    assert readings("23 1/2") == [Fraction(47, 2)]
    assert number_of("2,400.5") == Fraction(4801, 2)
    assert number_of("24,00") is None


@given(st.integers(0, 10**12))
def test_words_state_the_value_they_are_made_from(number: int) -> None:
    for form in word_forms(Fraction(number)):
        assert value_of_words(form.replace("-", " ")) == number


@given(st.decimals(0, 10**9, places=3))
def test_decimal_forms_state_the_value_they_are_made_from(value: object) -> None:
    exact = Fraction(str(value))
    assert decimal_forms(exact)
    for form in decimal_forms(exact):
        assert number_of(form) == exact
