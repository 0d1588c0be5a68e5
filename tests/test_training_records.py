"""Made-up records: what is marked is what the fields do not support, and all of it."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import pytest

from lettuceprevent.training.record_words import AMBIENCE, AMENITIES, CITIES, MUSIC, PARKING
from lettuceprevent.training.records import record_examples

EXAMPLES = record_examples(120, 4, seed=3)


def fields(context: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(context) if context.startswith('{"') else ast.literal_eval(context)
    return found


def said(phrase: str, answer: str) -> list[tuple[int, int]]:
    return [found.span() for found in re.finditer(rf"(?<!\w){re.escape(phrase)}(?!\w)", answer)]


def inside(place: tuple[int, int], spans: tuple[tuple[int, int], ...]) -> bool:
    return any(start <= place[0] and place[1] <= end for start, end in spans)


def test_the_same_arguments_give_the_same_answers() -> None:
    assert record_examples(120, 4, seed=3) == EXAMPLES
    assert record_examples(20, 4, seed=3) == EXAMPLES[:80]  # a longer list begins like a shorter one
    assert record_examples(5, seed=4)[0].context != EXAMPLES[0].context
    assert record_examples(0) == [] and len({example.id for example in EXAMPLES}) == len(EXAMPLES)


@pytest.mark.parametrize(("count", "answers"), [(-1, 1), (1, 0)])
def test_counts_are_checked(count: int, answers: int) -> None:
    with pytest.raises(ValueError, match="expected count of records >= 0 and answers >= 1"):
        record_examples(count, answers)


def test_amenities_are_marked_where_the_field_does_not_say_them() -> None:
    checked = {True: 0, False: 0}
    for example in EXAMPLES:
        attributes = fields(example.context)["attributes"]
        parking, music = attributes.get("BusinessParking") or {}, attributes.get("Music") or {}
        claims = [(phrase, parking.get(key) is True) for key, words in PARKING.items() for phrase in words]
        claims += [(phrase, music.get(key) is True) for key, phrase in MUSIC.items()]
        claims += [
            (phrase, attributes.get(key) is True)
            for key, words in AMENITIES.items()
            for phrase in words.has
            if not phrase.startswith("provides ")  # which also begins a list
        ]
        claims += [
            (phrase, attributes.get(key) is False)
            for key, words in AMENITIES.items()
            for phrase in words.lacks
        ]
        claims += [(phrase, attributes.get("WiFi") == "free") for phrase in ("free WiFi", "free Wi-Fi")]
        for phrase, true in claims:
            for place in said(phrase, example.answer):
                assert inside(place, example.spans) != true, (phrase, example)
                checked[true] += 1
    assert min(checked.values()) > 50


def test_places_and_moods_are_marked_where_they_are_others() -> None:
    checked = {True: 0, False: 0}
    for example in EXAMPLES:
        record = fields(example.context)
        mood = record["attributes"].get("Ambience") or {}
        claims = [(f"{city}, {state}", city == record["city"]) for city, _, state in CITIES]
        for phrase, true in claims:
            for place in said(phrase, example.answer):
                assert inside(place, example.spans) != true, (phrase, example)
                checked[true] += 1
        for found in re.finditer(r"(?:described as|ambiance is|atmosphere that is) (\w+)", example.answer):
            assert found[1] in AMBIENCE
            assert inside(found.span(1), example.spans) != (mood.get(found[1]) is True), example
            checked[mood.get(found[1]) is True] += 1
    assert min(checked.values()) > 20


def test_ratings_and_days_are_marked_where_they_are_others() -> None:
    checked = {True: 0, False: 0}
    for example in EXAMPLES:
        record = fields(example.context)
        for found in re.finditer(r"rating of (\d\.\d)", example.answer):
            true = float(found[1]) == record["business_stars"]
            assert inside(found.span(1), example.spans) != true
            checked[true] += 1
        for found in re.finditer(r"closed on (\w+)s|open on (\w+)s", example.answer):
            known = record["hours"] or {}
            true = (found[1] or found[2]) not in known if found[1] else found[2] in known
            assert any(inside((at, at + 1), example.spans) for at in range(*found.span())) != true
            checked[true] += 1
        for found in re.finditer(
            r"On (\w+)s, it is open from ([\d:]+(?: [AP]M)?) to ([\d:]+(?: [AP]M)?)", example.answer
        ):
            minutes = [_minutes(found[2]), _minutes(found[3])]
            expected = [_minutes(each) for each in record["hours"][found[1]].split("-")]
            assert inside(found.span(2), example.spans) != (minutes == expected), example
            checked[minutes == expected] += 1
    assert min(checked.values()) > 20


def _minutes(clock: str) -> int:
    hour, minute = map(int, clock.split(" ")[0].split(":"))
    if clock.endswith("M"):
        hour = hour % 12 + 12 * clock.endswith("PM")
    return hour * 60 + minute


def test_some_answers_are_clean_and_some_are_not() -> None:
    wrong = [example for example in EXAMPLES if example.spans]
    assert 0.4 < len(wrong) / len(EXAMPLES) < 0.9
    share = sum(end - start for e in wrong for start, end in e.spans) / sum(len(e.answer) for e in EXAMPLES)
    assert 0.04 < share < 0.12
