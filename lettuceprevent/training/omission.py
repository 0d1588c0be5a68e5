"""Answers whose support is taken away: the sentences of the context that a sentence rests on are left out.

Contract: a function of (example, seed) and nothing else. The answer stays as it is, so how it is written tells
nothing: a detector has to look into the context. What a sentence rests on is told by words: the one chosen has
lost most of its content words with the sentences left out, no other supported sentence has lost any, and most of
the context stays. Marked is what lies between the first lost word and the last. For training only, never for test data.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

from .data import Example, Span, digest

_MOST = 0.4  # of the context's characters may be left out
_LOST = 0.5  # of the content words of the sentence chosen, at least
_WORDS = 4  # content words of a sentence that can be chosen
_SHORT = 5  # two words with the same first letters are one, so that "research" is in "researchers"

_SENTENCE = re.compile(r"\S(?:[^.!?\n]|[.!?](?![\s\"'”’)]))*(?:[.!?][\"'”’)]*|(?=\n|$))")
_WORD = re.compile(r"[^\W_]+")
_COMMON = frozenset(
    """a about after all also an and any are as at be been before being both but by can could did do does during each
    for from had has have he her here his how i if in into is it its just like made make many more most much my new no
    not now of on one only or other our out over own said same say says she so some such than that the their them then
    there these they this those through to two under until up us very was we well were what when where which while who
    whom whose why will with within without would you your according additionally article despite however includes
    including mentioned provided text overall""".split()
)


def without_support(example: Example, seed: int = 0) -> Example | None:
    """The example without the sentences of its context that one of its answer's rests on, or None where there are
    no such sentences. The new span is in `spans`, `kinds` is ("omission",), the id has kind and seed appended."""
    parts = _sentences(example.context)
    held = [_content(example.context[a:b]) for a, b in parts]
    asked = _content(example.query)
    sentences = [
        (span, _content(example.answer[slice(*span)]) - asked) for span in _sentences(example.answer)
    ]
    free = [
        (span, words)
        for span, words in sentences
        if not any(start < span[1] and span[0] < end for start, end in example.spans)
    ]
    random.Random(digest(f"{seed}\0omission\0{example.id}")).shuffle(free)
    everything = set().union(*held)
    for span, words in free:
        known = words & everything
        others = set().union(*(mine for other, mine in free if other != span)) & everything
        own = known - others
        if len(words) < _WORDS or len(own) < _LOST * len(words):
            continue
        left_out = {at for at, there in enumerate(held) if there & own}
        kept = set().union(*(there for at, there in enumerate(held) if at not in left_out))
        size = sum(parts[at][1] - parts[at][0] for at in left_out)
        if size > _MOST * len(example.context) or not others <= kept:
            continue
        lost = [
            (span[0] + match.start(), span[0] + match.end())
            for match in _WORD.finditer(example.answer[slice(*span)])
            if _stem(match.group()) in own
        ]
        return replace(
            example,
            id=f"{example.id}+omission{seed}",
            context=_rest(example.context, [parts[at] for at in sorted(left_out)]),
            spans=tuple(sorted([*example.spans, (lost[0][0], lost[-1][1])])),
            kinds=("omission",),
        )
    return None


def _sentences(text: str) -> list[Span]:
    return [match.span() for match in _SENTENCE.finditer(text)]


def _stem(word: str) -> str:
    return word if word.isdecimal() else word.casefold()[:_SHORT]


def _content(text: str) -> set[str]:
    words = (match.group() for match in _WORD.finditer(text))
    return {_stem(word) for word in words if len(word) > 1 and word.casefold() not in _COMMON}


def _rest(text: str, left_out: list[Span]) -> str:
    """The text without these spans, each taken out with the blanks after it."""
    pieces, at = [], 0
    for start, end in left_out:
        pieces.append(text[at:start])
        at = end + len(text[end:]) - len(text[end:].lstrip(" "))
    return "".join([*pieces, text[at:]])
