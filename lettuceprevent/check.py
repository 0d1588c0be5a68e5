"""A finished answer against its context: each number, and what supports it. The detector's logic, used
after the fact.

for verdict in check_text("Revenue was 2400 million.", "It was 2.4 billion, up 12%."):
    print(verdict.status, verdict.text, verdict.evidence)
# supported 2.4 billion 2400 million
# unsupported 12% None
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .grounding import Grounding, as_groundings
from .licence import Licence
from .literals import GOVERNED, Literal, marker_after, scan
from .trie import Position


@dataclass(frozen=True)
class Verdict:
    """One literal of an answer. `status` is supported, exempt or unsupported.

    start, end: character offsets in the answer. evidence: the literal of the context that supports it, and
    span its offsets in the grounding's text (passages joined by a blank line, then the query); None where
    it is exempt or unsupported.
    """

    start: int
    end: int
    text: str
    status: str
    evidence: str | None = None
    span: tuple[int, int] | None = None


def check_text(
    context: str | Sequence[str], answer: str, *, query: str | None = None, **options: bool
) -> list[Verdict]:
    """The literals of an answer in order, each judged against the context (a text, or passages) and the
    query.

    options: number_words, units, rounding, derived, exemptions, as for the detector. Raises ValueError on
    an empty context.
    """
    grounding = as_groundings(context, query)[0]
    licence = licence_of(grounding, **options)
    verdicts, marker = [], 0
    for literal in scan(answer):
        if literal.words and not (licence.number_words and any(w in literal.text for w in GOVERNED)):
            continue
        position, source = _position(licence, literal, marker)
        if literal.marker:
            marker = marker_after(marker, int("".join(c for c in literal.text if c.isdigit())))
        text = answer[literal.start : literal.end].rstrip()
        if literal.marker and (position is None or not position.ok):
            text = text[:-1]  # no marker after all: a number and a full stop
        if position is None or not position.ok:
            verdicts.append(Verdict(literal.start, literal.start + len(text), text, "unsupported"))
        elif source < 0:  # a marker, a citation, or a month and a year that stand apart
            status = "exempt" if literal.marker or text.startswith("[") else "supported"
            verdicts.append(Verdict(literal.start, literal.start + len(text), text, status))
        else:
            found = licence.literals[source]
            evidence = licence.text[found.start : found.end].strip()
            span = (found.start, found.end)
            verdicts.append(
                Verdict(literal.start, literal.start + len(text), text, "supported", evidence, span)
            )
    return verdicts


def licence_of(grounding: Grounding, **options: bool) -> Licence:
    """What a grounding licenses: its passages and its query count alike."""
    text = f"{grounding.text}\n\n{grounding.query}" if grounding.query else grounding.text
    return Licence(text, passages=len(grounding.passages), **options)


def _position(licence: Licence, literal: Literal, last_marker: int) -> tuple[Position | None, int]:
    """Where the forms stand after the whole literal, and which literal of the context licenses it (-1: none);
    a list marker may also stand as the number alone."""
    start = licence.start_at_line(last_marker) if literal.marker else licence.start
    position, source = _follow(start, literal.text)
    if literal.marker and (position is None or not position.ok):
        return _follow(start, literal.text[:-2])
    return position, -1 if literal.marker else source


def _follow(position: Position | None, text: str) -> tuple[Position | None, int]:
    source = -1
    for char in text:
        position = position.step(char) if position is not None else None
        if position is None:
            break
        if position.source >= 0:
            source = position.source  # endings that many forms share have none of their own
    return position, source
