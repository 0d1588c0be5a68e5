"""Text to literals: canonical characters, and the one lexer that contexts and answers share.

`scan(text)` cuts a text into the literals that docs/literals.md defines. The same lexer runs one character
at a time inside the automaton: a `LexState` stands for everything read of one lexeme so far, knows whether
the lexeme may end there, and gives the next state or None when nothing longer fits. Which lexeme fits is
one regular expression, asked through partial matching and remembered per shape (digits are `0`, words that
can open nothing are `~`), so each shape is matched once per process.

Cost: a dictionary look-up per character once warm; nothing here depends on a tokenizer or on a grounding.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import regex

from . import lexicon_en as lexicon

LETTER = "ɐ"  # stands for every letter and combining mark outside ASCII
PUNCTUATION = "¤"  # stands for every other character without a meaning of its own
_KEEP = set("\"'()[]{}<>.,:;/-+%*#=&@!?|~^`\\$£€¥₹₩₽°") | set(lexicon.VULGAR_FRACTIONS)
_SPECIAL = {
    **dict.fromkeys("–‐‑−﹣－", "-"),
    **dict.fromkeys("“”„«»", '"'),
    **dict.fromkeys("‘’‚", "'"),
    **dict.fromkeys("％٪", "%"),
    **dict.fromkeys("．٫", "."),
    **dict.fromkeys("，٬", ","),
    **dict.fromkeys("\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029", "\n"),
    "\t": " ",
    "：": ":",
    "／": "/",
    "＄": "$",
    "＋": "+",
    "_": "_",
    "\n": "\n",
    "~": PUNCTUATION,  # the lexer uses it as a shape
}


def _canonical(char: str) -> str:
    if char in _SPECIAL:
        return _SPECIAL[char]
    if char.isascii():
        if char.isalnum():
            return char.lower()
        return char if char in _KEEP or char == " " else PUNCTUATION
    digit = unicodedata.digit(char, None)
    if digit is not None:
        return str(digit)
    if char in _KEEP:
        return char
    category = unicodedata.category(char)
    if category[0] in "LM":
        return LETTER
    if category[0] == "Z":
        return " "
    return PUNCTUATION


class _Table(dict[int, str]):
    def __missing__(self, code: int) -> str:
        value = self[code] = _canonical(chr(code))
        return value


_TABLE = _Table()


def canonical(text: str) -> str:
    """The text with each character replaced by its canonical one; same length, so offsets stay valid."""
    return text.translate(_TABLE)


def is_word(char: str) -> bool:
    """Whether a canonical character is a letter, a digit, or `_`."""
    return char.isalpha() or char.isdigit() or char == "_"


def has_digit(chars: str) -> bool:
    """Whether canonical text holds a digit or a vulgar fraction: then it is a literal in digit form."""
    return any(c.isdigit() or c in lexicon.VULGAR_FRACTIONS for c in chars)


# --- the lexer -------------------------------------------------------------------------------------------


def any_of(words: Iterable[str]) -> str:
    """A regular expression for any of the words, the longest first."""
    return "|".join(regex.escape(w) for w in sorted(words, key=lambda w: (-len(w), w)))


_SMALL = {**lexicon.ONES, **lexicon.ORDINAL_ONES}
#: number words of ten and more: these are governed
GOVERNED: dict[str, int] = {
    **lexicon.TEENS, **lexicon.TENS, **lexicon.HUNDRED, **lexicon.SCALES, **lexicon.DOZEN, **lexicon.ORDINALS,
}  # fmt: skip
NUMBER_WORDS: dict[str, int] = {**_SMALL, **GOVERNED}
_BIG = "|".join(sorted({*lexicon.HUNDRED, *lexicon.SCALES}))
MONTH = rf"(?:(?:{any_of(lexicon.MONTHS)})|(?:{any_of(lexicon.MONTH_ABBREVIATIONS)})\.?)"
_MONTH_SAFE = (  # "5 may have died" is no date
    rf"(?:(?:{any_of(set(lexicon.MONTHS) - {'may'})})|(?:{any_of(lexicon.MONTH_ABBREVIATIONS)})\.?)"
)
_W = rf"[a-z_~{LETTER}]"
_FRACTION = f"[{''.join(lexicon.VULGAR_FRACTIONS)}]"
_CURRENCY = f"[{''.join(regex.escape(s) for s in lexicon.CURRENCY_SIGNS)}]"
_MORE = r"(?:[.,:/-]0+)*"  # digits that go on a run
_RUN = rf"0+{_MORE}"
_ORDINAL = any_of(lexicon.ORDINAL_SUFFIXES)
_PERCENT = rf"(?: ?(?:{any_of(lexicon.PERCENT_SIGNS)})| (?:{any_of(lexicon.PERCENT_WORDS)}))"
_SCALE = (
    rf"(?:(?:{any_of(lexicon.SCALE_ABBREVIATIONS)})|"
    rf" (?:{any_of({*lexicon.SCALES, *lexicon.SPACED_ABBREVIATIONS})}))"
)
_CLOCK = rf" ?(?:{any_of({*lexicon.AM, *lexicon.PM})})"
_SUFFIX = (
    rf"(?:{_ORDINAL}|s|(?:{any_of(lexicon.UNITS)})|{_SCALE}?(?:{_PERCENT}| (?:{any_of(lexicon.CURRENCY_WORDS)}))"
    rf"|{_SCALE}|{_CLOCK})"
)
_LEAD = rf"(?:[-+]?{_CURRENCY}?|{_CURRENCY}[-+])"
_NUMBER = rf"{_LEAD}(?:\.0+|{_RUN}{_FRACTION}?|{_FRACTION}|0+ 0/0){_SUFFIX}?"
_YEAR = rf"(?:,? 0000{_MORE})"  # "May 9, 2020-2021" is no date, but its digits are one run
_DAY_FIRST = (
    rf"00?(?:{_ORDINAL})?(?:-00?(?:{_ORDINAL})?)?(?: of {MONTH}{_YEAR}?| {_MONTH_SAFE}{_YEAR}?| may{_YEAR})"
)
_MONTH_FIRST = (
    rf"{MONTH}(?: {_RUN}(?:(?:{_ORDINAL})?(?:-00?(?:{_ORDINAL})?)?{_YEAR}?|{_FRACTION}?{_SUFFIX}|{_FRACTION})"
    rf"|, 0000{_MORE})"
)
_CODE = rf"{_W}+-?0[a-z0_~{LETTER}]*(?:[-./]0[a-z0_~{LETTER}]*)*"
_GLUED = rf"(?:{_RUN}{_W}[a-z0_~{LETTER}]*|0~[-./]0)"  # only codes are folded to 0~: "3d-2x", not "5km-10km"
_PHONE = r"000\) ?000[-. ]0000"
_URL = r"(?:https?://|www\.)[^ \n]*"
_NUMWORD = any_of(NUMBER_WORDS)
_PART = rf"(?:(?:{any_of(lexicon.PART_WORDS)}) (?:of )?an? )"
_PARTED = any_of({*lexicon.HUNDRED, *lexicon.SCALES, *lexicon.DOZEN})
_NEXT_WORD = rf"(?:(?<=(?:{_BIG})) and |[ -])(?:{_NUMWORD})"
_WORDS = rf"(?:{_PART}(?:{_PARTED})|(?:{_NUMWORD})(?:{_NEXT_WORD})*)"
_MARKER = r"00?0?[.)] "
_CITATION = r"\[0+(?:, ?0+)*\]"
_LEXEME = regex.compile(
    rf"\n?(?:{_NUMBER}|{_DAY_FIRST}|{_GLUED}|{_PHONE})|\n{_MARKER}"
    rf"|{_MONTH_FIRST}|{_CODE}|{_URL}|{_WORDS}|{_W}+|{_CITATION}|\n?[-+.]|\n?{_CURRENCY}|\[",
)
_WORD_STARTS = sorted(
    {*NUMBER_WORDS, *lexicon.PART_WORDS, *lexicon.MONTHS, *lexicon.MONTH_ABBREVIATIONS,
     *lexicon.OPEN_PREFIXES, "http", "https", "www"}
)  # fmt: skip
_PREFIXES = {w[:i] for w in _WORD_STARTS for i in range(1, len(w) + 1)}
_OPEN = {*lexicon.OPEN_PREFIXES, *lexicon.MONTHS, *lexicon.MONTH_ABBREVIATIONS, *NUMBER_WORDS}
COMMITTED = {
    w[:i] for w in GOVERNED for i in range(1, len(w) + 1)
    if w[:i] in lexicon.COMMITTED_STEMS or w[:i] in GOVERNED
    or any(w[:i].startswith(s) for s in lexicon.COMMITTED_STEMS)
}  # fmt: skip
_ONLY_LETTERS = regex.compile(rf"[a-z_{LETTER}]+")
_SPLIT_WORDS = regex.compile(r"[ -]")
_IS_MARKER = regex.compile(rf"\n{_MARKER}")
_IS_WORDS = regex.compile(rf"{_WORDS}")


class LexState:
    """What has been read of one lexeme, as a shape; interned, so that identity is equality.

    accepts: the lexeme may end here (if no two word characters are parted by it). governed: a run of number
    words that holds one of ten or more, or has begun one. plain: no digit, and no way to a number word:
    nothing but a digit can make it matter.
    """

    __slots__ = (
        "accepts",
        "code",
        "governed",
        "marker",
        "month",
        "next",
        "partial",
        "plain",
        "shape",
        "words",
    )

    def __init__(self, shape: str) -> None:
        self.shape = shape
        self.next: dict[str, LexState | None] = {}
        self.accepts = _LEXEME.fullmatch(shape) is not None
        self.marker = _IS_MARKER.fullmatch(shape) is not None
        letters = shape[0].isalpha() and "0" not in shape
        self.words = False
        self.governed = False
        self.partial = ""
        if letters and shape[0] != LETTER:
            parts = _SPLIT_WORDS.split(shape)
            self.partial = parts[-1]
            match = _IS_WORDS.fullmatch(shape, partial=True)
            self.words = match is not None and not match.partial
            if match is not None:
                self.governed = any(p in GOVERNED for p in parts[:-1]) or parts[-1] in COMMITTED
        self.code = shape in (_GLUED_CODE, _LETTER_CODE)
        self.month = "0" in shape and _LEXEME_MONTH.match(shape) is not None
        self.plain = "0" not in shape and (shape[0] in "~" + LETTER or shape.startswith(("http", "www.")))

    def step(self, char: str) -> LexState | None:
        """The state after one more canonical character, or None where no lexeme goes on like this."""
        try:
            return self.next[char]
        except KeyError:
            state = self.next[char] = lex_state(_grow(self.shape, char))
            return state


def _grow(shape: str, char: str) -> str:
    """The shape after one more character, folded so that there are few of them."""
    if char.isdigit():
        if shape.endswith("-") and shape[:-1] in _OPEN:
            return ""  # "mid-2021": the hyphen ends the word
        char = "0"
    first = shape[0]
    if (first == "w" and shape.startswith("www.")) or (first == "h" and regex.match("https?://", shape)):
        if char in " \n":
            return ""
        return shape if shape.endswith("…") else shape + "…"
    if first.isalpha() or first in "_~":
        if "0" in shape and not shape.startswith("~") and not _LEXEME_MONTH.match(shape):
            shape = _LETTER_CODE
        if "0" in shape and shape.startswith("~") and is_word(char):
            # "feet-5-inches": the code ends before a hyphen that no digit follows
            return _LETTER_CODE if char == "0" or is_word(shape[-1]) else ""
        grown = shape + char
        if _ONLY_LETTERS.fullmatch(grown.replace("~", "a")):
            return grown if grown in _PREFIXES else "~"
        return grown
    if shape.startswith(_GLUED_CODE) and (is_word(char) if shape == _GLUED_CODE else char == "0"):
        return _GLUED_CODE
    if char in "-./":
        glued = _AFTER_RUN.fullmatch(shape)
        if glued is not None and glued[1] not in _GLUED_WORDS and glued[1] + char not in _GLUED_PREFIXES:
            return _GLUED_CODE + char
    glued = _AFTER_RUN.fullmatch(shape + char)
    if glued is not None and glued[1] not in _GLUED_PREFIXES:
        return _GLUED_CODE
    return shape + char


_LETTER_CODE, _GLUED_CODE = "~0", "0~"  # the shapes of all codes: their letters no longer matter
_AFTER_RUN = regex.compile(rf"\n?{_RUN}({_W}[a-z0_~{LETTER}]*)")
_GLUED_WORDS = {
    "s", *lexicon.ORDINAL_SUFFIXES, *lexicon.UNITS, *lexicon.SCALE_ABBREVIATIONS, *lexicon.AM, *lexicon.PM,
}  # fmt: skip
_GLUED_PREFIXES = {w[:i] for w in _GLUED_WORDS for i in range(1, len(w) + 1)}
_LEXEME_MONTH = regex.compile(rf"{MONTH}[, ]")
_STATES: dict[str, LexState | None] = {"": None}


def lex_state(shape: str) -> LexState | None:
    """The state for a shape, or None if no lexeme begins like it."""
    try:
        return _STATES[shape]
    except KeyError:
        alive = len(shape) <= 80 and _LEXEME.fullmatch(shape, partial=True) is not None
        state = _STATES[shape] = LexState(shape) if alive else None
        return state


#: what stands before a place: the start of a line, a blank or an opening mark, anything else
LINE, BLANK, OTHER = "L", "B", "X"
_OPENING = set(" ([{\"'<")
_KEEPS_LINE = set(" *#>")


def before(previous: str, char: str) -> str:
    """What stands before the next place, once `char` has been passed with `previous` before it."""
    if char == "\n":
        return LINE
    if previous == LINE and (char in _KEEPS_LINE or char == "-"):
        return LINE
    return BLANK if char in _OPENING else OTHER


def begin(previous: str, char: str) -> LexState | None:
    """The state of a lexeme that begins with this character at this place, or None: the character stands
    alone."""
    if char.isdigit() or char in lexicon.VULGAR_FRACTIONS:
        return lex_state(("\n" if previous == LINE else "") + ("0" if char.isdigit() else char))
    if char.isalpha() or char == "_":
        return lex_state(char if char in _PREFIXES else "~")
    if char in lexicon.CURRENCY_SIGNS or char == "[":
        return lex_state(char)
    if char in "+-." and previous != OTHER:
        return lex_state(char)
    return None


@dataclass(frozen=True)
class Literal:
    """A literal of a text: canonical `text` at [start, end), `marker` for a list marker, `words` for number
    words."""

    start: int
    end: int
    text: str
    marker: bool = False
    words: bool = False


class Lexeme(NamedTuple):
    """A lexeme of canonical text at [start, end). The lexer read on up to `reach` before it knew that it ended there."""

    start: int
    end: int
    reach: int
    state: LexState


def lexemes(chars: str) -> Iterator[Lexeme]:
    """The lexemes of canonical text from left to right, plain words and lone marks among them."""
    previous, at, size = LINE, 0, len(chars)
    while at < size:
        state = begin(previous, chars[at])
        if state is None:
            previous = before(previous, chars[at])
            at += 1
            continue
        end = best_end = at + 1
        best = state
        while True:
            if state.accepts and not (end < size and is_word(chars[end]) and is_word(chars[end - 1])):
                best, best_end = state, end
            following = state.step(chars[end]) if end < size else None
            if following is None:
                break
            state = following
            end += 1
        yield Lexeme(at, best_end, end, best)
        previous = after(previous, chars[at:best_end])
        at = best_end


def scan(text: str) -> Iterator[Literal]:
    """The literals of a text from left to right; plain words and lone marks are passed over.

    Cost: linear in the text.
    """
    chars = canonical(text)
    for lexeme in lexemes(chars):
        literal = literal_of(lexeme, chars)
        if literal is not None:
            yield literal


def literal_of(lexeme: Lexeme, chars: str) -> Literal | None:
    """The literal that a lexeme is, or None for a plain word or a lone mark."""
    body = chars[lexeme.start : lexeme.end]
    if has_digit(body):
        return Literal(lexeme.start, lexeme.end, body, marker=lexeme.state.marker)
    if lexeme.state.words and body not in lexicon.PART_WORDS:
        return Literal(lexeme.start, lexeme.end, body, words=True)
    return None


def marker_after(last: int, number: int) -> int:
    """The answer's last list marker once `number` stands like one: it counts as 1, or as one more than the last."""
    return number if number in (1, last + 1) else last


def after(previous: str, passed: str) -> str:
    """What stands before the next place, once a lexeme has been passed with `previous` before it."""
    if len(passed) == 1 and not is_word(passed):
        return before(previous, passed)
    return before(OTHER, passed[-1])
