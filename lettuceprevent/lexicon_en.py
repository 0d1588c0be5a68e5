"""English number words, scales, ordinals, months, units and marks, as tables read in both directions.

The automaton and the independent checker share this module and nothing else. Another language is another
module with the same names. Every key is lower case; values are exact integers or strings of exact decimals,
never floats.
"""

from __future__ import annotations

ONES: dict[str, int] = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9,
}  # fmt: skip
TEENS: dict[str, int] = {
    "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
    "seventeen": 17, "eighteen": 18, "nineteen": 19,
}  # fmt: skip
TENS: dict[str, int] = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80,
    "ninety": 90,
}  # fmt: skip
HUNDRED: dict[str, int] = {"hundred": 100}
#: scale words that may follow digits ("2.4 million") or words ("two million"), and that stand alone after "a"
SCALES: dict[str, int] = {
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
DOZEN: dict[str, int] = {"dozen": 12}
#: abbreviated scales glued to digits ("2.4bn"); those in SPACED_ABBREVIATIONS may also follow one blank ("2.4
#: bn")
SCALE_ABBREVIATIONS: dict[str, int] = {
    "k": 10**3, "m": 10**6, "mn": 10**6, "mln": 10**6, "b": 10**9, "bn": 10**9, "tn": 10**12, "trn": 10**12,
}  # fmt: skip
SPACED_ABBREVIATIONS: frozenset[str] = frozenset({"mn", "mln", "bn", "tn", "trn"})

ORDINAL_ONES: dict[str, int] = {
    "first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
    "ninth": 9,
}  # fmt: skip
ORDINALS: dict[str, int] = {
    "tenth": 10, "eleventh": 11, "twelfth": 12, "thirteenth": 13, "fourteenth": 14, "fifteenth": 15,
    "sixteenth": 16, "seventeenth": 17, "eighteenth": 18, "nineteenth": 19, "twentieth": 20, "thirtieth": 30,
    "fortieth": 40, "fiftieth": 50, "sixtieth": 60, "seventieth": 70, "eightieth": 80, "ninetieth": 90,
    "hundredth": 100, "thousandth": 1000, "millionth": 10**6,
}  # fmt: skip
ORDINAL_SUFFIXES: frozenset[str] = frozenset({"st", "nd", "rd", "th"})

#: "half a million", "a quarter of a million": (numerator, denominator)
PART_WORDS: dict[str, tuple[int, int]] = {"half": (1, 2), "quarter": (1, 4)}
#: before a scale word these make it vague ("several hundred"): such a phrase states no value
VAGUE_BEFORE_SCALE: frozenset[str] = frozenset({"several", "few", "many", "some", "couple", "hundred"})

MONTHS: dict[str, int] = {
    "january": 1, "february": 2, "march": 3, "april": 4, "may": 5, "june": 6, "july": 7, "august": 8,
    "september": 9, "october": 10, "november": 11, "december": 12,
}  # fmt: skip
#: an optional full stop may follow an abbreviation
MONTH_ABBREVIATIONS: dict[str, int] = {
    "jan": 1, "feb": 2, "mar": 3, "apr": 4, "jun": 6, "jul": 7, "aug": 8, "sep": 9, "sept": 9, "oct": 10,
    "nov": 11, "dec": 12,
}  # fmt: skip

#: written forms of a mark of kind "%": glued or after one blank
PERCENT_SIGNS: frozenset[str] = frozenset({"%"})
PERCENT_WORDS: frozenset[str] = frozenset({"percent", "per cent", "pct"})
#: currency sign before the digits -> kind
CURRENCY_SIGNS: dict[str, str] = {"$": "$", "£": "£", "€": "€", "¥": "¥", "₹": "₹", "₩": "₩", "₽": "₽"}
#: currency word after the digits -> kind ("pounds" is left out: it is a weight as often)
CURRENCY_WORDS: dict[str, str] = {
    "dollar": "$", "dollars": "$", "euro": "€", "euros": "€", "yen": "¥", "rupee": "₹", "rupees": "₹",
}  # fmt: skip

#: clock suffixes, lower case, glued or after one blank
AM: frozenset[str] = frozenset({"am", "a.m.", "a.m"})
PM: frozenset[str] = frozenset({"pm", "p.m.", "p.m"})
#: words for a clock time: (hour, minute) of 24
CLOCK_WORDS: dict[str, tuple[int, int]] = {"noon": (12, 0), "midday": (12, 0), "midnight": (0, 0)}

#: units that may be glued to the digits and do not change the type of a number ("5km" is 5)
UNITS: frozenset[str] = frozenset(
    {
        "km", "cm", "mm", "nm", "mi", "ft", "in", "yd", "kg", "g", "mg", "lb", "lbs", "oz", "l", "ml",
        "gb", "mb", "kb", "tb", "hz", "khz", "mhz", "ghz", "kw", "mw", "gw", "kwh", "mph", "kph", "kmh",
        "km/h", "hp", "v", "w", "c", "f", "°", "°c", "°f", "min", "mins", "sec", "secs", "hr", "hrs",
        "h", "yr", "yrs", "x", "px", "pp", "bps", "rpm", "db", "cal", "kcal", "acre", "acres", "sqft",
    }
)  # fmt: skip

#: vulgar fractions in one character -> (numerator, denominator)
VULGAR_FRACTIONS: dict[str, tuple[int, int]] = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5),
    "⅘": (4, 5), "⅙": (1, 6), "⅚": (5, 6), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8), "⅐": (1, 7),
    "⅑": (1, 9), "⅒": (1, 10),
}  # fmt: skip

#: words that may stand before "-" and digits without making a code ("mid-2021" is 2021, "COVID-19" is a code)
OPEN_PREFIXES: frozenset[str] = frozenset(
    {
        "mid", "pre", "post", "late", "early", "non", "sub", "under", "over", "circa", "ca", "since",
        "until", "by", "from", "to", "and", "or", "of", "the", "in", "at", "on", "a", "an", "about",
        "nearly", "almost", "approximately", "around", "some", "per", "age", "aged", "ages", "minus",
        "plus", "negative", "top", "last", "first",
    }
)  # fmt: skip

#: Beginnings after which only number words follow in practice. A token that ends on one of these, or on a
#: complete
#: number word, is committed to a number; any other beginning ("nin", "mill", "tr") is open.
COMMITTED_STEMS: frozenset[str] = frozenset(
    {
        "elev", "eleve", "twel", "twelv", "thirt", "thirte", "thirtee", "fourt", "fourte", "fourtee",
        "fift", "fifte", "fiftee", "sixt", "sixte", "sixtee", "sevent", "sevente", "seventee", "eighte",
        "eightee", "eighti", "ninet", "ninete", "ninetee", "twent", "thirti", "forti", "fifti", "sixti",
        "seventi", "ninti", "ninetie", "hundr", "hundre", "thousa", "thousan", "millio", "billio",
        "trillio", "doze",
    }
)  # fmt: skip
#: Beginnings of number words that are words themselves: completing a number word from one of these is a
#: choice, not an
#: accident of tokenisation ("eight" + "y", "for" + "ty", "mill" + "ion").
BEGINNING_WORDS: frozenset[str] = frozenset(
    {
        "a", "for", "fort", "four", "six", "seven", "eight", "nine", "ten", "do", "doze", "mill", "bill",
        "trill", "thou", "hundred", "thousand", "million", "billion", "trillion", "twelve", "eleven",
        "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    }
)  # fmt: skip
