"""Synthetic errors: one thing of a supported sentence changed, with its exact place and kind.

Contract: a function of (example, kind, seed) and nothing else. A change lies outside the spans that are labelled
already, those after it move along, and the words put in are not in context, query or answer (negation aside), so
that what is marked is unsupported as far as words tell. List markers and citations are no numbers, and a verb that
is negated already is not negated again. For training only, never for test data.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace

from .data import Example, Span, digest

KINDS = ("number", "date", "unit", "name", "negation", "role", "place")

_MONTHS = (
    "January February March April May June July August September October November December".split()
)  # "May" and "March" count only beside a day or a year
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_UNITS = (
    ("percent", "million", "billion", "thousand"),
    ("kilometers", "miles", "meters", "feet"),
    ("kilograms", "pounds", "tons", "grams"),
    ("seconds", "minutes", "hours", "days", "weeks", "months", "years"),
    ("dollars", "euros", "pounds", "yen"),
)
_ROLES = (
    ("president", "minister", "senator", "governor", "mayor", "ambassador"),
    ("father", "mother", "brother", "sister", "son", "daughter", "uncle", "cousin"),
    ("doctor", "nurse", "lawyer", "teacher", "engineer", "journalist"),
    ("officer", "sergeant", "detective", "soldier", "firefighter"),
    ("coach", "captain", "goalkeeper", "manager", "striker"),
)
_PLACES = "Vienna Oslo Lisbon Nairobi Toronto Denver Melbourne Warsaw Osaka Lima Cairo Seattle Dublin".split()
_FIRST = "Martin Helen Victor Laura Stefan Diana Oscar Irene Philip Nora".split()
_LAST = "Keller Whitfield Okafor Lindgren Barrow Santoro Novak Pruitt Hale Mercer".split()
_NEGATED = "is was are were has had will can could would should".split()

_MONTH = "|".join(_MONTHS)
_NUMBER = re.compile(r"(?<![\w.,:/$€£-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w:/%-]|[.,]\d)")
_DATE = re.compile(
    rf"\b(?P<month>{_MONTH})(?= \d)|(?<=\d )(?P<after>{_MONTH})\b|\b(?P<day>{'|'.join(_DAYS)})\b"
)
_NAME = re.compile(r"(?<![.!?] )(?<!^)\b[A-Z][a-z]+ [A-Z][a-z]+\b(?! [A-Z])")
_PLACE = re.compile(r"(?<=\b(?:in|at|to) )[A-Z][a-z]{2,}\b(?! [A-Z\d])")
_BULLETS = r"[\s>*#•_+-]*"
# what negates a verb beside it, with at most a word between ("has also never")
_NEGATION = (
    r"not|no|never|none|nobody|nothing|nowhere|neither|nor|hardly|barely|scarcely|rarely|seldom|n['’]t"
)
_AUXILIARY = re.compile(
    r"(?i:(?<!\bnot\s)(?<!\bnever\s)(?<!\bnor\s)(?<!\bneither\s))"
    rf"\b(?:{'|'.join(_NEGATED)})\b(?!['’-])(?!(?i:(?:\s+\w+)?\s+(?:{_NEGATION})\b))"
)


def corrupt(example: Example, kind: str, seed: int = 0) -> Example | None:
    """The example with one change of `kind` in its answer, or None where there is nothing to change.

    The new span is in `spans`, `kinds` is (kind,), the id has kind and seed appended.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    rng = random.Random(digest(f"{seed}\0{kind}\0{example.id}"))
    known = set(re.findall(r"\w+", f"{example.context} {example.query} {example.answer}".casefold()))
    changes = [
        (span, options)
        for span, options in _FINDERS[kind](example.answer, known)
        if options and not any(start < span[1] and span[0] < end for start, end in example.spans)
    ]
    if not changes:
        return None
    (start, end), options = rng.choice(changes)
    new = rng.choice(options)
    shift = len(new) - (end - start)
    moved = [(a, b) if b <= start else (a + shift, b + shift) for a, b in example.spans]
    return replace(
        example,
        id=f"{example.id}+{kind}{seed}",
        answer=example.answer[:start] + new + example.answer[end:],
        spans=tuple(sorted([*moved, (start, start + len(new))])),
        kinds=(kind,),
    )


def corruptions(example: Example, seed: int = 0) -> list[Example]:
    """One corrupted example for every kind that applies."""
    made = (corrupt(example, kind, seed) for kind in KINDS)
    return [each for each in made if each is not None]


_Found = list[tuple[Span, list[str]]]


def _numbers(answer: str, known: set[str]) -> _Found:
    found = []
    for match in _NUMBER.finditer(answer):
        text = match.group()
        if re.search(rf"(?:{_MONTH}) $", answer[: match.start()]):
            continue  # a day or a year
        if _is_marker(answer, *match.span()):
            continue
        at = next(at for at, mark in enumerate(text) if mark.isdigit())
        new = [text[:at] + digit + text[at + 1 :] for digit in "123456789" if digit != text[at]]
        found.append((match.span(), [each for each in new if not known.issuperset(re.findall(r"\w+", each))]))
    return found


def _is_marker(answer: str, start: int, end: int) -> bool:
    """Whether the number at [start, end) numbers a place in a list, or cites a passage: `1. `, `2)`, `(3)`, `[4]`.

    In doubt it does: a sentence may be a number alone.
    """
    if not re.fullmatch(r"\d{1,2}", answer[start:end]):
        return False
    before, after = answer[:start].rpartition("\n")[2], answer[end:]
    if (before[-1:], after[:1]) in (("(", ")"), ("[", "]")):
        return True
    if after.startswith(")"):
        return before.count("(") <= before.count(")")
    first = re.fullmatch(_BULLETS, before) or re.search(r"[.:;!?]\s+$", before)
    return bool(first and re.match(r"\.\)?[*_]*[^\S\n]+\S", after))


def _dates(answer: str, known: set[str]) -> _Found:
    return [
        (match.span(), _fresh(_DAYS if match.group("day") else _MONTHS, known))
        for match in _DATE.finditer(answer)
    ]


def _names(answer: str, known: set[str]) -> _Found:
    new = [f"{first} {last}" for first in _fresh(_FIRST, known) for last in _fresh(_LAST, known)]
    return [
        (match.span(), new) for match in _NAME.finditer(answer) if not {*match.group().split()} & _CALENDAR
    ]


def _places(answer: str, known: set[str]) -> _Found:
    new = _fresh(_PLACES, known)
    return [(match.span(), new) for match in _PLACE.finditer(answer) if match.group() not in _CALENDAR]


def _negations(answer: str, known: set[str]) -> _Found:
    return [(match.span(), [f"{match.group()} not"]) for match in _AUXILIARY.finditer(answer)]


def _words(groups: tuple[tuple[str, ...], ...], before: str) -> Callable[[str, set[str]], _Found]:
    """Words exchanged within their group, where they follow `before` (a pattern of fixed width)."""

    def find(answer: str, known: set[str]) -> _Found:
        return [
            (match.span(), _fresh(group, known))
            for group in groups
            for match in re.finditer(rf"{before}\b(?:{'|'.join(group)})\b", answer)
        ]

    return find


def _fresh(words: list[str] | tuple[str, ...], known: set[str]) -> list[str]:
    return [word for word in words if word.casefold() not in known]


_CALENDAR = {*_MONTHS, *_DAYS}
_FINDERS: dict[str, Callable[[str, set[str]], _Found]] = {
    "number": _numbers,
    "date": _dates,
    "unit": _words(_UNITS, r"(?<=\d )"),
    "name": _names,
    "negation": _negations,
    "role": _words(_ROLES, ""),
    "place": _places,
}
