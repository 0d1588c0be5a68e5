"""The degeneration gate: an answer that has fallen apart holds no wrong numbers, and counts for nothing.

Contract: `flags` looks at one answer, `gate` at an arm. An arm that fails has no result: it is shown with the
reasons, never with a reduction. The thresholds are the constants below; they are not options.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

#: share of the answer's runs of four words that occurred before in it
REPETITION = 0.3
#: how often the same one to twenty characters follow each other
LOOP = 6
#: share of digits among the characters that are no blanks
DIGITS = 0.25
#: tokens of the answer over tokens of the plain one
LENGTH = (1 / 3, 3.0)
#: perplexity under the host, without prevention, over that of the plain answer
PERPLEXITY = 3.0

#: an arm fails where this share of its answers is degenerate ...
ARM_SHARE = 0.5
#: ... or where its share is this much above the plain arm's
ARM_EXCESS = 0.05
#: ... or where the share with any flag at all, those relative to the plain answer among them, is this much above it
ARM_FLAGGED = 0.10
#: ... or where its digits are this share of all its characters
ARM_DIGITS = 0.25
#: ... or where the median of its length ratios is outside of this
ARM_LENGTH = (0.5, 2.0)
#: ... or where the geometric mean of its perplexity ratios is above this
ARM_PERPLEXITY = 1.5

#: flags that are relative to the plain answer: they do not count for ARM_SHARE and ARM_EXCESS, but for ARM_FLAGGED, as
#: a median says nothing of the answers on its other side
RELATIVE = frozenset({"length", "perplexity"})


@dataclass(frozen=True)
class Shape:
    """What the gate looks at. perplexity is None where the host's view of the answer is not known."""

    characters: int
    digits: int
    tokens: int
    repetition: float
    loop: bool
    perplexity: float | None

    @property
    def digit_share(self) -> float:
        """Digits among the characters that are no blanks; 0 for an empty answer."""
        return self.digits / self.characters if self.characters else 0.0


def shape(text: str, tokens: int, log_probs: Sequence[float] = ()) -> Shape:
    """The shape of an answer of so many tokens. log_probs: natural logarithms under the host."""
    solid = "".join(text.split())
    return Shape(
        characters=len(solid),
        digits=sum(char.isdigit() for char in solid),
        tokens=tokens,
        repetition=repetition(text),
        loop=re.search(rf"(.{{1,20}}?)\1{{{LOOP - 1},}}", solid) is not None,
        perplexity=math.exp(min(50.0, -sum(log_probs) / len(log_probs))) if log_probs else None,
    )


def repetition(text: str) -> float:
    """Share of runs of four words that occurred before in the text; 0 for texts of up to four words."""
    words = text.lower().split()
    runs = [tuple(words[at : at + 4]) for at in range(len(words) - 3)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def flags(answer: Shape, plain: Shape | None = None) -> list[str]:
    """Reasons for which an answer is degenerate: empty, repetition, loop, digits; and, next to the plain
    answer, length and perplexity."""
    found = []
    if not answer.characters:
        found.append("empty")
    if answer.repetition > REPETITION:
        found.append("repetition")
    if answer.loop:
        found.append("loop")
    if answer.digit_share > DIGITS:
        found.append("digits")
    if plain is not None and plain.tokens:
        if not LENGTH[0] <= answer.tokens / plain.tokens <= LENGTH[1]:
            found.append("length")
        if answer.perplexity and plain.perplexity and answer.perplexity > PERPLEXITY * plain.perplexity:
            found.append("perplexity")
    return found


def gate(answers: Sequence[Shape], plain: Sequence[Shape] | None = None) -> list[str]:
    """Why an arm fails, in words; empty where it passes. plain: the plain answers to the same prompts, in the
    same order; a plain arm that fails by itself fails every arm compared with it."""
    reasons = _alone(answers)
    if plain is None or not answers:
        return reasons
    if len(plain) != len(answers):
        raise ValueError(f"expected a plain answer for each of {len(answers)}, got {len(plain)}")
    reasons += [f"the plain arm: {reason}" for reason in _alone(plain)]
    more = _share(answers) - _share(plain)
    if more > ARM_EXCESS:
        reasons.append(
            f"{_share(answers):.0%} of its answers are degenerate, of the plain ones {_share(plain):.0%}"
        )
    pairs = list(zip(answers, plain, strict=True))
    lengths = [a.tokens / p.tokens for a, p in pairs if p.tokens]
    if lengths and not ARM_LENGTH[0] <= median(lengths) <= ARM_LENGTH[1]:
        reasons.append(f"its answers are {median(lengths):.2f} times as long as the plain ones (median)")
    ratio = perplexity_ratio(answers, plain)
    if ratio is not None and ratio > ARM_PERPLEXITY:
        reasons.append(f"its perplexity is {ratio:.2f} times that of the plain answers")
    flagged = sum(bool(flags(a, p)) for a, p in pairs)
    if flagged - sum(bool(flags(p)) for p in plain) > ARM_FLAGGED * len(pairs):
        reasons.append(
            f"{flagged / len(pairs):.0%} of its answers are flagged beside the plain ones, of those {_share(plain):.0%}"
        )
    return reasons


def perplexity_ratio(answers: Sequence[Shape], plain: Sequence[Shape]) -> float | None:
    """Geometric mean of the answers' perplexities over those of the plain ones; None where none is known."""
    logs = [
        math.log(a.perplexity / p.perplexity)
        for a, p in zip(answers, plain, strict=True)
        if a.perplexity and p.perplexity
    ]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _alone(answers: Sequence[Shape]) -> list[str]:
    reasons = []
    if _share(answers) > ARM_SHARE:
        reasons.append(f"{_share(answers):.0%} of its answers are degenerate")
    digits, characters = sum(a.digits for a in answers), sum(a.characters for a in answers)
    if characters and digits / characters > ARM_DIGITS:
        reasons.append(f"{digits / characters:.0%} of its characters are digits")
    return reasons


def _share(answers: Sequence[Shape]) -> float:
    return sum(bool(flags(a)) for a in answers) / len(answers) if answers else 0.0


# --- likeness ----------------------------------------------------------------------------------------


def rouge_l(answer: str, reference: str) -> float:
    """ROUGE-L F1 of two texts: twice the longest common subsequence of words over the words of both.

    Words are runs of letters and digits in lower case. Two texts without words are alike: 1.0.
    """
    a, b = (re.findall(r"\w+", text.lower()) for text in (answer, reference))
    return 2 * _common_subsequence(a, b) / (len(a) + len(b)) if a or b else 1.0


def _common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence, a row of the table at a time as the bits of one number."""
    places: dict[str, int] = {}
    for at, word in enumerate(a):
        places[word] = places.get(word, 0) | 1 << at
    everything = (1 << len(a)) - 1
    row = everything
    for word in b:
        hit = row & places.get(word, 0)
        row = ((row + hit) | (row - hit)) & everything
    return len(a) - row.bit_count()
