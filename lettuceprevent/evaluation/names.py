"""Names and identifiers of an answer that stand neither in its context nor in the question. Rules, no model.

Contract: a word is a *name* where it is written with a capital although no sentence, line, list item or quotation
begins there, or has two capitals or more ("NATO", "McDuffie"); it is an *identifier* where it mixes letters with digits,
or has `_` or `@` ("B12", "user_id"). Either is supported where the same letters stand in the evidence as a word or part
of a hyphenated one, whatever their case; a possessive ending is left out. Names that begin a sentence, and lines that
are headings (most of their longer words have capitals), are not judged: capitals say nothing there. English; another
script has no capitals and is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_WORD = re.compile(r"[^\W_][\w'’@-]*")
_PARTS = re.compile(r"[\w@]+")
_POSSESSIVE = re.compile(r"['’]s?$")
# What may stand before a word that begins something: nothing, the end of a sentence, a list marker, an opening mark.
_BEGINS = re.compile(r"(?:^|[.!?:;\n\r*#>•|]|[\"“‘'(\[{]|[-–—])\s*$")
_FREE = frozenset({"i", "i'm", "i’m", "i've", "i’ve", "i'll", "i’ll", "i'd", "i’d", "ok"})
_LONG = 4  # letters from which a word of a heading counts


def unsupported_names(answer: str, evidence: Iterable[str]) -> list[tuple[int, int]]:
    """(start, end) in `answer` of each name and identifier without support; neighbours are one."""
    known = {part for text in evidence for part in _parts(text)}
    found: list[tuple[int, int]] = []
    for start, end in _names(answer):
        if all(part in known for part in _parts(answer[start:end])):
            continue
        if found and answer[found[-1][1] : start] == " ":
            start = found.pop()[0]
        found.append((start, end))
    return found


def _names(answer: str) -> Iterator[tuple[int, int]]:
    """(start, end) of the words that are judged, without possessive endings."""
    begin = 0
    for line in answer.splitlines(keepends=True):
        words = list(_WORD.finditer(line))
        heading = _is_heading([word.group() for word in words])
        for word in words:
            text = _POSSESSIVE.sub("", word.group())
            letters = [char for char in text if char.isalpha()]
            capitals = sum(char.isupper() for char in letters)
            mixed = bool(letters) and any(char.isdigit() for char in text) and not _is_ordinal(text)
            identifier = mixed or "_" in text or "@" in text
            named = capitals > 1 or (text[:1].isupper() and not _BEGINS.search(line[: word.start()]))
            if text.casefold() not in _FREE and (identifier or (named and not heading)):
                yield begin + word.start(), begin + word.start() + len(text)
        begin += len(line)


def _is_heading(words: list[str]) -> bool:
    long = [word for word in words if len(word) >= _LONG]
    return len(long) > 1 and sum(word[0].isupper() for word in long) > 0.7 * len(long)


def _is_ordinal(text: str) -> bool:
    """Whether a word is a number with an ending, which the checker of numbers judges."""
    return re.fullmatch(r"\d[\d,.]*(?:st|nd|rd|th|s|k|m|bn|am|pm|%)?(?:-\w+)*", text.casefold()) is not None


def _parts(text: str) -> list[str]:
    return [_POSSESSIVE.sub("", part).casefold() for part in _PARTS.findall(text)]
