"""Values and their surface forms: pure functions in both directions, on canonical text.

Values are exact fractions. Every function that makes forms says with an example what it makes;
docs/literals.md says which of them a literal of the context licenses.
"""

from __future__ import annotations

from fractions import Fraction

import regex

from . import lexicon_en as lexicon
from .literals import NUMBER_WORDS

MAX_DIGITS = 24  # longer digit strings license themselves only
GROUPED = regex.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}")
PLAIN = regex.compile(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+")


def number_of(run: str) -> Fraction | None:
    """The value of a plain or grouped run of digits ("2,400.5"), or None."""
    if PLAIN.fullmatch(run) or GROUPED.fullmatch(run):
        digits = run.replace(",", "")
        return Fraction(digits) if len(digits) <= 2 * MAX_DIGITS else None
    return None


def is_year(run: str) -> bool:
    return len(run) == 4 and run.isdigit() and "1000" <= run <= "2999"


def readings(run: str, *, decimal_comma: bool = False) -> list[Fraction]:
    """The values a run of one number may state: plain, grouped, comma decimal, with a vulgar or one-digit
    fraction."""
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


def rounded(value: Fraction, places: int) -> Fraction:
    factor = Fraction(10) ** places
    return Fraction(int(value * factor + Fraction(1, 2) * (1 if value >= 0 else -1))) / factor


def value_of_words(text: str) -> Fraction | None:
    """The value of a run of number words ("two hundred and five", "twenty fourteen", "half a million"), or
    None."""
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
    if len(rest) == 1 and 10 <= rest[0] <= 99 and words[1] not in lexicon.DOZEN:
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
    if plain is None or len(plain) > MAX_DIGITS:
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
    if not whole or rest.denominator < 10:  # "8 1/10" is two literals
        forms.append(f"{rest.numerator}/{rest.denominator}")
    return forms if not whole else [f"{whole}{' ' if '/' in f else ''}{f}" for f in forms]


def scale_factor(name: str) -> int:
    """`billion`, `bn` -> 10**9; 1 for no name."""
    return lexicon.SCALES.get(name) or lexicon.SCALE_ABBREVIATIONS.get(name) or 1


def same_scale(name: str) -> list[str]:
    """Every way to write the same scale after digits, blank included."""
    factor = scale_factor(name)
    return [
        *(f" {w}" for w, f in lexicon.SCALES.items() if f == factor),
        *(w for w, f in lexicon.SCALE_ABBREVIATIONS.items() if f == factor),
        *(f" {w}" for w in lexicon.SPACED_ABBREVIATIONS if lexicon.SCALE_ABBREVIATIONS[w] == factor),
    ]


_SCALE_NAMES = {factor: same_scale(name) for name, factor in lexicon.SCALES.items()}


def scaled_forms(value: Fraction) -> list[str]:
    """`2.4e9` -> 2.4 billion, 2.4bn, 2,400 million, …: mantissas of at most three places, from 0.1 up to
    99,999."""
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


def ordinal_suffix(day: int) -> str:
    return "th" if 10 < day % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")


def clock_styles(hour: int, minute: int) -> list[str]:
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
    """`2014` -> two thousand fourteen, two thousand and fourteen, twenty fourteen; ordinals up to a
    hundred."""
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
