"""Number literals of a finished text, by regular expressions: the reading half of the independent checker.

Contract: follows docs/literals.md and shares nothing with the detector but the lexicon, so that a mistake has
to be made twice to go unseen. `scan` never raises; offsets count characters of the text as it was given.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from .. import lexicon_en as lx

Time = tuple[int, int, str]  #: hour and minute as written, and "am", "pm" or ""

_DASHES = "\u2013\u2010\u2011\u2212\ufe63"
_OTHER_LETTER = "\u0101"
_LINE_BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_SPECIAL = {
    "\u066a": "%", "\uff05": "%", "\u066b": ".", "\uff0e": ".", "\u066c": ",", "\uff0c": ",", "\t": " ",
    "\uff1a": ":", "\uff0f": "/", "\uff0d": "-", "\uff0b": "+", "\uff04": "$",
}  # fmt: skip


class _Canonical(dict[int, str]):
    """One character to one canonical character; word characters become [a-z0-9_] or ā."""

    def __missing__(self, code: int) -> str:
        self[code] = result = _canonical_character(chr(code))
        return result


def _canonical_character(char: str) -> str:
    if char in _SPECIAL:
        return _SPECIAL[char]
    if char in _DASHES:
        return "-"
    if char in _LINE_BREAKS:
        return "\n"
    category = unicodedata.category(char)
    if category == "Zs":
        return " "
    digit = unicodedata.digit(char, None)
    if digit is not None:
        return str(digit)
    if category[0] in "LM":
        lower = char.lower()[0]
        return lower if lower.isascii() else _OTHER_LETTER
    return char


_TABLE = _Canonical()


def canonical(text: str) -> str:
    """`text` with digits, dashes, blanks and case made canonical; the same number of characters."""
    return text.translate(_TABLE)


@dataclass(frozen=True)
class Literal:
    """A literal of a text: `text[start:end]`.

    kind: number, list (``1,57``), pair, ratio, time, date, month (month and year), code, word, or other (a
    form that states only itself). `value` is exact, with scale and sign; `decimals` counts digits after the
    point.
    """

    start: int
    end: int
    text: str
    kind: str
    canon: str
    value: Fraction | None = None
    marks: frozenset[str] = frozenset()
    suffix: str = ""  # "ordinal", "plural" or ""
    parts: tuple[Fraction, ...] = ()
    times: tuple[Time, ...] = ()
    days: tuple[int, ...] = ()
    month: int = 0
    year: int | None = None
    decimals: int = 0
    natural_decimals: int = 0
    whole_digits: str = ""  # the digits of an unmarked, ungrouped, unscaled whole number
    padded: bool = False  # a whole number written with leading zeros
    scaled: bool = False
    grouped: bool = False
    negative: bool = False
    free: bool = False  # a number word below ten: states a value, is never judged
    texts: tuple[str, ...] = field(default=())  # the parts as written, for pairs and lists
    inner: Literal | None = None  # the number after a month that makes no date with it

    @property
    def digit_form(self) -> bool:
        """Whether it is written with digits; C1's zero covers these."""
        return self.kind != "word"


# --- pieces of the grammar ---

_W = f"[a-z0-9_{_OTHER_LETTER}]"
_L = f"[a-z{_OTHER_LETTER}]"
_EDGE = rf"(?:(?<!{_W})|(?!{_W}))"


def _any(words: object) -> str:
    """Alternatives, longest first."""
    return "(?:" + "|".join(sorted(map(re.escape, words), key=lambda w: (-len(w), w))) + ")"  # type: ignore[call-overload]


_CURRENCY = "[" + "".join(map(re.escape, lx.CURRENCY_SIGNS)) + "]"
_VULGAR = "[" + "".join(lx.VULGAR_FRACTIONS) + "]"
_MONTH_NAMES = {**lx.MONTHS, **lx.MONTH_ABBREVIATIONS}
_MONTH = rf"(?:{_any(lx.MONTHS)}(?!{_W})|{_any(lx.MONTH_ABBREVIATIONS)}(?!{_W})\.?)"
_DAY = r"(?:[0-9]{1,2})"
_ORDINAL = _any(lx.ORDINAL_SUFFIXES)
_NO_RUN = r"(?![0-9]|[.,:/-][0-9])"  # the run of digits ends here

_NUMBER_WORDS = {
    **lx.ONES, **lx.TEENS, **lx.TENS, **lx.HUNDRED, **lx.SCALES, **lx.DOZEN, **lx.ORDINAL_ONES, **lx.ORDINALS,
}  # fmt: skip
_ORDINAL_WORDS = {**lx.ORDINAL_ONES, **lx.ORDINALS}
_BIG_WORDS = {**lx.HUNDRED, **lx.SCALES, **lx.DOZEN}

_RE_PREFIX = re.compile(rf"(?:([-+])({_CURRENCY})?|({_CURRENCY})([-+])?)?(?=\.?[0-9]|{_VULGAR})")
_RE_RUN = re.compile(r"\.?[0-9]+(?:[.,:/-][0-9]+)*")
_RE_FRACTION = re.compile(rf"({_VULGAR})|( )([0-9])/([0-9]){_NO_RUN}")
_SCALE = (
    rf"(?:(?P<abbreviation>{_any(lx.SCALE_ABBREVIATIONS)})| (?P<spaced>{_any(lx.SPACED_ABBREVIATIONS)})"
    rf"| (?P<scale>{_any(lx.SCALES)}))(?!{_W})"
)
_MARK = (
    rf"(?:(?P<percent> ?{_any(lx.PERCENT_SIGNS)}| {_any(lx.PERCENT_WORDS)}(?!{_W}))"
    rf"| (?P<currency>{_any(lx.CURRENCY_WORDS)})(?!{_W}))"
)
_RE_SUFFIXES = [
    re.compile(rf"(?P<ordinal>{_ORDINAL})(?!{_W})"),
    re.compile(rf"(?P<plural>s)(?!{_W})"),
    re.compile(rf"(?P<unit>{_any(lx.UNITS)}){_EDGE}"),
    re.compile(rf"{_SCALE}(?:{_MARK})?"),
    re.compile(_MARK),
]
_RE_CLOCK = re.compile(rf" ?(?:(?P<am>{_any(lx.AM)})|(?P<pm>{_any(lx.PM)})){_EDGE}")
_RE_DATE = [
    re.compile(
        rf"(?P<month>{_MONTH}) (?P<day>{_DAY})(?:-(?P<day2>{_DAY}))?(?:{_ORDINAL})?(?!{_W}){_NO_RUN}"
        rf"(?:,? (?P<year>[0-9]{{4}})(?!{_W}){_NO_RUN})?"
    ),
    re.compile(
        rf"(?P<day>{_DAY})(?:{_ORDINAL})?(?:-(?P<day2>{_DAY})(?:{_ORDINAL})?)?(?: of)? (?P<month>{_MONTH})"
        rf"(?:,? (?P<year>[0-9]{{4}})(?!{_W}){_NO_RUN})?"
    ),
    re.compile(rf"(?P<month>{_MONTH}),? (?P<year>[0-9]{{4}})(?!{_W}){_NO_RUN}"),
]
_RE_MONTH_BEFORE = re.compile(rf"{_MONTH} (?=[0-9])")  # before a mark ("in May $50") it makes no date
_RE_URL = re.compile(r"(?:https?://|www\.)[^ \n]*")
_RE_PHONE = re.compile(rf"(?<=\()[0-9]{{3}}\) ?[0-9]{{3}}-[0-9]{{4}}(?!{_W})")
_RE_LETTER_CODE = re.compile(rf"(?P<word>{_L}+)-(?=[0-9])")
_RE_MIXED = re.compile(rf"{_W}+")
_RE_GOES_ON = re.compile(rf"(?:[-./](?=[0-9]))?{_W}+")
_WORD = _any(_NUMBER_WORDS)
_RE_WORDS = re.compile(
    rf"(?P<part>{_any(lx.PART_WORDS)})(?: of)?(?: an?)? (?P<big>{_any(_BIG_WORDS)})(?!{_W})"
    rf"|{_WORD}(?!{_W})(?:(?:[ -]|(?<=hundred) and |(?<=thousand) and |(?<=illion) and ){_WORD}(?!{_W}))*"
)
_RE_VAGUE = re.compile(rf"(?:{_any(lx.VAGUE_BEFORE_SCALE - set(lx.HUNDRED))}(?: of)?(?: an?)?)[ ]$")
_OPEN = frozenset(lx.OPEN_PREFIXES) | frozenset(_MONTH_NAMES) | frozenset(_NUMBER_WORDS)
_OPENING = frozenset(" \n([{<\"'`\u201c\u201e\u2018\u201a\u00ab\u2039")

_RE_START = re.compile(
    rf"(?<!{_W})(?:[-+.]?[0-9]|[-+]?{_CURRENCY}|{_VULGAR}|{_W}*[0-9]|{_L}+-[0-9]|https?://|www\.|"
    rf"{_MONTH}|{_any({**_NUMBER_WORDS, **lx.PART_WORDS})}(?!{_W}))"
)

_RE_INTEGER = re.compile(r"[0-9]+")
_RE_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_RE_DECIMAL = re.compile(r"[0-9]*\.[0-9]+")
_RE_LIST = re.compile(r"[0-9]+(?:,[0-9]+)+")
_RE_OTHER_CLOCK = re.compile(r"[0-9]{1,2}:[0-5][0-9][:.][0-5][0-9]|[01][0-9][0-5][0-9]|2[0-4][0-5][0-9]")
_RE_TRIPLES = re.compile(r"[0-9]{3}(,[0-9]{3})+")
_RE_ISO = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_RE_SLASH_DATE = re.compile(r"([0-9]{1,2})/([0-9]{1,2})/([0-9]{4})")


# --- the scan ---


@lru_cache(maxsize=4096)
def scan(text: str) -> tuple[Literal, ...]:
    """All literals of `text` from left to right, the free number words among them."""
    shape = canonical(text)
    found: list[Literal] = []
    at = 0
    while (start := _RE_START.search(shape, at)) is not None:
        place = start.start()
        literals = _longest(text, shape, place)
        if literals:
            found += literals
            at = literals[-1].end
        else:
            # past the whole word where it can hold no literal, else past one character
            at = max(place + 1, at)
    return tuple(found)


def find_literals(text: str) -> list[Literal]:
    """The literals of `text` that are judged, by rules 1 to 4 (exemptions are the judge's)."""
    return [literal for literal in scan(text) if not literal.free]


def _longest(text: str, shape: str, at: int) -> list[Literal]:
    """The longest literal at `at`; several only where a run of number words states several numbers."""
    choices = [
        _number(text, shape, at),
        _date(text, shape, at),
        _code(text, shape, at),
    ]
    best = max((c for c in choices if c is not None), key=lambda c: c.end, default=None)
    if best is not None:
        return [best]
    return _words(text, shape, at)


def _make(text: str, shape: str, start: int, end: int, kind: str, **rest: object) -> Literal:
    return Literal(start, end, text[start:end], kind, shape[start:end], **rest)  # type: ignore[arg-type]


def _date(text: str, shape: str, at: int) -> Literal | None:
    best: Literal | None = None
    for pattern in _RE_DATE:
        match = pattern.match(shape, at)
        if match is None:
            continue
        groups = match.groupdict()
        days = tuple(int(groups[k]) for k in ("day", "day2") if groups.get(k))
        if any(not 1 <= day <= 31 for day in days):
            continue
        year = int(groups["year"]) if groups["year"] else None
        month = _MONTH_NAMES[groups["month"].rstrip(".")]
        if shape[at].isdigit() and groups["month"] == "may" and year is None and " of " not in match[0]:
            continue  # "5 may have died"
        kind = "date" if days else "month"
        end = match.end()
        if best is None or end > best.end:
            best = _make(text, shape, at, end, kind, days=days, month=month, year=year)
    if before := _RE_MONTH_BEFORE.match(shape, at):
        number = _number(text, shape, before.end())
        longer = number is not None and (best is None or number.end > best.end)
        # "In May 3,000 people", "in May 20%": one literal, as it stands
        if number is not None and longer and number.kind != "code":
            return _make(text, shape, at, number.end, "other", inner=number)
    return best


def _code(text: str, shape: str, at: int) -> Literal | None:
    url = _RE_URL.match(shape, at)
    if url:
        end = url.end()
        while end > at and shape[end - 1] in ".,;:!?)]}>\"'":
            end -= 1
        return _make(text, shape, at, end, "code") if any(c.isdigit() for c in shape[at:end]) else None
    phone = _RE_PHONE.match(shape, at)
    if phone:
        return _make(text, shape, at, phone.end(), "code")
    letters = _RE_LETTER_CODE.match(shape, at)
    if letters:
        if letters["word"] in _OPEN:
            return None
        return _make(text, shape, at, _go_on(shape, letters.end()), "code")
    word = _RE_MIXED.match(shape, at)
    if word is None or word[0][0].isdigit() or not any(c.isdigit() for c in word[0]):
        return None  # what starts with a digit is left to `_number`
    return _make(text, shape, at, _go_on(shape, word.end()), "code")


def _go_on(shape: str, at: int) -> int:
    """Where a code ends: over word characters, and over single `-` `.` `/` that stand before a digit."""
    while (more := _RE_GOES_ON.match(shape, at)) is not None:
        at = more.end()
    return at


def _number(text: str, shape: str, at: int) -> Literal | None:
    prefix = _RE_PREFIX.match(shape, at)
    if prefix is None:
        return None
    counts = at == 0 or shape[at - 1] in _OPENING
    sign = prefix[1] or prefix[4] or ""
    currency = prefix[2] or prefix[3] or ""
    begin = prefix.end()
    if (sign or shape[begin] == ".") and not counts:
        return None
    negative = sign == "-"
    marks = frozenset([lx.CURRENCY_SIGNS[currency]]) if currency else frozenset()
    run = _RE_RUN.match(shape, begin)
    if run is None:  # a vulgar fraction alone
        if begin > at and not counts:
            return None
        value = Fraction(*lx.VULGAR_FRACTIONS[shape[begin]])
        return _finish(text, shape, at, begin + 1, "", value, negative, marks, "mixed")
    digits, end = run[0], run.end()
    fraction = _RE_FRACTION.match(shape, end)
    if fraction and _is_plain(digits):
        if fraction[1]:
            numerator, denominator = lx.VULGAR_FRACTIONS[fraction[1]]
        else:
            numerator, denominator = int(fraction[3]), int(fraction[4])
        if denominator and (fraction[1] or numerator < denominator):
            value = Fraction(digits.replace(",", "")) + Fraction(numerator, denominator)
            mixed = _finish(text, shape, at, fraction.end(), digits, value, negative, marks, "mixed")
            if mixed is not None:
                return mixed
    if _is_code_run(digits):
        glued = _go_on(shape, end)
        return _make(text, shape, begin, glued, "code")
    return _finish(text, shape, at, end, digits, None, negative, marks, "run")


def _is_plain(run: str) -> bool:
    return bool(_RE_INTEGER.fullmatch(run) or _RE_GROUPED.fullmatch(run))


def _is_code_run(run: str) -> bool:
    """Three or more parts joined by `-` or by `.`, except an ISO date."""
    if _RE_ISO.fullmatch(run) and _valid_date(*map(int, run.split("-"))):
        return False
    return len(run.split("-")) > 2 or any(len(part.lstrip(".").split(".")) > 2 for part in run.split("-"))


def _valid_date(year: int, month: int, day: int) -> bool:
    return 1 <= month <= 12 and 1 <= day <= 31 and year > 0


def _finish(
    text: str,
    shape: str,
    at: int,
    end: int,
    run: str,
    value: Fraction | None,
    negative: bool,
    marks: frozenset[str],
    form: str,
) -> Literal | None:
    """Take the longest suffix, then type the literal."""
    best = end if _edge(shape, end) else -1
    taken: dict[str, str | None] = {}
    clock = ""
    for pattern in _RE_SUFFIXES:
        match = pattern.match(shape, end)
        if match and match.end() > best:
            best, taken = match.end(), match.groupdict()
    clocked = form == "run" and (_clock_parts(run) is not None or _RE_OTHER_CLOCK.fullmatch(run))
    match = _RE_CLOCK.match(shape, end) if clocked else None
    if match and match.end() > best:
        best, taken, clock = match.end(), {}, "am" if match["am"] else "pm"
    if best < 0:  # letters glued in another way
        return _make(text, shape, end - len(run), _go_on(shape, end), "code") if form == "run" else None
    scale = 1
    for key, table in (
        ("abbreviation", lx.SCALE_ABBREVIATIONS),
        ("spaced", lx.SCALE_ABBREVIATIONS),
        ("scale", lx.SCALES),
    ):
        word = taken.get(key)
        if word:
            scale = table[word]
    if taken.get("percent"):
        marks |= {"%"}
    if word := taken.get("currency"):
        marks |= {lx.CURRENCY_WORDS[word]}
    suffix = "ordinal" if taken.get("ordinal") else "plural" if taken.get("plural") else ""
    marked = bool(marks) or scale > 1 or bool(taken.get("unit"))
    fields = _typed(run, value, form, clock, scale, marked)
    kind = str(fields.pop("kind"))
    if negative and isinstance(fields.get("value"), Fraction):
        fields["value"] = -fields["value"]  # type: ignore[operator]
    return _make(
        text, shape, at, best, kind, marks=marks, suffix=suffix, negative=negative, scaled=scale > 1, **fields
    )


def _edge(shape: str, at: int) -> bool:
    return at >= len(shape) or not re.match(_W, shape[at]) or not re.match(_W, shape[at - 1])


def _clock_parts(run: str) -> list[tuple[int, int]] | None:
    """The times that `run` may state before a clock suffix, or None."""
    times: list[tuple[int, int]] = []
    for part in run.split("-"):
        match = re.fullmatch(r"([0-9]{1,2})(?:[:.]([0-9]{1,2}))?", part)
        if match is None or int(match[1]) > 24 or int(match[2] or 0) > 59:
            return None
        times.append((int(match[1]), int(match[2] or 0)))
    return times if len(times) <= 2 else None


def _bare_clock(part: str) -> tuple[int, int] | None:
    """`18:30` and `22:0` are times; `3:2` and `45:30` are not."""
    match = re.fullmatch(r"([0-9]{1,2}):([0-5][0-9]|0)", part)
    return (int(match[1]), int(match[2])) if match and int(match[1]) <= 24 else None


def _simple(part: str) -> Fraction | None:
    if _RE_INTEGER.fullmatch(part) or _RE_GROUPED.fullmatch(part) or _RE_DECIMAL.fullmatch(part):
        return Fraction(part.replace(",", ""))
    return None


def _typed(
    run: str, value: Fraction | None, form: str, clock: str, scale: int, marked: bool
) -> dict[str, object]:
    if form == "mixed":
        assert value is not None
        return {"kind": "number", "value": value * scale}
    if clock:
        times = _clock_parts(run)
        if times is None:  # with seconds, or military: states itself only
            return {"kind": "other"}
        return {"kind": "time", "times": tuple((h, m, clock) for h, m in times)}
    plain = _simple(run)
    if plain is not None:
        mantissa_decimals = len(run.partition(".")[2])
        return {
            "kind": "number",
            "value": plain * scale,
            "decimals": mantissa_decimals,
            "natural_decimals": len(run.partition(".")[2].rstrip("0")),
            "whole_digits": run if run.isdigit() and not marked else "",
            "padded": run[0] == "0" and len(run) > 1 and run[1] != ".",
            "grouped": "," in run,
            "parts": tuple(map(Fraction, run.split(","))) if _RE_TRIPLES.fullmatch(run) else (),
        }
    if match := _RE_ISO.fullmatch(run):
        year, month, day = map(int, match.groups())
        return {"kind": "date", "days": (day,), "month": month, "year": year}
    if match := _RE_SLASH_DATE.fullmatch(run):
        first, second, year = map(int, match.groups())
        if first > 12 >= second > 0 and first <= 31:
            return {"kind": "date", "days": (first,), "month": second, "year": year}
        if second > 12 >= first > 0 and second <= 31:
            return {"kind": "date", "days": (second,), "month": first, "year": year}
        return {"kind": "other"}
    if _RE_LIST.fullmatch(run):
        texts = tuple(run.split(","))
        decimal = Fraction(".".join(texts)) * scale if len(texts) == 2 else None
        return {
            "kind": "list",
            "value": decimal,
            "parts": tuple(map(Fraction, texts)),
            "decimals": len(texts[1]),
            "natural_decimals": len(texts[1].rstrip("0")),
            "texts": ("marked",) if marked else (),
        }
    pieces = run.split("-")
    if len(pieces) == 2:
        return _pair(pieces, scale)
    if time := _bare_clock(run):
        return {"kind": "time", "times": ((*time, ""),)}
    if match := re.fullmatch(r"([0-9]+)([:/])([0-9]+)", run):
        a, b = int(match[1]), int(match[3])
        proper = match[2] == "/" and 0 < a < b <= 10
        return {
            "kind": "ratio",
            "value": Fraction(a, b) * scale if proper else None,
            "parts": (Fraction(a), Fraction(b)),
            "texts": (match[2],),
        }
    return {"kind": "other"}


def _pair(pieces: list[str], scale: int) -> dict[str, object]:
    times = [_bare_clock(piece) for piece in pieces]
    if times[0] and times[1]:
        return {"kind": "time", "times": ((*times[0], ""), (*times[1], ""))}
    values = [_simple(piece) for piece in pieces]
    if values[0] is None or values[1] is None:
        return {"kind": "other"}
    return {"kind": "pair", "parts": (values[0] * scale, values[1] * scale), "texts": tuple(pieces)}


# --- number words ---


def _words(text: str, shape: str, at: int) -> list[Literal]:
    match = _RE_WORDS.match(shape, at)
    if match is None:
        return []
    if match["part"]:
        if re.search(r"and an? $", shape[max(0, at - 6) : at]):
            return []
        numerator, denominator = lx.PART_WORDS[match["part"]]
        value = Fraction(numerator * _BIG_WORDS[match["big"]], denominator)
        return [_make(text, shape, at, match.end(), "word", value=value)]
    tokens = [(m.start() + at, m.end() + at, m[0]) for m in re.finditer(r"[a-z]+", match[0]) if m[0] != "and"]
    if tokens[0][2] in _BIG_WORDS and _RE_VAGUE.search(shape[max(0, at - 24) : at]):
        # states no value: a free word, so that the run is passed over
        return [_make(text, shape, at, match.end(), "word", free=True)]
    return [
        _make(
            text,
            shape,
            start,
            end,
            "word",
            value=Fraction(value),
            suffix="ordinal" if ordinal else "",
            free=value < 10,
        )
        for start, end, value, ordinal in _values_of_words(tokens)
    ]


def _values_of_words(tokens: list[tuple[int, int, str]]) -> list[tuple[int, int, int, bool]]:
    """Split a run of number words into well-formed numbers: (start, end, value, is an ordinal)."""
    segments: list[tuple[int, int, int, bool]] = []
    total = current = 0
    last_scale = 10**18
    last = ""  # the class of the last word
    begin = end = -1

    def close(ordinal: bool) -> None:
        nonlocal total, current, last_scale, last, begin
        if begin >= 0:
            segments.append((begin, end, total + current, ordinal))
        total = current = 0
        last_scale, last, begin = 10**18, "", -1

    for start, stop, word in tokens:
        value, ordinal = _NUMBER_WORDS[word], word in _ORDINAL_WORDS
        if word in lx.DOZEN:
            cls = "dozen"
        elif value < 10:
            cls = "ones"
        elif value < 20:
            cls = "teens"
        elif value < 100:
            cls = "tens"
        elif value == 100:
            cls = "hundred"
        else:
            cls = "scale"
        fits = {
            "ones": last in ("", "hundred", "scale") or (last == "tens" and value > 0),
            "teens": last in ("", "hundred", "scale"),
            "tens": last in ("", "hundred", "scale"),
            "hundred": last == "" or (last in ("ones", "teens", "tens") and 0 < current < 100),
            "scale": (last == "" or last in ("ones", "teens", "tens", "hundred")) and value < last_scale,
            "dozen": last in ("", "ones", "teens", "tens") and total == 0,
        }[cls]
        if not fits:
            close(False)
        if begin < 0:
            begin = start
        end = stop
        if cls in ("hundred", "dozen"):
            current = max(current, 1) * value
        elif cls == "scale":
            total += max(current, 1) * value
            current, last_scale = 0, value
        else:
            current += value
        last = cls
        if ordinal or cls == "dozen":
            close(ordinal)
    close(False)
    return _years_in_words(segments)


def _years_in_words(segments: list[tuple[int, int, int, bool]]) -> list[tuple[int, int, int, bool]]:
    """Join "twenty" and "fourteen" to 2014."""
    joined: list[tuple[int, int, int, bool]] = []
    for segment in segments:
        ordinal = segment[3] or (joined and joined[-1][3])
        if joined and not ordinal and 11 <= joined[-1][2] <= 20 and 10 <= segment[2] <= 99:
            first = joined.pop()
            segment = (first[0], segment[1], first[2] * 100 + segment[2], False)
        joined.append(segment)
    return joined
