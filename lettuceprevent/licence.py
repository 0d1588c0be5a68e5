"""What the literals of a grounding license: every way to write what they state, as positions in a trie.

`Licence(text)` reads each literal, types it (number with a mark, date, clock time, pair, code) and enters
the forms that state the same. docs/literals.md is the specification; `surface.py` turns values into forms.

Cost: linear in the number of distinct literals of the context, about 0.1 ms each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from fractions import Fraction

import regex

from . import lexicon_en as lexicon
from .literals import COMMITTED, GOVERNED, LETTER, Literal, any_of, canonical, lexemes, literal_of
from .surface import (
    GROUPED,
    MAX_DIGITS,
    PLAIN,
    clock_styles,
    decimal_forms,
    fraction_forms,
    is_year,
    month_names,
    number_of,
    ordinal_suffix,
    readings,
    rounded,
    same_scale,
    scale_factor,
    scaled_forms,
    value_of_words,
    word_forms,
)
from .trie import Node, Position, Positions, trie_of

_DERIVE_AT_MOST = 48  # values that take part in sums and differences


def _after_blank(words: Iterable[str], *, glued: bool) -> list[str]:
    return [f" {w}" for w in words] + ([*words] if glued else [])


_PERCENT = trie_of(
    [
        *_after_blank(sorted(lexicon.PERCENT_SIGNS), glued=True),
        *_after_blank(sorted(lexicon.PERCENT_WORDS), glued=False),
    ]
)
_CURRENCY_WORD = {
    kind: trie_of(f" {w}" for w, k in lexicon.CURRENCY_WORDS.items() if k == kind)
    for kind in set(lexicon.CURRENCY_SIGNS.values())
}
_ORDINAL = trie_of(lexicon.ORDINAL_SUFFIXES)
_UNIT = trie_of(lexicon.UNITS - {"m"})
_CLOCK = {
    True: trie_of(_after_blank(sorted(lexicon.PM), glued=True)),
    False: trie_of(_after_blank(sorted(lexicon.AM), glued=True)),
}
_CLOSING = ".,;:!?)]}>\"'"
_CLOSINGS = Node()  # any number of them
for _mark in _CLOSING:
    _CLOSINGS.next[_mark] = _CLOSINGS
_CLOSINGS.ok = True
_KINDS = sorted(set(lexicon.CURRENCY_SIGNS.values()))

_SUFFIX = regex.compile(
    r"(?P<core>.*?)(?:"
    rf"(?P<ordinal>(?<=[0-9])(?:{any_of(lexicon.ORDINAL_SUFFIXES)}))"
    r"|(?P<plural>(?<=[0-9])s)"
    rf"|(?P<scale>(?: ?(?:{any_of(lexicon.SCALE_ABBREVIATIONS)})| (?:{any_of(lexicon.SCALES)})))?"
    rf"(?P<percent> ?(?:{any_of(lexicon.PERCENT_SIGNS)})| (?:{any_of(lexicon.PERCENT_WORDS)}))?"
    rf"(?P<currency> (?:{any_of(lexicon.CURRENCY_WORDS)}))?"
    rf"|(?P<clock> ?(?:{any_of(lexicon.AM | lexicon.PM)}))"
    rf"|(?P<unit>{any_of(lexicon.UNITS)}))"
)
_SIGN = f"[{''.join(map(regex.escape, lexicon.CURRENCY_SIGNS))}]"
_VULGAR = f"[{''.join(lexicon.VULGAR_FRACTIONS)}]"
_NUMBER = regex.compile(
    rf"(?P<lead>[-+]?{_SIGN}?|{_SIGN}[-+])"
    rf"(?P<run>\.[0-9]+|[0-9]+(?:[.,:/-][0-9]+)*(?P<vulgar>{_VULGAR})?|{_VULGAR}|[0-9]+ [0-9]/[0-9])"
)
_CLOCKS = regex.compile(r"([01]?[0-9]|2[0-4]):([0-5]?[0-9])")
#: what shows that a context writes times of day from 0 to 24: an hour above 12, or `11:0-1:0`
_CLOCK24 = regex.compile(
    r"(?<![0-9:.,/])(?:(?:1[3-9]|2[0-4]):[0-5]?[0-9](?![0-9:])"
    r"|[0-9]{1,2}:0-[0-9]{1,2}:[0-9]{1,2}(?![0-9:])|[0-9]{1,2}:[0-9]{2}-[0-9]{1,2}:0(?![0-9:]))"
)
_ISO = regex.compile(r"([12][0-9]{3})-([0-9]{1,2})-([0-9]{1,2})")
_SLASHED = regex.compile(r"([0-9]{1,2})/([0-9]{1,2})/([0-9]{4})")
_MONTH_NUMBER = {**lexicon.MONTHS, **lexicon.MONTH_ABBREVIATIONS}
_MONTH_WORD = "|".join(sorted(_MONTH_NUMBER, key=lambda w: -len(w)))
_MONTH_ALONE = regex.compile(rf"(?<![a-z_])({_MONTH_WORD})(?![a-z_])")
_DAYS = r"(?P<a>[0-9]{1,2})(?:st|nd|rd|th)?(?:-(?P<b>[0-9]{1,2})(?:st|nd|rd|th)?)?"
_WITH_YEAR = r"(?:,? (?P<year>[0-9]{4}))?"
_DATE_FIRST = regex.compile(rf"(?P<month>{_MONTH_WORD})\.?,? {_DAYS}{_WITH_YEAR}")
_DATE_LAST = regex.compile(rf"{_DAYS} (?:of )?(?P<month>{_MONTH_WORD})\.?{_WITH_YEAR}")
_MONTH_YEAR = regex.compile(rf"(?P<month>{_MONTH_WORD})\.?,? (?P<year>[12][0-9]{{3}})")
_MORE_DAYS = regex.compile(r",? (?:and|or|to|through) ")
_DAY = regex.compile(r"([0-9]{1,2})(?:st|nd|rd|th)?")
_AFTER_MONTH = regex.compile(rf"(?P<month>{_MONTH_WORD})\.?,? (?P<rest>[0-9].*)")
_LONG_YEAR = regex.compile(r"(?P<date>.*[a-z0-9.])(?:,? )(?P<run>[0-9]{4}[.,:/-][0-9].*)")
_WORD = regex.compile(rf"(?<![a-z0-9_{LETTER}])[a-z_{LETTER}]+")
_JOINED = regex.compile(r" (?:to|and|or) ")
_VAGUE = regex.compile(rf"(?:{'|'.join(sorted(lexicon.VAGUE_BEFORE_SCALE))})(?: of)? (?:an? )?$")


class Licence:
    """Everything one grounding licenses. `start` is the position before a literal; `literals` its sources
    in order."""

    def __init__(
        self,
        text: str,
        *,
        passages: int = 1,
        number_words: bool = True,
        units: bool = True,
        rounding: bool = False,
        derived: bool = False,
        exemptions: bool = True,
    ) -> None:
        self.text = text
        self.number_words = number_words
        self.units = units
        self.exemptions = exemptions
        self._positions = Positions()
        self._root = Node()
        self._numbers: dict[frozenset[str], Node] = {}  # marks allowed -> trie of unsigned forms
        self._negative: dict[frozenset[str], Node] = {}
        self._years: set[int] = set()
        self._dates: dict[tuple[int, int], tuple[set[int], int]] = {}
        self._values: dict[Fraction, tuple[set[str], int]] = {}  # value -> marks seen with it, first source
        self._clocks: list[tuple[int, int, bool, int]] = []
        self._month_years: set[tuple[int, int]] = set()
        self._pairs: list[tuple[str, str, str, str, int]] = []  # both parts, mark, scale, source
        self._clock_pairs: list[tuple[str, str, int]] = []
        self._day_pairs: list[tuple[int, int, int, int]] = []  # month, both days, source
        self._chars = canonical(text)
        self.literals: list[Literal] = []
        for lexeme in lexemes(self._chars):
            literal = literal_of(lexeme, self._chars)
            if literal is not None:
                self.literals.append(literal)
            if lexeme.reach > lexeme.end:
                # "5 millionaires" begins like 5 million, "in May 3D films" like a date: both may be copied
                self._root.add(self._chars[lexeme.start : lexeme.reach + 1], ok=False)
        self._clock24 = _CLOCK24.search(self._chars) is not None
        for index, literal in enumerate(self.literals):
            self._read(literal, index)
        self._months = {_MONTH_NUMBER[m] for m in _MONTH_ALONE.findall(self._chars)}
        self._months |= {month for month, _ in self._dates}  # "2014-06-01" is in June
        if derived:
            self._derive()
        if rounding:
            self._round()
        self._build()
        if exemptions:
            self._citations(passages)
        self.start = self._positions.of([self._root])

    # --- reading -----------------------------------------------------------------------------------------

    def _value(self, value: Fraction, marks: Iterable[str], source: int) -> None:
        seen, _ = self._values.setdefault(value, (set(), source))
        seen.update(marks)

    def _read(self, literal: Literal, index: int) -> None:
        text = literal.text
        if literal.marker:
            text = text[:-2]
        if literal.words:
            self._read_words(literal, index)
            return
        if text[0] == "[":
            self._root.add(text, index)
            for number in regex.findall("[0-9]+", text):
                self._value(Fraction(int(number)), [""], index)
            return
        self._verbatim(text, index)
        if self._read_date(literal, text, index):
            return
        suffix = _SUFFIX.fullmatch(text)
        number = _NUMBER.fullmatch(suffix["core"]) if suffix else None
        if self._read_around_month(text, index):
            return
        if suffix is None or number is None or text.startswith(("http", "www.")):
            self._root.add(text.removesuffix("s") if text.endswith("s") else text + "s", index)  # a code
            return
        self._read_number(suffix, number, text, index)

    def _verbatim(self, text: str, index: int) -> None:
        """The literal as it stands; an address with other punctuation after it."""
        if text.startswith(("http", "www.")):
            text = text.rstrip(_CLOSING)
            self._root.add(text, index, tails=(_CLOSINGS,))
        else:
            self._root.add(text, index)

    def _read_words(self, literal: Literal, index: int) -> None:
        text = literal.text.replace("-", " ")
        self._root.add(literal.text, index)
        if regex.search(_VAGUE, self._chars[max(0, literal.start - 24) : literal.start]):
            return  # "several hundred" states no value
        value = value_of_words(text)
        if value is None:
            return
        if text == "second":
            self._root.add("2nd", index)
            return
        self._value(value, [""], index)

    def _read_date(self, literal: Literal, text: str, index: int) -> bool:
        iso = _ISO.fullmatch(text)
        slashed = _SLASHED.fullmatch(text)
        month_year = _MONTH_YEAR.fullmatch(text)
        match = _DATE_FIRST.fullmatch(text) or _DATE_LAST.fullmatch(text)
        if month_year is not None:
            year = int(month_year["year"])
            self._years.add(year)
            self._value(Fraction(year), [""], index)
            self._month_years.add((_MONTH_NUMBER[month_year["month"]], year))
            return True
        if iso is not None:
            self._date(int(iso[2]), int(iso[3]), int(iso[1]), index)
            return True
        if slashed is not None:
            first, second, year = int(slashed[1]), int(slashed[2]), int(slashed[3])
            if first > 12 >= second:
                self._date(second, first, year, index)
            elif second > 12 >= first:
                self._date(first, second, year, index)
            return True
        if match is None:
            return False
        month = _MONTH_NUMBER[match["month"]]
        year_text = match["year"]
        days = [int(match["a"]), *([int(match["b"])] if match["b"] else [])]
        end = literal.end
        month_first = year_text is None and text[0].isalpha() and end > 0
        for following in self.literals[index + 1 :] if month_first else ():
            day = _DAY.fullmatch(following.text)
            if day is None or not _MORE_DAYS.fullmatch(self._chars[end : following.start]):
                break
            days.append(int(day[1]))
            end = following.end
        for day in days:
            self._date(month, day, int(year_text) if year_text else None, index)
        if len(days) == 2:
            self._day_pairs.append((month, days[0], days[1], index))
        return True

    def _read_around_month(self, text: str, index: int) -> bool:
        """A month with a number that makes no date of it: "may 3,000" states 3,000, "may 9, 2020-21" both."""
        long_year = _LONG_YEAR.fullmatch(text)
        if long_year is not None:
            date = Literal(0, 0, long_year["date"])
            rest = long_year["run"] if self._read_date(date, date.text, index) else ""
        else:
            after = _AFTER_MONTH.fullmatch(text)
            rest = after["rest"] if after is not None else ""
        suffix = _SUFFIX.fullmatch(rest)
        number = _NUMBER.fullmatch(suffix["core"]) if suffix else None
        if suffix is None or number is None:
            return False
        self._root.add(rest, index)
        self._read_number(suffix, number, rest, index)
        return True

    def _date(self, month: int, day: int, year: int | None, index: int) -> None:
        if not (1 <= month <= 12 and 1 <= day <= 31):
            return
        years, _ = self._dates.setdefault((month, day), (set(), index))
        if year is not None:
            years.add(year)
            self._years.add(year)
            self._value(Fraction(year), [""], index)

    def _read_number(self, suffix: regex.Match[str], number: regex.Match[str], text: str, index: int) -> None:
        run, lead = number["run"], number["lead"]
        if number["vulgar"] and any(c in run for c in ",:/-"):
            return
        negative = "-" in lead
        currency = next((lexicon.CURRENCY_SIGNS[c] for c in lead if c in lexicon.CURRENCY_SIGNS), None)
        if suffix["currency"]:
            currency = lexicon.CURRENCY_WORDS[suffix["currency"].strip()]
        mark = "%" if suffix["percent"] else currency or ""
        scale_name = (suffix["scale"] or "").strip()
        scale = scale_factor(scale_name)
        if suffix["clock"]:
            self._read_clock(run, suffix["clock"].strip(), index)
            return
        if suffix["plural"]:
            if len(run) == 4 and run.isdigit():
                self._root.add(run[2:] + "s", index)
            if len(run) == 2 and run.isdigit():
                # "in her 40s", "mid-30s"; "1990s" does not name the year 1990
                self._value(Fraction(run), [mark], index)
            return
        for reading in readings(run, decimal_comma=bool(suffix["percent"] or currency or scale_name)):
            value = reading * scale
            self._value(-value if negative else value, [mark], index)
            if value.denominator == 1 and scale == 1 and is_year(run):
                self._years.add(int(value))
        self._read_parts(run, scale_name, mark, index)

    def _read_parts(self, run: str, scale_name: str, mark: str, index: int) -> None:
        clock = _CLOCKS.fullmatch(run)
        if clock is not None and not scale_name:
            self._clock(int(clock[1]), int(clock[2]), index)
            return
        parts = run.split(",")
        grouped = GROUPED.fullmatch(run) is not None
        # "1,400" is no list, "101,102" may be
        listed = not grouped or (len(parts[0]) == 3 and "." not in run)
        if len(parts) > 1 and listed and not mark and not scale_name and not any(c in run for c in "-/:"):
            for part in parts:
                if PLAIN.fullmatch(part) and not (len(part) > 1 and part[0] == "0"):
                    self._value(Fraction(part), [mark], index)
        for separator in "-/:":
            parts = run.split(separator)
            if len(parts) != 2 or (separator == "-" and "/" in run):
                continue
            clocks = [_CLOCKS.fullmatch(p) for p in parts]
            if separator == "-" and clocks[0] and clocks[1]:
                for c in clocks:
                    assert c is not None
                    self._clock(int(c[1]), int(c[2]), index)
                self._clock_pairs.append((parts[0], parts[1], index))
                break
            if any(not (PLAIN.fullmatch(p) or GROUPED.fullmatch(p)) for p in parts):
                continue
            scale = scale_factor(scale_name)
            for part in parts:
                for reading in readings(part):
                    self._value(reading * scale, [mark], index)
                if scale == 1 and is_year(part):
                    self._years.add(int(part))
            if separator == "-":
                self._pairs.append((parts[0], parts[1], mark, scale_name, index))
                if len(parts[0]) == 4 and len(parts[1]) == 2:
                    self._value(Fraction(int(parts[0][:2] + parts[1])), [mark], index)
            elif (
                separator == "/"
                and all(p.isdigit() for p in parts)
                and 0 < int(parts[0]) < int(parts[1]) <= 10
            ):
                self._value(
                    Fraction(int(parts[0]), int(parts[1])) * scale, [mark], index
                )  # "3/4", not "10/10"
            break

    def _read_clock(self, run: str, suffix: str, index: int) -> None:
        pm = suffix in lexicon.PM
        for part in run.split("-"):
            match = _CLOCKS.fullmatch(part) or regex.fullmatch("([0-9]{1,2})(?:[.]([0-9]{2}))?", part)
            if match is None or not 0 <= int(match[1]) <= 24:
                continue
            hour = int(match[1])
            hour = hour % 12 + 12 * pm if hour <= 12 else hour
            self._clocks.append((hour, int(match[2] or 0), True, index))

    def _clock(self, hour: int, minute: int, index: int) -> None:
        self._clocks.append((hour % 24, minute, self._clock24 or hour > 12, index))

    # --- options that let more through -------------------------------------------------------------------

    def _derive(self) -> None:
        base = [(v, m, s) for v, (m, s) in self._values.items()][:_DERIVE_AT_MOST]
        for (a, marks_a, source), (b, marks_b, _) in itertools.permutations(base, 2):
            marks = marks_a & marks_b
            if not marks:
                continue
            if a > b:
                self._value(a - b, marks, source)
            self._value(a + b, marks, source)
            if b:
                rate = abs((a - b) / b) * 100
                for places in (0, 1, 2):
                    self._value(rounded(rate, places), ["%"], source)

    def _round(self) -> None:
        for value, (marks, source) in list(self._values.items()):
            if not value:
                continue
            size = len(str(abs(int(value)))) if abs(value) >= 1 else 0
            for significant in (1, 2, 3):
                places = significant - size
                self._value(rounded(value, places), marks, source)
                step = Fraction(10) ** -places
                self._value((value // step) * step, marks, source)

    # --- building ----------------------------------------------------------------------------------------

    def _trie(self, marks: set[str], *, negative: bool = False) -> tuple[Node, frozenset[str]]:
        bare = "" in marks or not self.units
        allowed = frozenset({"%", *_KINDS}) if bare else frozenset(marks & {"%", *_KINDS})
        tries = self._negative if negative else self._numbers
        return tries.setdefault(allowed, Node()), allowed

    def _build(self) -> None:
        for value, (marks, source) in self._values.items():
            self._number(abs(value), marks, source, signed=value < 0)
        # a leading sign or currency mark opens the tries whose marks allow it
        root = self._root
        for tries, entry in ((self._numbers, root), (self._negative, root.add("-", ok=False))):
            for allowed, trie in tries.items():
                entry.tails = (*entry.tails, trie)
                for sign, kind in lexicon.CURRENCY_SIGNS.items():
                    if kind in allowed:
                        node = entry.add(sign, ok=False)
                        node.tails = (*node.tails, trie)
                        if entry is not root:
                            other = root.add(sign + "-", ok=False)
                            other.tails = (*other.tails, trie)
        plus = root.add("+", ok=False)
        plus.tails = tuple(t for t in root.tails)
        for pair in self._pairs:
            self._pair(*pair)
        for clocks in self._clock_pairs:
            self._clock_pair(*clocks)
        for month, first, last, source in self._day_pairs:
            for name in month_names(month):
                self._root.add(f"{name} {first}-{last}", source)
                self._root.add(f"{first}-{last} {name}", source)
        self._joined_pairs()
        self._build_dates()
        for hour, minute, known, source in set(self._clocks):
            self._build_clock(hour, minute, known, source)
        for word, (hour, minute) in lexicon.CLOCK_WORDS.items():
            if regex.search(rf"(?<![a-z]){word}(?![a-z])", self._chars):
                self._build_clock(hour, minute, True, -1)
        for word in set(_WORD.findall(self._chars)):
            self._ordinary_word(word)

    def _ordinary_word(self, word: str) -> None:
        """A word of the context that begins like a number word ("tenure") may be copied."""
        if word not in GOVERNED and any(word[:i] in COMMITTED for i in range(3, len(word) + 1)):
            self._root.add(word, ok=False)

    def _number(self, value: Fraction, marks: set[str], source: int, *, signed: bool) -> None:
        targets = [self._trie(marks)]
        if signed:
            targets.append(self._trie(marks, negative=True))
        for trie, allowed in targets:
            after = tuple(_CURRENCY_WORD[k] for k in _KINDS if k in allowed)
            tails = (*after, *((_PERCENT,) if "%" in allowed else ()))
            for form in decimal_forms(value):
                zeros = (".0", ".00") if "." not in form else ("0",) if form[-2] == "." else ()
                whole = (_ORDINAL,) if value.denominator == 1 and "," not in form else ()
                node = trie.add(form, source, tails=(*tails, *whole, _UNIT))
                for more in zeros if len(form) <= MAX_DIGITS else ():
                    node.add(more, source, tails=(*tails, _UNIT))
            for form in fraction_forms(value):
                trie.add(form, source, tails=(*tails, _UNIT))
            for form in scaled_forms(value):
                trie.add(form, source, tails=tails)
        if self.number_words and not signed:
            for form in word_forms(value):
                self._root.add(form, source)

    def _pair(self, a: str, b: str, mark: str, scale: str, source: int) -> None:
        _, allowed = self._trie({mark})
        tails = (
            *(_CURRENCY_WORD[k] for k in _KINDS if k in allowed),
            *((_PERCENT,) if "%" in allowed else ()),
        )
        ends = {b}
        if len(a) == 4 and len(b) == 2 and a.isdigit():
            ends.add(a[:2] + b)
        if len(a) == 4 and len(b) == 4 and a[:2] == b[:2]:
            ends.add(b[2:])
        for end in ends:
            first, second = number_of(a), number_of(end)
            if first is None or second is None:
                continue
            for form_a in decimal_forms(first) if len(a) != 4 else [a]:
                for form_b in decimal_forms(second) if end == b and len(b) > 4 else [end]:
                    form = f"{form_a}-{form_b}"
                    if scale:
                        for name in same_scale(scale):
                            self._root.add(form + name, source, tails=tails)
                        continue
                    self._root.add(form, source, tails=(*tails, _UNIT))
                    for sign, kind in lexicon.CURRENCY_SIGNS.items():
                        if kind == mark:
                            self._root.add(sign + form, source, tails=tails)

    def _joined_pairs(self) -> None:
        """`10 to 15` and `10 and 15` of the context license the pair `10-15`."""
        for index, (left, right) in enumerate(itertools.pairwise(self.literals)):
            if not _JOINED.fullmatch(self._chars[left.end : right.start]):
                continue
            ends = []
            for literal in (left, right):
                match = _SUFFIX.fullmatch(literal.text)
                core = match["core"] if match else ""
                if literal.words:
                    value = value_of_words(literal.text)
                    core = str(value) if value is not None else ""
                    match = None
                ends.append((core, (match["scale"] or "").strip() if match else "", match))
            (a, scale_a, _), (b, scale_b, match) = ends
            if not (PLAIN.fullmatch(a) or GROUPED.fullmatch(a)):
                continue
            if not (PLAIN.fullmatch(b) or GROUPED.fullmatch(b)):
                continue
            if scale_a and scale_a != scale_b:
                continue
            mark = "%" if match is not None and match["percent"] else ""
            self._pair(a, b, mark, scale_b, index)

    def _clock_pair(self, a: str, b: str, source: int) -> None:
        times = []
        for part in (a, b):
            hour, minute = part.split(":")
            times.append((int(hour) % 24, int(minute)))
        for style_a, style_b in zip(*(clock_styles(h, m) for h, m in times), strict=True):
            self._root.add(f"{style_a}-{style_b}", source)
        pm = times[1][0] >= 12
        known = self._clock24 or any(h > 12 for h, _ in times)
        if known:
            twelve = [clock_styles(h % 12 or 12, m)[1] for h, m in times]
            self._root.add("-".join(twelve), source, ok=False, tails=(_CLOCK[pm],))
            if times[0][1] == times[1][1] == 0:
                self._root.add(
                    "-".join(str(h % 12 or 12) for h, _ in times), source, ok=False, tails=(_CLOCK[pm],)
                )

    def _build_clock(self, hour: int, minute: int, known: bool, source: int) -> None:
        full = hour > 12 or (hour == 0 and known)  # hosts write "20:00 PM", "0:00 AM"
        for style in {*clock_styles(hour, minute)[minute > 0 :]}:
            self._root.add(style, source, tails=(_CLOCK[hour > 12],) if full else ())
        if known or hour > 12:
            twelve = hour % 12 or 12
            suffix = _CLOCK[hour >= 12]
            forms = [f"{twelve}:{minute:02d}", f"{twelve:02d}:{minute:02d}", f"{twelve}.{minute:02d}"]
            if minute == 0:
                forms += [str(twelve)]
            for form in forms:
                self._root.add(form, source, ok=False, tails=(suffix,))
            if hour in (0, 12) and minute == 0:
                self._root.add("midnight" if hour == 0 else "noon", source)

    def _build_dates(self) -> None:
        free = self._year_tail(self._years)
        for (month, day), (years, source) in self._dates.items():
            tail = self._year_tail(years) if years else free
            for name in month_names(month):
                for suffix in ("", ordinal_suffix(day)):
                    for text in {str(day), f"{day:02d}"} if not suffix else {str(day)}:
                        self._root.add(f"{name} {text}{suffix}", source, tails=(tail,))
                        if name != "may":
                            self._root.add(f"{text}{suffix} {name}", source, tails=(tail,))
                        elif tail.next:  # "5 may" is no date without a year
                            self._root.add(f"{text}{suffix} {name}", source, ok=False, tails=(tail,))
                        self._root.add(f"{text}{suffix} of {name}", source, tails=(tail,))
            self._root.add(f"{day}{ordinal_suffix(day)}", source)
            for year in years:
                self._root.add(f"{year}-{month:02d}-{day:02d}", source)
        for month in range(1, 13):
            years = {y for m, y in self._month_years if m == month}
            if month in self._months:
                years |= self._years
            if years:
                tail = self._year_tail(years)
                for name in month_names(month):
                    self._root.add(name, ok=False, tails=(tail,))

    def _year_tail(self, years: Iterable[int]) -> Node:
        return trie_of(f"{joint}{y}" for y in sorted(years) for joint in (", ", " "))

    def _citations(self, passages: int) -> None:
        opening = self._root.add("[", ok=False)
        again = Node()
        opening.tails = (*opening.tails, again)
        for number in range(1, passages + 1):
            node = again.add(str(number), ok=False)
            node.add("]")
            node.add(",", ok=False, tails=(again,))
            node.add(", ", ok=False, tails=(again,))

    # --- positions ---------------------------------------------------------------------------------------

    def start_at_line(self, last_marker: int) -> Position:
        """The start where a list marker may stand: 1, or one more than the last."""
        if not self.exemptions:
            return self.start
        marker = Node()
        for number in sorted({1, last_marker + 1}):
            for closing in (". ", ") "):
                marker.add(f"{number}{closing}")
        return self._positions.of([self._root, marker])
