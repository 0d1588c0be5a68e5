"""The independent checker of numbers: judge the literals of a finished answer against a context, by value.

Contract: it shares the lexicon with the detector and nothing else. Where docs/literals.md is silent it is
strict: it says unsupported. It knows values, not surface forms, and works on finished text, not on bytes.
`ContextNumbers` is parsed once per context and can be used for any number of answers.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations

from .. import lexicon_en as lx
from .number_literals import _MONTH_NAMES, Literal, Time, canonical, find_literals, scan

__all__ = ["Checked", "ContextNumbers", "Literal", "canonical", "check_answer", "find_literals", "scan"]

Status = str  #: supported, unsupported, exempt, derivable, rounded, unfinished
Marks = frozenset[str]
BARE: Marks = frozenset()


@dataclass(frozen=True)
class Checked:
    """One literal of an answer and what became of it. Offsets count characters of the answer."""

    start: int
    end: int
    text: str
    kind: str
    status: Status


@dataclass(frozen=True)
class Options:
    """How to judge; the names are the detector's."""

    number_words: bool = True
    units: bool = True
    rounding: bool = False
    derived: bool = False
    exempt: bool = True


class ContextNumbers:
    """What a context's literals license, as values."""

    def __init__(self, context: str) -> None:
        self.shape = canonical(context)
        self.literals = scan(context)
        self.raw: set[str] = set()
        self.plain: dict[Fraction, set[str | None]] = defaultdict(set)  # value -> marks; None is bare
        self.ordinals: set[Fraction] = set()
        self.plurals: set[Fraction] = set()
        self.pairs: dict[tuple[Fraction, Fraction], set[str | None]] = defaultdict(set)
        self.ratios: set[tuple[str, Fraction, Fraction]] = set()
        self.times: set[tuple[int, int]] = set()  # hour of 24 and minute, known
        self.bare_times: set[tuple[int, int]] = set()  # as written, morning or evening unknown
        self.time_pairs: set[tuple[Time, Time]] = set()
        self.dates: dict[tuple[int, int], set[int | None]] = defaultdict(set)
        self.date_ranges: set[tuple[int, tuple[int, ...]]] = set()
        self.months: set[int] = set()
        self.years: set[int] = set()
        self.codes: set[str] = set()
        self.comma_decimals = False
        hours = [h for lit in self.literals for h, _, _ in lit.times]
        ranges = [lit.canon for lit in self.literals if len(lit.times) == 2]
        # `11:0-1:0` is how machines write times of day from 0 to 24
        self._day_of_24 = any(hour > 12 for hour in hours) or any(
            re.search(":0(?![0-9])", text) for text in ranges
        )
        for literal in self.literals:
            self._license(literal)
        self._license_neighbours()
        for word, time in lx.CLOCK_WORDS.items():
            if re.search(rf"\b{word}\b", self.shape):
                self.times.add(time)
        for match in re.finditer(r"[a-z]+", self.shape):
            if match[0] in _MONTH_NAMES:
                self.months.add(_MONTH_NAMES[match[0]])

    # --- what the context licenses ---

    def _license(self, lit: Literal) -> None:
        if lit.free and lit.value is None:
            return
        self.raw.add(lit.canon)
        if lit.inner is not None:
            self._license(lit.inner)
        kind = lit.kind
        if kind in ("number", "word"):
            self._license_number(lit)
        elif kind == "list":
            if lit.texts:  # marked: a comma decimal
                assert lit.value is not None
                self.comma_decimals = True
                self._add(lit.value, lit.marks)
            else:
                self._add_parts(lit.parts)
        elif kind == "pair":
            self._add_pair(lit.parts, lit.marks, lit.texts)
            for part in lit.parts:
                self._add(part, lit.marks)
            for part_text in lit.texts:
                self._add_year(part_text, lit)
        elif kind == "ratio":
            self.ratios.add((lit.texts[0], lit.parts[0], lit.parts[1]))
            self._add_parts(lit.parts)
            if lit.value is not None:
                self._add(lit.value, lit.marks)
        elif kind == "time":
            for time in lit.times:
                self._add_time(time)
            if len(lit.times) == 2:
                self.time_pairs.add((lit.times[0], lit.times[1]))
        elif kind in ("date", "month"):
            self._add_date(lit)
        elif kind == "code":
            self.codes |= {lit.canon, lit.canon.removesuffix("s")}

    def _add(self, value: Fraction, marks: Marks) -> None:
        """A negative value is licensed without its sign as well."""
        for each in {value, abs(value)}:
            self.plain[each] |= set(marks) or {None}

    def _add_parts(self, parts: tuple[Fraction, ...]) -> None:
        for part in parts:
            self._add(part, BARE)

    def _license_number(self, lit: Literal) -> None:
        assert lit.value is not None
        value = lit.value
        if lit.suffix == "plural":
            self.plurals.add(value)
            if 1000 <= value < 3000:
                self.plurals.add(value % 100)
            elif 10 <= value <= 99:  # "in her 40s"
                self._add(value, lit.marks)
            return
        if lit.kind == "word" and lit.canon == "second":
            self.ordinals.add(value)
            return
        self._add(value, lit.marks)
        if lit.parts and not lit.marks and not lit.scaled:  # 101,102 is a list as well
            self._add_parts(lit.parts)
        self._add_year(lit.whole_digits, lit)

    def _add_year(self, digits: str, lit: Literal) -> None:
        if len(digits) == 4 and 1000 <= int(digits) <= 2999 and not lit.marks and not lit.scaled:
            self.years.add(int(digits))

    def _add_pair(self, parts: tuple[Fraction, ...], marks: Marks, texts: tuple[str, ...]) -> None:
        first, second = parts
        self.pairs[first, second] |= set(marks) or {None}
        year = _year_pair(texts)
        if year is not None:
            self.pairs[first, Fraction(year)] |= set(marks) or {None}
            self._add(Fraction(year), marks)

    def _add_time(self, time: Time) -> None:
        hour, minute, clock = time
        known = _hour_of_24(time)
        if known is not None:
            self.times.add(known)
            self.bare_times.add((hour, minute))
        else:
            self.bare_times.add((hour, minute))
            if self._day_of_24 and not clock:
                self.times.add((hour % 24, minute))

    def _add_date(self, lit: Literal) -> None:
        self.months.add(lit.month)
        if lit.year is not None:
            self.years.add(lit.year)
            self._add(Fraction(lit.year), BARE)
        for day in lit.days:
            self.dates[lit.month, day].add(lit.year)
            self.ordinals.add(Fraction(day))
        if len(lit.days) == 2:
            self.date_ranges.add((lit.month, lit.days))

    def _license_neighbours(self) -> None:
        """`10 to 15` and `10 and 15` license the pair; `April 16 and 19` licenses both days."""
        dated: Literal | None = None  # the date that days may still be added to
        for first, second in zip(self.literals, self.literals[1:], strict=False):
            if first.kind == "date":
                dated = first if first.year is None and first.canon[0].isalpha() else None
            between = self.shape[first.end : second.start]
            to_or_and = between in (" to ", " and ")
            if to_or_and and first.kind in ("number", "word") and second.kind in ("number", "word"):
                self._license_joined(first, second)
            elif to_or_and and first.kind == "time" and second.kind == "time":
                self.time_pairs.add((first.times[-1], second.times[0]))
            dated = dated if _RE_MORE_DAYS.fullmatch(between) else None
            if dated is not None and not self._license_day(dated, first, second):
                dated = None

    def _license_joined(self, first: Literal, second: Literal) -> None:
        if first.value is None or second.value is None or "plural" in (first.suffix, second.suffix):
            return
        marks = first.marks | second.marks
        self.pairs[first.value, second.value] |= set(marks) or {None}

    def _license_day(self, dated: Literal, first: Literal, second: Literal) -> bool:
        """Whether `second` is one more day of the month of `dated`; then it is licensed."""
        if second.kind != "number" or not second.whole_digits or len(second.whole_digits) > 2:
            return False
        day = int(second.whole_digits)
        if not 1 <= day <= 31:
            return False
        self.dates[dated.month, day].add(None)
        if first is dated and len(dated.days) == 1:
            self.date_ranges.add((dated.month, (dated.days[0], day)))
        return True

    # --- judging one literal ---

    def supports(self, lit: Literal, options: Options) -> bool:
        """Whether the context states what `lit` states."""
        if lit.canon in self.raw and not (lit.kind == "code" and lit.canon not in self.codes):
            return True
        judge = getattr(self, f"_supports_{lit.kind}", None)
        return bool(judge(lit, options)) if judge else False

    def _marks_fit(self, marks: Marks, licensed: set[str | None], units: bool) -> bool:
        if not units or not marks or None in licensed:
            return bool(licensed)
        return all(mark in licensed for mark in marks)

    def _supports_number(self, lit: Literal, options: Options) -> bool:
        assert lit.value is not None
        if lit.suffix == "plural":
            return lit.value in self.plurals and not lit.grouped
        if lit.padded or lit.decimals > lit.natural_decimals + 2:
            return False
        if lit.suffix == "ordinal":
            if lit.value.denominator != 1 or lit.decimals:
                return False
            if lit.value in self.ordinals and not lit.marks:
                return True
        return self._marks_fit(lit.marks, self.plain.get(lit.value, set()), options.units)

    def _supports_word(self, lit: Literal, options: Options) -> bool:
        assert lit.value is not None
        if lit.suffix == "ordinal" and lit.value in self.ordinals:
            return True
        return lit.value in self.plain

    def _supports_list(self, lit: Literal, options: Options) -> bool:
        if not self.comma_decimals or lit.value is None or lit.decimals > lit.natural_decimals + 2:
            return False
        value = -lit.value if lit.negative and lit.value > 0 else lit.value
        return self._marks_fit(lit.marks, self.plain.get(value, set()), options.units)

    def _supports_pair(self, lit: Literal, options: Options) -> bool:
        if lit.negative or lit.suffix:
            return False
        first, second = lit.parts
        candidates = [(first, second)]
        year = _year_pair(lit.texts)
        if year is not None:
            candidates.append((first, Fraction(year)))
        return any(self._marks_fit(lit.marks, self.pairs.get(c, set()), options.units) for c in candidates)

    def _supports_ratio(self, lit: Literal, options: Options) -> bool:
        bare = not (lit.marks or lit.suffix or lit.negative)
        if bare and (lit.texts[0], lit.parts[0], lit.parts[1]) in self.ratios:
            return True
        if lit.value is None:
            return False
        return self._marks_fit(lit.marks, self.plain.get(lit.value, set()), options.units)

    def _supports_time(self, lit: Literal, options: Options) -> bool:
        if lit.negative or lit.marks or lit.suffix:
            return False
        if not all(self._supports_one_time(time) for time in lit.times):
            return False
        return len(lit.times) < 2 or any(
            _same_time(lit.times[0], a) and _same_time(lit.times[1], b) for a, b in self.time_pairs
        )

    def _supports_one_time(self, time: Time) -> bool:
        hour, minute, clock = time
        known = _hour_of_24(time)
        if clock:
            return known is not None and known in self.times
        return (hour, minute) in self.bare_times or (hour % 24, minute) in self.times

    def _supports_date(self, lit: Literal, options: Options) -> bool:
        if len(lit.days) == 2 and (lit.month, lit.days) not in self.date_ranges:
            return False
        for day in lit.days:
            years = self.dates.get((lit.month, day))
            if not years:
                return False
            known = years | (self.years if None in years else set())
            if lit.year is not None and lit.year not in known:
                return False
        return True

    def _supports_month(self, lit: Literal, options: Options) -> bool:
        return lit.month in self.months and lit.year in self.years

    def _supports_code(self, lit: Literal, options: Options) -> bool:
        return lit.canon in self.codes or (lit.canon.endswith("s") and lit.canon[:-1] in self.codes)

    # --- options that are off by default ---

    @cached_property
    def _rounded(self) -> dict[Fraction, set[str | None]]:
        found: dict[Fraction, set[str | None]] = defaultdict(set)
        for value, marks in self.plain.items():
            for digits in (1, 2, 3):
                found[_round(value, digits)] |= marks
        return found

    def rounds(self, lit: Literal, options: Options) -> bool:
        """Whether `lit` is a context value rounded to one, two or three significant digits."""
        if lit.kind not in ("number", "word") or lit.value is None or lit.suffix:
            return False
        return self._marks_fit(lit.marks, self._rounded.get(lit.value, set()), options.units)

    @cached_property
    def _derived(self) -> tuple[set[Fraction], list[Fraction]]:
        values = sorted({abs(value) for value in self.plain})
        results: set[Fraction] = set()
        rates: list[Fraction] = []
        for small, large in combinations(values, 2):
            results |= {small + large, large - small}
            if small:
                rates.append((large - small) / small * 100)
            rates.append((large - small) / large * 100)
        return results, sorted(rates)

    def derives(self, lit: Literal) -> bool:
        """Whether `lit` is a sum, a difference or a growth rate of two context values."""
        if lit.kind not in ("number", "word") or lit.value is None or lit.suffix:
            return False
        value = abs(lit.value)
        results, rates = self._derived
        if value in results:
            return True
        if "%" not in lit.marks:
            return False
        half = Fraction(1, 2 * 10 ** min(lit.decimals, 3))
        at = bisect_left(rates, value - half)
        return at < len(rates) and rates[at] <= value + half

    # --- prefixes of supported forms, for answers that were cut ---

    @cached_property
    def forms(self) -> list[str]:
        """Written forms that are supported, sorted: enough of them to recognise a beginning."""
        forms = set(self.raw) | {code + "s" for code in self.codes}
        for value in self.plain:
            forms |= _number_forms(abs(value))
        for day in self.ordinals:
            forms |= {f"{day}{suffix}" for suffix in lx.ORDINAL_SUFFIXES}
        for plural in self.plurals:
            forms |= {f"{plural}s", f"{int(plural):02d}s"}
        for first, second in self.pairs:
            for a in _number_forms(first):
                forms |= {f"{a}-{b}" for b in _number_forms(second)}
        for sep, left, right in self.ratios:
            forms.add(f"{left}{sep}{right}")
        forms |= self._time_forms() | self._date_forms()
        return sorted(forms)

    def _time_forms(self) -> set[str]:
        forms: set[str] = set()
        for hour, minute in self.bare_times:
            forms |= {f"{hour}:{minute:02d}", f"{hour}:{minute}", f"{hour:02d}:{minute:02d}"}
        for hour, minute in self.times:
            forms |= {f"{hour}:{minute:02d}", f"{hour:02d}:{minute:02d}"}
            clock = "p" if hour >= 12 else "a"
            for twelve in {str(hour % 12 or 12), f"{hour % 12 or 12:02d}"}:
                whole = [twelve] if not minute else []
                for base in (f"{twelve}:{minute:02d}", f"{twelve}.{minute:02d}", *whole):
                    for gap in ("", " "):
                        forms |= {f"{base}{gap}{clock}m", f"{base}{gap}{clock}.m."}
        for one, other in self.time_pairs:
            for a in _clock_forms(one):
                forms |= {f"{a}-{b}" for b in _clock_forms(other)}
        return forms

    def _date_forms(self) -> set[str]:
        forms: set[str] = set()
        names: dict[int, list[str]] = defaultdict(list)
        for name, month in _MONTH_NAMES.items():
            names[month].append(name)
            if name in lx.MONTH_ABBREVIATIONS:
                names[month].append(name + ".")
        for (month, day), years in self.dates.items():
            tails = {""}
            for year in (years - {None}) | (self.years if None in years else set()):
                tails |= {f", {year}", f" {year}"}
                forms.add(f"{year}-{month:02d}-{day:02d}")
            days = {str(day), f"{day:02d}", *(f"{day}{suffix}" for suffix in lx.ORDINAL_SUFFIXES)}
            for name in names[month]:
                for tail in tails:
                    for each in days:
                        forms |= {f"{name} {each}{tail}", f"{each} {name}{tail}", f"{each} of {name}{tail}"}
        for month in self.months:
            for name in names[month]:
                for year in self.years:
                    forms |= {f"{name} {year}", f"{name}, {year}"}
        return forms

    def begins(self, tail: str) -> bool:
        """Whether `tail`, canonical text, is a beginning of a supported form. Marks are not looked at."""
        signs = "+-" + "".join(lx.CURRENCY_SIGNS)
        for text in {tail, tail.lstrip(signs)}:
            if self._begins_form(text):
                return True
            head = _RE_PARTIAL_SUFFIX.sub("", text)
            if (
                head != text
                and any(s.startswith(text[len(head) :]) for s in _SUFFIXES)
                and self._is_form(head)
            ):
                return True
        return False

    def _begins_form(self, text: str) -> bool:
        at = bisect_left(self.forms, text)
        return at < len(self.forms) and self.forms[at].startswith(text)

    def _is_form(self, text: str) -> bool:
        at = bisect_left(self.forms, text)
        return at < len(self.forms) and self.forms[at] == text

    def begins_word(self, tail: str) -> bool:
        """Whether `tail` is a beginning of a supported value written in words."""
        plain = tail.replace("-", " ").replace(" and ", " ")
        values = (int(value) for value in {*self.plain, *self.ordinals} if value.denominator == 1)
        return any(words.startswith(plain) for value in values for words in _in_words(value))


# --- helpers ---

#: what may follow a number and leave its value as it is; a part of it may stand where a text was cut
_SUFFIXES = frozenset(
    {*lx.UNITS, *lx.PERCENT_SIGNS}
    | {f" {word}" for word in (*lx.PERCENT_WORDS, *lx.CURRENCY_WORDS, *lx.PERCENT_SIGNS)}
)
_RE_PARTIAL_SUFFIX = re.compile(r"(?<=[0-9]) ?[a-z%°/ ]*$")
_RE_MORE_DAYS = re.compile(r",? (?:and|or|to|through) ")


def _year_pair(texts: tuple[str, ...]) -> int | None:
    """The second year of `2021-22`, also of `1999-00`."""
    if not re.fullmatch(r"[12][0-9]{3}-[0-9]{2}", "-".join(texts)):
        return None
    first, short = int(texts[0]), int(texts[1])
    second = first - first % 100 + short
    if short == 0 and first % 100 == 99:
        second += 100
    return second if second > first else None


def _hour_of_24(time: Time) -> tuple[int, int] | None:
    """The time of day where it is known: with a clock suffix, or after noon in the 24 hour form."""
    hour, minute, clock = time
    if clock:
        if not 1 <= hour <= 12:
            written_twice = hour > 12 if clock == "pm" else hour == 0  # "20:00 PM", "0:00 AM"
            return (hour % 24, minute) if written_twice else None
        return hour % 12 + (12 if clock == "pm" else 0), minute
    return (hour % 24, minute) if hour > 12 else None


def _same_time(answer: Time, context: Time) -> bool:
    known, said = _hour_of_24(answer), _hour_of_24(context)
    if known is not None and said is not None:
        return known == said
    return answer[:2] == context[:2]


def _clock_forms(time: Time) -> set[str]:
    hour, minute, clock = time
    forms = {f"{hour}:{minute}", f"{hour}:{minute:02d}", f"{hour:02d}:{minute:02d}"}
    return forms | {f"{form}{clock}" for form in forms} if clock else forms


def _round(value: Fraction, digits: int) -> Fraction:
    """Rounded half away from zero to `digits` significant digits."""
    if value == 0:
        return value
    magnitude, exponent = abs(value), 0
    while magnitude >= 10:
        magnitude, exponent = magnitude / 10, exponent + 1
    while magnitude < 1:
        magnitude, exponent = magnitude * 10, exponent - 1
    scaled = magnitude * 10 ** (digits - 1)
    rounded = Fraction(int(scaled + Fraction(1, 2)))
    result = rounded * Fraction(10) ** (exponent - digits + 1)
    return result if value > 0 else -result


def _decimal(value: Fraction, places: int = 9) -> str | None:
    """`value` with as few decimals as state it, or None where it needs more than `places`."""
    for count in range(places + 1):
        scaled = value * 10**count
        if scaled.denominator == 1:
            digits = str(scaled.numerator).rjust(count + 1, "0")
            return digits if count == 0 else f"{digits[:-count]}.{digits[-count:]}"
    return None


def _number_forms(value: Fraction) -> set[str]:
    """Ways to write a value of zero or more."""
    forms: set[str] = set()
    whole = value.numerator // value.denominator
    for word, scale in {"": 1, **lx.SCALES}.items():
        text = _decimal(value / scale) if value >= scale / Fraction(1000) or scale == 1 else None
        if text is None:
            continue
        number, _, rest = text.partition(".")
        heads = {number, f"{int(number):,}"} | ({""} if number == "0" and rest else set())
        tails = {f".{rest}{zeros}" if rest or zeros else "" for zeros in ("", "0", "00")}
        ends = [""]
        if scale > 1:
            short = [a for a, s in lx.SCALE_ABBREVIATIONS.items() if s == scale]
            ends = [f" {word}", *short, *(f" {a}" for a in short if a in lx.SPACED_ABBREVIATIONS)]
        elif not rest:
            ends = ["", *lx.ORDINAL_SUFFIXES]
        forms |= {head + tail + end for head in heads for tail in tails for end in ends}
        if scale > 1 and value * 2 % scale == 0 and value % scale:  # 500 is "½ thousand" as well
            lead = str(value // scale or "")
            forms |= {half + end for half in (f"{lead}½", f"{lead} 1/2".strip()) for end in ends}
    fraction = value - whole
    for char, (numerator, denominator) in lx.VULGAR_FRACTIONS.items():
        if fraction and fraction == Fraction(numerator, denominator):
            lead = str(whole) if whole else ""
            forms |= {lead + char, f"{lead} {numerator}/{denominator}".strip()}
    return forms


_UNITS_IN_WORDS = {value: word for table in (lx.ONES, lx.TEENS, lx.TENS) for word, value in table.items()}
_ORDINALS_IN_WORDS = {value: word for word, value in {**lx.ORDINAL_ONES, **lx.ORDINALS}.items()}


def _in_words(value: int) -> set[str]:
    """A whole number in words, joined by blanks, without "and"; ordinals and "twenty fourteen" too."""
    if not 0 <= value < 10**15:
        return set()
    forms = {_cardinal(value)}
    if value in _ORDINALS_IN_WORDS:
        forms.add(_ORDINALS_IN_WORDS[value])
    elif 20 < value < 100 and value % 10:
        forms.add(f"{_UNITS_IN_WORDS[value - value % 10]} {_ORDINALS_IN_WORDS[value % 10]}")
    if 1100 <= value <= 2999 and value % 100 >= 10:
        forms.add(f"{_cardinal(value // 100)} {_cardinal(value % 100)}")
    if 1100 <= value <= 9900 and value % 100 == 0:
        forms.add(f"{_cardinal(value // 100)} hundred")
    return forms


def _cardinal(value: int) -> str:
    if value in _UNITS_IN_WORDS:
        return _UNITS_IN_WORDS[value]
    if value < 100:
        return f"{_UNITS_IN_WORDS[value - value % 10]} {_UNITS_IN_WORDS[value % 10]}"
    for word, scale in sorted({**lx.SCALES, **lx.HUNDRED}.items(), key=lambda item: -item[1]):
        if value >= scale:
            rest = f" {_cardinal(value % scale)}" if value % scale else ""
            return f"{_cardinal(value // scale)} {word}{rest}"
    return ""


# --- an answer ---

_RE_LINE_START = re.compile(r"(?:^|\n)[ *#>-]*$")
_RE_LONE_CITATION = re.compile(r"\[[0-9]+\]")
_RE_CITATION = re.compile(r"\[[0-9]+(?:, ?[0-9]+)*\]")


def check_answer(
    answer: str,
    context: str | ContextNumbers,
    *,
    passages: int = 1,
    number_words: bool = True,
    units: bool = True,
    rounding: bool = False,
    derived: bool = False,
    exempt: bool = True,
    cut: bool = False,
    prefix: str = "",
) -> list[Checked]:
    """Judge each literal of `answer` against `context`.

    A literal that only `rounding` or `derived` would support is "rounded" or "derivable" where that option is
    off. `cut`: the answer was cut from outside, so a last literal that reaches its end and begins a
    supported form is "unfinished". `prefix`: the prompt's text since its last blank, which a first literal
    may continue; a literal that starts in it is not judged.
    """
    numbers = context if isinstance(context, ContextNumbers) else ContextNumbers(context)
    options = Options(number_words, units, rounding, derived, exempt)
    whole = prefix + answer
    if cut:
        whole = whole.rstrip("\ufffd")
    shape = canonical(whole)
    cited = _citations(shape, passages) if exempt else set()
    marker = 0
    checked: list[Checked] = []
    literals = find_literals(whole)
    # where a supported form begins that the cut broke off; it may be of several literals: "731) 686-"
    broken = min((i.start for i in literals if cut and numbers.begins(shape[i.start :])), default=len(shape))
    for literal in literals:
        exempted = literal.start in cited
        if exempt and _is_marker(literal, shape, marker):
            exempted, marker = True, int(literal.canon)
        if literal.start < len(prefix) or (literal.kind == "word" and not number_words):
            continue
        status = _status(literal, numbers, options, exempted)
        if status != "supported" and cut:
            may = literal.start >= broken or _unfinished(literal, shape, numbers, marker, passages, exempt)
            status = "unfinished" if may else status
        start, end = literal.start, literal.end
        if status in ("unsupported", "derivable", "rounded") and (
            cite := _RE_LONE_CITATION.match(shape, start - 1)
        ):
            start, end = cite.span()  # the whole citation is what is wrong
        text = whole[start:end]
        checked.append(Checked(start - len(prefix), end - len(prefix), text, literal.kind, status))
    return checked


def _status(literal: Literal, numbers: ContextNumbers, options: Options, exempted: bool) -> Status:
    if numbers.supports(literal, options):
        return "supported"
    if exempted:
        return "exempt"
    if numbers.rounds(literal, options):
        return "supported" if options.rounding else "rounded"
    if numbers.derives(literal):
        return "supported" if options.derived else "derivable"
    return "unsupported"


def _is_marker(literal: Literal, shape: str, last: int) -> bool:
    """A list marker at the start of a line: 1 or one more than the last, closed by `. ` or `) `."""
    if literal.kind != "number" or not literal.canon.isdigit() or literal.canon not in ("1", str(last + 1)):
        return False
    closed = shape[literal.end : literal.end + 2] in (". ", ") ")
    return closed and bool(_RE_LINE_START.search(shape[: literal.start]))


def _citations(shape: str, passages: int) -> set[int]:
    """Where the numbers of citations start."""
    starts: set[int] = set()
    for match in _RE_CITATION.finditer(shape):
        numbers = list(re.finditer(r"[0-9]+", match[0]))
        if all(1 <= int(n[0]) <= passages and n[0][0] != "0" for n in numbers):
            starts |= {match.start() + n.start() for n in numbers}
    return starts


def _unfinished(
    literal: Literal, shape: str, numbers: ContextNumbers, marker: int, passages: int, exempt: bool
) -> bool:
    """Whether all from the start of `literal` to the end of the text begins something that may be said."""
    tail = shape[literal.start :]
    if literal.kind == "word" and numbers.begins_word(tail):
        return True
    if not exempt:
        return False
    listed = re.fullmatch(r"([0-9]+)[.)]?", tail)
    if listed and _RE_LINE_START.search(shape[: literal.start]):
        return any(str(n).startswith(listed[1]) for n in (1, marker + 1))
    opened = re.search(r"\[((?:[0-9]+, ?)*)([0-9]+)$", shape[-40:])
    if opened and shape.endswith(tail) and literal.start >= len(shape) - len(opened[0]):
        numbers_in = [int(n) for n in re.findall(r"[0-9]+", opened[1])]
        last_ok = any(str(n).startswith(opened[2]) for n in range(1, passages + 1))
        return last_ok and all(1 <= n <= passages for n in numbers_in)
    return False
