"""Values to surface forms: what the literals of a grounding license, as one non-deterministic automaton over characters.

`licence(grounding)` reads every literal of the passages and the query, types it (number with a mark, date, clock time, pair, code …)
and enters each way to write the same value into a trie. Endings that many forms share (percent marks, currency words,
ordinal and unit suffixes, more zeros, years) are tries of their own, joined by empty moves (`Node.tails`). `Position` is the subset
construction over it, made lazily and remembered: one dictionary look-up per character. docs/literals.md is the specification.

Cost: linear in the number of distinct literals of the context; about 0.1 ms each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from fractions import Fraction

import regex

from . import lexicon_en as lexicon
from .literals import GOVERNED, NUMBER_WORDS, Literal, canonical, has_digit, scan

_MAX_DIGITS = 24  # longer digit strings license themselves only
_DERIVE_AT_MOST = 48  # values that take part in sums and differences


class Node:
    """A trie node: `ok` where a form ends, `tails` the tries that may follow, `source` the literal that licenses the form."""

    __slots__ = ("next", "ok", "source", "tails")

    def __init__(self) -> None:
        self.next: dict[str, Node] = {}
        self.ok = False
        self.tails: tuple[Node, ...] = ()
        self.source = -1

    def add(self, form: str, source: int = -1, *, ok: bool = True, tails: tuple[Node, ...] = ()) -> Node:
        node = self
        for char in form:
            following = node.next.get(char)
            if following is None:
                following = node.next[char] = Node()
            node = following
        if ok and not node.ok:
            node.ok, node.source = True, source
        for tail in tails:
            if tail not in node.tails:
                node.tails = (*node.tails, tail)
        return node


class Position:
    """A set of nodes, closed under tails: where the forms that fit the text so far stand. Interned by its `Licence`."""

    __slots__ = ("_licence", "next", "nodes", "ok", "source")

    def __init__(self, nodes: tuple[Node, ...], licence: Licence) -> None:
        self.nodes = nodes
        self.next: dict[str, Position | None] = {}
        self.ok = any(n.ok for n in nodes)
        self.source = max((n.source for n in nodes if n.ok), default=-1)
        self._licence = licence

    def step(self, char: str) -> Position | None:
        """The position after one more canonical character; None where no form goes on like this."""
        try:
            return self.next[char]
        except KeyError:
            nodes = [n.next[char] for n in self.nodes if char in n.next]
            position = self.next[char] = self._licence.position(nodes) if nodes else None
            return position


def _tail(forms: Iterable[str]) -> Node:
    root = Node()
    for form in forms:
        root.add(form)
    return root


def _after_blank(words: Iterable[str], *, glued: bool) -> list[str]:
    return [f" {w}" for w in words] + ([*words] if glued else [])


_PERCENT = _tail(
    [
        *_after_blank(sorted(lexicon.PERCENT_SIGNS), glued=True),
        *_after_blank(sorted(lexicon.PERCENT_WORDS), glued=False),
    ]
)
_CURRENCY_WORD = {
    kind: _tail(f" {w}" for w, k in lexicon.CURRENCY_WORDS.items() if k == kind)
    for kind in set(lexicon.CURRENCY_SIGNS.values())
}
_ORDINAL = _tail(lexicon.ORDINAL_SUFFIXES)
_UNIT = _tail(lexicon.UNITS - {"m"})
_POINT_ZEROS = _tail([".0", ".00"])
_ONE_ZERO = _tail(["0"])
_CLOCK = {
    True: _tail(_after_blank(sorted(lexicon.PM), glued=True)),
    False: _tail(_after_blank(sorted(lexicon.AM), glued=True)),
}
_KINDS = sorted(set(lexicon.CURRENCY_SIGNS.values()))

_SUFFIX = regex.compile(
    r"(?P<core>.*?)(?:(?P<ordinal>(?<=[0-9])(?:%s))|(?P<plural>(?<=[0-9])s)"
    r"|(?P<scale>(?: ?(?:%s)| (?:%s)))?(?P<percent> ?%%| (?:percent|per cent|pct))?(?P<currency> (?:%s))?|(?P<clock> ?(?:%s))|(?P<unit>%s))"
    % tuple(
        "|".join(sorted(map(regex.escape, words), key=lambda w: -len(w)))
        for words in (
            lexicon.ORDINAL_SUFFIXES,
            lexicon.SCALE_ABBREVIATIONS,
            lexicon.SCALES,
            lexicon.CURRENCY_WORDS,
            lexicon.AM | lexicon.PM,
            lexicon.UNITS,
        )
    )
)
_NUMBER = regex.compile(
    r"(?P<lead>[-+]?[%(c)s]?|[%(c)s][-+])(?P<run>\.[0-9]+|[0-9]+(?:[.,:/-][0-9]+)*(?P<vulgar>[%(v)s])?|[%(v)s]|[0-9]+ [0-9]/[0-9])"
    % {"c": "".join(map(regex.escape, lexicon.CURRENCY_SIGNS)), "v": "".join(lexicon.VULGAR_FRACTIONS)}
)
_GROUPED = regex.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}")
_PLAIN = regex.compile(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+")
_CLOCKS = regex.compile(r"([01]?[0-9]|2[0-4]):([0-5]?[0-9])")
_ISO = regex.compile(r"([12][0-9]{3})-([0-9]{1,2})-([0-9]{1,2})")
_SLASHED = regex.compile(r"([0-9]{1,2})/([0-9]{1,2})/([0-9]{4})")
_MONTH_NUMBER = {**lexicon.MONTHS, **lexicon.MONTH_ABBREVIATIONS}
_MONTH_WORD = "|".join(sorted(_MONTH_NUMBER, key=lambda w: -len(w)))
_MONTH_ALONE = regex.compile(rf"(?<![a-z_])({_MONTH_WORD})(?![a-z_])")
_MONTH_BEFORE = regex.compile(rf"(?<![a-z_])(?:{_MONTH_WORD})\.?,? $")
_DATE_FIRST = regex.compile(
    rf"(?P<month>{_MONTH_WORD})\.?(?P<comma>,?) (?P<a>[0-9]{{1,2}})(?:st|nd|rd|th)?(?:-(?P<b>[0-9]{{1,2}})(?:st|nd|rd|th)?)?(?:,? (?P<year>[0-9]{{4}}))?"
)
_DATE_LAST = regex.compile(
    rf"(?P<a>[0-9]{{1,2}})(?:st|nd|rd|th)?(?:-(?P<b>[0-9]{{1,2}})(?:st|nd|rd|th)?)? (?:of )?(?P<month>{_MONTH_WORD})\.?(?:,? (?P<year>[0-9]{{4}}))?"
)
_MONTH_YEAR = regex.compile(rf"(?P<month>{_MONTH_WORD})\.?,? (?P<year>[12][0-9]{{3}})")
_MORE_DAYS = regex.compile(
    r"(?:,? and| to| through|,| or) ([0-9]{1,2})(?:st|nd|rd|th)?(?![0-9a-z_]|[.,:/-][0-9])"
)
_JOINED = regex.compile(r" (?:to|and|or) ")
_VAGUE = regex.compile(rf"(?:{'|'.join(sorted(lexicon.VAGUE_BEFORE_SCALE))})(?: of)? (?:an? )?$")


class Licence:
    """Everything one grounding licenses. `start` is the position before a literal; `literals` its sources in order."""

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
        self._positions: dict[tuple[int, ...], Position] = {}
        self._root = Node()
        self._numbers: dict[frozenset[str], Node] = {}  # marks allowed -> trie of unsigned forms
        self._negative: dict[frozenset[str], Node] = {}
        self._years: set[int] = set()
        self._dates: dict[tuple[int, int], tuple[set[int], int]] = {}
        self._values: dict[Fraction, tuple[set[str], int]] = {}  # value -> marks seen with it, first source
        self._clocks: list[tuple[int, int, bool, int]] = []
        self._month_years: set[tuple[int, int]] = set()
        self._pairs: list[tuple[str, str, set[str], str, int]] = []
        self._chars = canonical(text)
        self.literals: list[Literal] = list(scan(self._chars, canonical_text=True))
        has_suffix = regex.search(r"[0-9] ?(?:am|a\.m|pm|p\.m)(?![a-z])", self._chars) is not None
        hours = [int(h) for h in regex.findall(r"(?<![0-9:.])([0-9]{1,2}):[0-9]{1,2}(?![0-9])", self._chars)]
        self._clock24 = not has_suffix and any(h > 12 for h in hours)
        for index, literal in enumerate(self.literals):
            self._read(literal, index)
        self._months = {_MONTH_NUMBER[m] for m in _MONTH_ALONE.findall(self._chars)}
        if derived:
            self._derive()
        if rounding:
            self._round()
        self._build()
        if exemptions:
            self._citations(passages)
        self.start = self.position([self._root])

    # --- reading -------------------------------------------------------------------------------------------------

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
            for number in regex.findall("[0-9]+", text):
                self._value(Fraction(int(number)), [""], index)
            return
        self._verbatim(literal, text, index)
        if self._read_date(literal, text, index):
            return
        suffix = _SUFFIX.fullmatch(text)
        number = _NUMBER.fullmatch(suffix["core"]) if suffix else None
        if suffix is None or number is None or text.startswith(("http", "www.")):
            self._root.add(text.removesuffix("s") if text.endswith("s") else text + "s", index)  # a code
            return
        self._read_number(suffix, number, text, index)

    def _verbatim(self, literal: Literal, text: str, index: int) -> None:
        """The literal as it stands, and, where what follows looks like more of it ("5 millionaires"), with that word."""
        self._root.add(text, index)
        month = _MONTH_BEFORE.search(self._chars, max(0, literal.start - 12), literal.start)
        if month is not None:  # "in May 3D films": begins like the date May 3
            self._root.add(month[0] + text, index, ok=False)
        following = regex.compile(r" [a-z]+").match(self._chars, literal.start + len(text))
        if following is not None:
            self._root.add(text + following[0], index, ok=False)
        if text.startswith(("http", "www.")):
            for cut in range(1, 4):
                if text[-cut] not in ".,;:!?)]\"'>":
                    break
                self._root.add(text[:-cut], index)

    def _read_words(self, literal: Literal, index: int) -> None:
        text = literal.text.replace("-", " ")
        self._root.add(literal.text, index)
        following = regex.compile("(?: and |[ -])[a-z]+").match(self._chars, literal.end)
        if following is not None:  # "four hundredths" begins like "four hundred"
            self._root.add(literal.text + following[0], index, ok=False)
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
        if year_text is None:
            while more := _MORE_DAYS.match(self._chars, end):
                days.append(int(more[1]))
                end = more.end()
        for day in days:
            self._date(month, day, int(year_text) if year_text else None, index)
        if len(days) == 2:
            self._pairs.append((str(days[0]), str(days[1]), {f"month {month}"}, "", index))
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
        scale = lexicon.SCALES.get(scale_name) or lexicon.SCALE_ABBREVIATIONS.get(scale_name) or 1
        if suffix["clock"]:
            self._read_clock(run, suffix["clock"].strip(), index)
            return
        if suffix["plural"]:
            if len(run) == 4 and run.isdigit():
                self._root.add(run[2:] + "s", index)
            if (
                len(run) == 2 and run.isdigit()
            ):  # "in her 40s", "mid-30s"; "1990s" does not name the year 1990
                self._value(Fraction(run), [mark], index)
            return
        for reading in _readings(run, decimal_comma=bool(suffix["percent"] or currency or scale_name)):
            value = reading * scale
            self._value(-value if negative else value, [mark], index)
            if value.denominator == 1 and scale == 1 and _is_year(run):
                self._years.add(int(value))
        self._read_parts(run, scale_name, mark, index)

    def _read_parts(self, run: str, scale_name: str, mark: str, index: int) -> None:
        clock = _CLOCKS.fullmatch(run)
        if clock is not None and not scale_name:
            self._clock(int(clock[1]), int(clock[2]), index)
            return
        if "," in run and not _GROUPED.fullmatch(run) or "," in run and "." not in run:
            parts = run.split(",")
            if len(parts) > 1 and "-" not in run and "/" not in run and ":" not in run:
                for part in parts:
                    if _PLAIN.fullmatch(part) and not (len(part) > 1 and part[0] == "0"):
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
                self._pairs.append((parts[0], parts[1], {"clock"}, "", index))
                break
            if any(not (_PLAIN.fullmatch(p) or _GROUPED.fullmatch(p)) for p in parts):
                continue
            scale = lexicon.SCALES.get(scale_name) or lexicon.SCALE_ABBREVIATIONS.get(scale_name) or 1
            for part in parts:
                for reading in _readings(part):
                    self._value(reading * scale, [mark], index)
                if scale == 1 and _is_year(part):
                    self._years.add(int(part))
            if separator == "-":
                self._pairs.append((parts[0], parts[1], {mark}, scale_name, index))
                if len(parts[0]) == 4 and len(parts[1]) == 2:
                    self._value(Fraction(int(parts[0][:2] + parts[1])), [mark], index)
            elif separator == "/" and int(parts[1].replace(",", "").split(".")[0] or 0):
                self._value(Fraction(number_of(parts[0]) or 0) / (number_of(parts[1]) or 1), [mark], index)
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

    # --- options that let more through -----------------------------------------------------------------------------

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
                    self._value(_rounded(rate, places), ["%"], source)

    def _round(self) -> None:
        for value, (marks, source) in list(self._values.items()):
            if not value:
                continue
            size = len(str(abs(int(value)))) if abs(value) >= 1 else 0
            for significant in (1, 2, 3):
                places = significant - size
                self._value(_rounded(value, places), marks, source)
                step = Fraction(10) ** -places
                self._value((value // step) * step, marks, source)

    # --- building --------------------------------------------------------------------------------------------------

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
        self._joined_pairs()
        self._build_dates()
        for hour, minute, known, source in set(self._clocks):
            self._build_clock(hour, minute, known, source)
        for word, (hour, minute) in lexicon.CLOCK_WORDS.items():
            if regex.search(rf"(?<![a-z]){word}(?![a-z])", self._chars):
                self._build_clock(hour, minute, True, -1)
        for word in set(regex.findall(r"(?<![a-z0-9_])[a-z]+", self._chars)):
            self._ordinary_word(word)

    def _ordinary_word(self, word: str) -> None:
        """A word of the context that begins like a number word ("tenure") may be copied."""
        if word not in GOVERNED and any(word[:i] in GOVERNED for i in range(3, len(word))):
            self._root.add(word, ok=False)

    def _number(self, value: Fraction, marks: set[str], source: int, *, signed: bool) -> None:
        targets = [self._trie(marks)]
        if signed:
            targets.append(self._trie(marks, negative=True))
        for trie, allowed in targets:
            after = tuple(_CURRENCY_WORD[k] for k in _KINDS if k in allowed)
            tails = (*after, *((_PERCENT,) if "%" in allowed else ()))
            for form in decimal_forms(value):
                more = _POINT_ZEROS if "." not in form else _ONE_ZERO if form[-2] == "." else None
                whole = (_ORDINAL,) if value.denominator == 1 and "," not in form else ()
                node = trie.add(form, source, tails=(*tails, *whole, _UNIT))
                if more is not None and len(form) <= _MAX_DIGITS:
                    zeros = _tail_with(more, (*tails, _UNIT), source)
                    node.tails = (*node.tails, zeros)
            for form in fraction_forms(value):
                trie.add(form, source, tails=(*tails, _UNIT))
            for form in scaled_forms(value):
                trie.add(form, source, tails=tails)
        if self.number_words and not signed:
            for form in word_forms(value):
                self._root.add(form, source)

    def _pair(self, a: str, b: str, marks: set[str], scale: str, source: int) -> None:
        if "clock" in marks:
            return self._clock_pair(a, b, source)
        month = next((int(m.split()[1]) for m in marks if m.startswith("month")), None)
        if month is not None:
            for name in month_names(month):
                self._root.add(f"{name} {a}-{b}", source)
                self._root.add(f"{a}-{b} {name}", source)
            return None
        _, allowed = self._trie(marks)
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
                        for name in _same_scale(scale):
                            self._root.add(form + name, source, tails=tails)
                        continue
                    self._root.add(form, source, tails=(*tails, _UNIT))
                    for sign, kind in lexicon.CURRENCY_SIGNS.items():
                        if kind in allowed and kind in marks:
                            self._root.add(sign + form, source, tails=tails)
        return None

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
            if not (_PLAIN.fullmatch(a) or _GROUPED.fullmatch(a)):
                continue
            if not (_PLAIN.fullmatch(b) or _GROUPED.fullmatch(b)):
                continue
            if scale_a and scale_a != scale_b:
                continue
            mark = "%" if match is not None and match["percent"] else ""
            self._pair(a, b, {mark}, scale_b, index)

    def _clock_pair(self, a: str, b: str, source: int) -> None:
        times = []
        for part in (a, b):
            hour, minute = part.split(":")
            times.append((int(hour) % 24, int(minute)))
        for style_a, style_b in zip(*(_clock_styles(h, m) for h, m in times), strict=True):
            self._root.add(f"{style_a}-{style_b}", source)
        pm = times[1][0] >= 12
        known = self._clock24 or any(h > 12 for h, _ in times)
        if known:
            twelve = [_clock_styles(h % 12 or 12, m)[1] for h, m in times]
            self._root.add("-".join(twelve), source, ok=False, tails=(_CLOCK[pm],))
            if times[0][1] == times[1][1] == 0:
                self._root.add(
                    "-".join(str(h % 12 or 12) for h, _ in times), source, ok=False, tails=(_CLOCK[pm],)
                )

    def _build_clock(self, hour: int, minute: int, known: bool, source: int) -> None:
        if known or hour > 12:
            for style in set(_clock_styles(hour, minute)[1:]):
                self._root.add(style, source)
            twelve = hour % 12 or 12
            suffix = _CLOCK[hour >= 12]
            forms = [f"{twelve}:{minute:02d}", f"{twelve:02d}:{minute:02d}", f"{twelve}.{minute:02d}"]
            if minute == 0:
                forms += [str(twelve)]
            for form in forms:
                self._root.add(form, source, ok=False, tails=(suffix,))
            if minute == 0 or known:
                self._root.add(f"{twelve}:{minute:02d}", source)
            if hour in (0, 12) and minute == 0:
                self._root.add("midnight" if hour == 0 else "noon", source)
        else:
            for style in set(_clock_styles(hour, minute)[1:]):
                self._root.add(style, source)

    def _build_dates(self) -> None:
        free = self._year_tail(self._years)
        for (month, day), (years, source) in self._dates.items():
            tail = self._year_tail(years) if years else free
            for name in month_names(month):
                for suffix in ("", _ordinal_suffix(day)):
                    for text in {str(day), f"{day:02d}"} if not suffix else {str(day)}:
                        self._root.add(f"{name} {text}{suffix}", source, tails=(tail,))
                        first = self._root.add(f"{text}{suffix} {name}", source, ok=True, tails=(tail,))
                        first.ok = True
                        self._root.add(f"{text}{suffix} of {name}", source, tails=(tail,))
            self._root.add(f"{day}{_ordinal_suffix(day)}", source)
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
        return _tail(f"{joint}{y}" for y in sorted(years) for joint in (", ", " "))

    def _citations(self, passages: int) -> None:
        opening = self._root.add("[", ok=False)
        again = Node()
        opening.tails = (*opening.tails, again)
        for number in range(1, passages + 1):
            node = again.add(str(number), ok=False)
            node.add("]")
            node.add(",", ok=False, tails=(again,))
            node.add(", ", ok=False, tails=(again,))

    # --- positions ---------------------------------------------------------------------------------------------------

    def position(self, nodes: Iterable[Node]) -> Position:
        """The interned position for a set of nodes, closed under tails."""
        closed: dict[int, Node] = {}
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if id(node) not in closed:
                closed[id(node)] = node
                stack.extend(node.tails)
        key = tuple(sorted(closed))
        position = self._positions.get(key)
        if position is None:
            position = self._positions[key] = Position(tuple(closed.values()), self)
        return position

    def start_at_line(self, last_marker: int) -> Position:
        """The start where a list marker may stand: 1, or one more than the last."""
        if not self.exemptions:
            return self.start
        marker = Node()
        for number in sorted({1, last_marker + 1}):
            for closing in (". ", ") ", ".\n", ")\n"):
                marker.add(f"{number}{closing}")
        return self.position([self._root, marker])


def _tail_with(zeros: Node, tails: tuple[Node, ...], source: int) -> Node:
    root = Node()
    for form in (".0", ".00") if zeros is _POINT_ZEROS else ("0",):
        root.add(form, source, tails=tails)
    return root


# --- values ------------------------------------------------------------------------------------------------------------


def number_of(run: str) -> Fraction | None:
    """The value of a plain or grouped run of digits ("2,400.5"), or None."""
    if _PLAIN.fullmatch(run) or _GROUPED.fullmatch(run):
        digits = run.replace(",", "")
        return Fraction(digits) if len(digits) <= 2 * _MAX_DIGITS else None
    return None


def _is_year(run: str) -> bool:
    return len(run) == 4 and run.isdigit() and "1000" <= run <= "2999"


def _readings(run: str, *, decimal_comma: bool = False) -> list[Fraction]:
    """The values a run of one number may state: plain, grouped, comma decimal, with a vulgar or one-digit fraction."""
    if run[-1] in lexicon.VULGAR_FRACTIONS:
        part = Fraction(*lexicon.VULGAR_FRACTIONS[run[-1]])
        if run[:-1] == "":
            return [part]
        whole = number_of(run[:-1])
        return [whole + part] if whole is not None else []
    if " " in run:
        whole_text, fraction = run.split(" ")
        top, bottom = fraction.split("/")
        return [Fraction(int(whole_text)) + Fraction(int(top), int(bottom))] if int(bottom) else []
    value = number_of(run)
    if value is not None:
        return [value]
    if decimal_comma and regex.fullmatch(r"[0-9]+,[0-9]{1,2}|[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]+", run):
        return [Fraction(run.replace(".", "").replace(",", "."))]
    return []


def _rounded(value: Fraction, places: int) -> Fraction:
    factor = Fraction(10) ** places
    return Fraction(int(value * factor + Fraction(1, 2) * (1 if value >= 0 else -1))) / factor


def value_of_words(text: str) -> Fraction | None:
    """The value of a run of number words ("two hundred and five", "twenty fourteen", "half a million"), or None."""
    words = [w for w in regex.split("[ -]", text) if w]
    part = Fraction(1)
    if words and words[0] in lexicon.PART_WORDS and len(words) > 1:
        part = Fraction(*lexicon.PART_WORDS[words[0]])
        words = [w for w in words[1:] if w not in ("of", "a", "an")]
    words = [w for w in words if w != "and"]
    if not words or any(w not in NUMBER_WORDS for w in words):
        return None
    values = [NUMBER_WORDS[w] for w in words]
    year = _year_of_words(words, values)
    if year is not None:
        return Fraction(year)
    total, group, last = 0, 0, 10**18
    for word, value in zip(words, values, strict=True):
        if word in lexicon.HUNDRED or word == "hundredth" or word in lexicon.DOZEN:
            group = max(group, 1) * value
        elif value >= 1000 and word not in lexicon.TEENS:
            if value >= last:
                return None
            total, group, last = total + max(group, 1) * value, 0, value
        else:
            below = group % 100
            if below and not (below % 10 == 0 and below >= 20 and value < 10):
                return None
            group += value
    return part * (total + group)


def _year_of_words(words: list[str], values: list[int]) -> int | None:
    if len(words) not in (2, 3) or not 10 <= values[0] <= 99 or words[0] in lexicon.ORDINALS:
        return None
    rest = values[1:]
    if len(rest) == 1 and 10 <= rest[0] <= 99:
        return values[0] * 100 + rest[0]
    if len(rest) == 2 and rest[0] in lexicon.TENS.values() and 1 <= rest[1] <= 9 and words[2] in lexicon.ONES:
        return values[0] * 100 + rest[0] + rest[1]
    return None


def _plain(value: Fraction) -> str | None:
    """Shortest decimal form, or None where the value has no decimal form of at most six places."""
    scaled = value * 10**6
    if scaled.denominator != 1:
        return None
    whole, places = divmod(int(scaled), 10**6)
    text = str(whole)
    return text if not places else f"{text}.{places:06d}".rstrip("0")


def _group(plain: str) -> str:
    whole, point, places = plain.partition(".")
    return f"{int(whole):,}{point}{places}"


def decimal_forms(value: Fraction) -> list[str]:
    """`2400` -> 2400, 2,400; `0.9` -> 0.9, .9. A value without a short decimal form has none."""
    plain = _plain(value)
    if plain is None or len(plain) > _MAX_DIGITS:
        return []
    forms = [plain]
    if value >= 1000:
        forms.append(_group(plain))
    if plain.startswith("0."):
        forms.append(plain[1:])
    return forms


def fraction_forms(value: Fraction) -> list[str]:
    """`23.5` -> 23½, 23 1/2; `0.5` -> ½, 1/2."""
    whole, rest = divmod(value, 1)
    if not rest or rest.denominator > 10 or whole >= 10**6:
        return []
    forms = [c for c, pair in lexicon.VULGAR_FRACTIONS.items() if Fraction(*pair) == rest]
    forms.append(f"{rest.numerator}/{rest.denominator}")
    return forms if not whole else [f"{whole}{' ' if '/' in f else ''}{f}" for f in forms]


def _same_scale(name: str) -> list[str]:
    factor = lexicon.SCALES.get(name) or lexicon.SCALE_ABBREVIATIONS.get(name)
    return [
        *(f" {w}" for w, f in lexicon.SCALES.items() if f == factor),
        *(w for w, f in lexicon.SCALE_ABBREVIATIONS.items() if f == factor),
        *(f" {w}" for w in lexicon.SPACED_ABBREVIATIONS if lexicon.SCALE_ABBREVIATIONS[w] == factor),
    ]


_SCALE_NAMES = {factor: _same_scale(name) for name, factor in lexicon.SCALES.items()}


def scaled_forms(value: Fraction) -> list[str]:
    """`2.4e9` -> 2.4 billion, 2.4bn, 2,400 million, …: mantissas of at most three places, from 0.1 up to 99,999."""
    forms: list[str] = []
    if value < 100:
        return forms
    for factor, names in _SCALE_NAMES.items():
        mantissa = value / factor
        if not Fraction(1, 10) <= mantissa < 10**5 or (mantissa * 1000).denominator != 1:
            continue
        plain = _plain(mantissa)
        assert plain is not None
        heads = [plain] if mantissa < 1000 else [plain, _group(plain)]
        heads += [f"{plain}.0"] if "." not in plain else [f"{plain}0"] if plain[-2] == "." else []
        heads += fraction_forms(mantissa) if mantissa.denominator == 2 else []
        forms += [head + name for head in heads for name in names]
    return forms


def month_names(month: int) -> list[str]:
    """`3` -> march, mar, mar."""
    names = [w for w, m in lexicon.MONTHS.items() if m == month]
    for word, number in lexicon.MONTH_ABBREVIATIONS.items():
        if number == month:
            names += [word, f"{word}."]
    return names


def _ordinal_suffix(day: int) -> str:
    return "th" if 10 < day % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")


def _clock_styles(hour: int, minute: int) -> list[str]:
    return [f"{hour}:{minute}", f"{hour}:{minute:02d}", f"{hour:02d}:{minute:02d}"]


_BY_VALUE = {v: w for w, v in {**lexicon.ONES, **lexicon.TEENS, **lexicon.TENS}.items()}
_ORDINAL_BY_VALUE = {v: w for w, v in {**lexicon.ORDINAL_ONES, **lexicon.ORDINALS}.items()}


def _below_hundred(value: int) -> list[str]:
    if value in _BY_VALUE:
        return [_BY_VALUE[value]]
    tens, ones = _BY_VALUE[value // 10 * 10], _BY_VALUE[value % 10]
    return [f"{tens}-{ones}", f"{tens} {ones}"]


def _below_thousand(value: int) -> list[str]:
    if value < 100:
        return _below_hundred(value)
    head = f"{_BY_VALUE[value // 100]} hundred"
    if value % 100 == 0:
        return [head]
    return [f"{head}{joint}{tail}" for joint in (" ", " and ") for tail in _below_hundred(value % 100)]


def word_forms(value: Fraction) -> list[str]:
    """`2014` -> two thousand fourteen, two thousand and fourteen, twenty fourteen; ordinals up to a hundred."""
    if value.denominator != 1 or value >= 10**15:
        if value * 2 == 10**6:
            return ["half a million"]
        return []
    number = int(value)
    forms: list[str] = []
    groups, rest = [], number
    for name, factor in sorted(lexicon.SCALES.items(), key=lambda item: -item[1]):
        if rest >= factor:
            groups.append((rest // factor, name))
            rest %= factor
    if len(groups) <= 2 and all(count < 1000 for count, _ in groups):
        heads = [""]
        for count, name in groups:
            heads = [f"{h} {w} {name}".strip() for h in heads for w in _below_thousand(count)]
        if not rest and groups:
            forms += heads
        elif not groups:
            forms += _below_thousand(rest)
        else:
            joints = (" ", " and ") if rest < 100 else (" ",)
            forms += [f"{h}{j}{t}" for h in heads for j in joints for t in _below_thousand(rest)]
    if 1100 <= number <= 9900 and number % 100 == 0 and number % 1000:
        forms += [f"{w} hundred" for w in _below_hundred(number // 100)]
    if 1100 <= number <= 2099 and number % 100 >= 10:
        forms += [f"{a} {b}" for a in _below_hundred(number // 100) for b in _below_hundred(number % 100)]
    if number in (100, 1000, 10**6, 10**9, 10**12):
        forms += [f.removeprefix("one ") for f in forms if f.startswith("one ")]
    if number == 5 * 10**5:
        forms.append("half a million")
    if number == 25 * 10**4:
        forms += ["quarter of a million", "quarter million"]
    if number % 12 == 0 and 12 <= number <= 120:
        forms += (
            ["dozen", "one dozen"] if number == 12 else [f"{w} dozen" for w in _below_hundred(number // 12)]
        )
    if number == 6:
        forms.append("half a dozen")
    if number in _ORDINAL_BY_VALUE:
        forms.append(_ORDINAL_BY_VALUE[number])
    elif 20 < number < 100:
        forms += [f"{_BY_VALUE[number // 10 * 10]}{j}{_ORDINAL_BY_VALUE[number % 10]}" for j in "- "]
    return forms


__all__ = ["Licence", "Node", "Position", "has_digit"]
