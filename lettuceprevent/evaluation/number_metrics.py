"""Numbers of an answer, and what prevention did to them: counts, over-blocking, substitutions.

Contract: every verdict is that of the independent checker (numbers.py), with its default options for every
arm alike, never the detector's own. Evidence is the passages and the query. Digit forms and number words are
counted apart; the figures people compare are the digit forms'.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from .numbers import Checked, ContextNumbers, check_answer

STATUSES = ("supported", "unsupported", "derivable", "rounded", "exempt", "unfinished")
#: what an answer should not say: the context does not state it, even if it can be worked out from it
REFUSED = frozenset({"unsupported", "derivable", "rounded"})
FINE = frozenset({"supported", "exempt"})


class MissingContext(ValueError):
    """An answer was to be judged without any context: everything would be unsupported."""


def context_numbers(line: Mapping[str, Any]) -> ContextNumbers:
    """The evidence of a line's prompt, parsed. An empty context raises MissingContext."""
    prompt = line["prompt"]
    if not any(passage.strip() for passage in prompt["passages"]):
        raise MissingContext(
            f"prompt {prompt['id']!r}: expected a context to judge against, got an empty one"
        )
    return ContextNumbers("\n\n".join([*prompt["passages"], prompt["query"]]))


def judged(line: Mapping[str, Any], numbers: ContextNumbers) -> list[Checked]:
    """Every number of a line's answer with its status."""
    prefix = re.search(r"\S*\Z", line["prompt"]["text"])
    return check_answer(
        line["answer"]["text"],
        numbers,
        passages=len(line["prompt"]["passages"]),
        cut=line["answer"]["cut"],
        prefix=prefix[0] if prefix else "",
    )


def counts(checked: Sequence[Checked], *, words: bool = False) -> Counter[str]:
    """Numbers per status: of the digit forms, or of the number words."""
    return Counter(each.status for each in checked if (each.kind == "word") == words)


# --- substitution ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Substitution:
    """The plain answer stated `instead_of`, unsupported; in its place the other states `said`, which the
    context supports and which is a number, too. Such a sentence is as wrong as before and looks checked."""

    instead_of: Checked
    said: Checked


def substitutions(
    plain: str, plain_checked: Sequence[Checked], other: str, other_checked: Sequence[Checked]
) -> list[Substitution]:
    """Places where an unsupported digit form of `plain` has become a supported one of `other`.

    The same place: after words that the two answers share (at least two, or the beginning of the answer) the
    one goes on with the unsupported number and the other with the supported one.
    """
    old, new = _units(plain, plain_checked), _units(other, other_checked)
    matcher = SequenceMatcher(None, [word for word, _ in old], [word for word, _ in new], autojunk=False)
    found = []
    same = 0  # words shared just before
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind == "equal":
            same = j - i
            continue
        if kind == "replace" and (same >= 2 or i == k == 0):
            for (_, was), (_, now) in zip(old[i:j], new[k:m], strict=False):
                if was is None or now is None:
                    break
                if was.status in REFUSED and now.status in FINE:
                    found.append(Substitution(was, now))
        same = 0
    return found


def _units(text: str, checked: Sequence[Checked]) -> list[tuple[str, Checked | None]]:
    """Words in lower case and whole numbers, in order."""
    units: list[tuple[str, Checked | None]] = []
    at = 0
    for each in sorted((c for c in checked if c.kind != "word"), key=lambda c: c.start):
        if each.start < at:
            continue
        units += [(word, None) for word in re.findall(r"\w+", text[at : each.start].lower())]
        units.append((f"#{each.text.lower()}", each))
        at = each.end
    return [*units, *((word, None) for word in re.findall(r"\w+", text[at:].lower()))]


# --- over-blocking -----------------------------------------------------------------------------------


def blocked_literals(line: Mapping[str, Any], numbers: ContextNumbers) -> Counter[str]:
    """The literals that interventions on the returned answer kept from being written, by the checker's
    status; "none" where what was blocked holds no number by itself. Model detectors name no literal and have none here.

    A literal is judged as far as it was known when it was blocked, so "supported" may also be the beginning
    of a longer, unsupported one: an upper figure for over-blocking. `first_block` is exact where it applies.
    """
    found: Counter[str] = Counter()
    for item in (line["report"] or {}).get("interventions", ()):
        if item["returned"] is False or not item["first_choice"] or item["literal"] is None:
            continue
        statuses = [each.status for each in check_answer(item["literal"], numbers, exempt=False)]
        worst = next((status for status in statuses if status not in FINE), None)
        found[worst or (statuses[0] if statuses else "none")] += 1
    return found


def first_block(
    plain: Mapping[str, Any], other: Mapping[str, Any], plain_checked: Sequence[Checked]
) -> str | None:
    """What the host would have written where its first choice was first penalised, by the checker's status; "none"
    where that is no number; None where that never happened or the decoding is not greedy.

    Under greedy decoding both answers are the same up to there, and the plain answer says how the host would
    have gone on: "supported" or "exempt" is over-blocking. Candidates that a model detector penalises beside a first
    choice that stands change nothing. First in time: what comes after a retraction may lie further to the front.
    """
    decoding = other["decoding"]
    items = [item for item in (other["report"] or {}).get("interventions", ()) if item["first_choice"]]
    if not items or decoding.get("do_sample") or (decoding.get("num_beams") or 1) > 1:
        return None
    at = items[0]["history_length"]
    pieces = plain["answer"]["pieces"]
    if at >= len(pieces) or "".join(pieces) != plain["answer"]["text"]:
        return None
    start = sum(map(len, pieces[:at]))
    end = start + len(pieces[at])
    digits = [each for each in plain_checked if each.kind != "word"] or []
    inside = [each for each in digits if each.start < end and each.end > start]
    before = [each for each in digits if each.end == start]  # the token that would have ended it
    return (inside or before)[0].status if inside or before else "none"
