"""Made-up business records with answers that describe them, and which characters no field supports.

Contract: a function of (count, answers, seed) and nothing else; rule-based. What an answer says is drawn from the
record or, at a rate that differs from answer to answer, against it: an amenity whose field is false, null or absent,
another place, rating, opening hour or category, praise that no review gives. Only the words that are wrong are
marked, as in a list of three amenities of which one is not offered. For training only, never for test data.

Answers over structured data fail otherwise than summaries do, and people's labels for them are few: this teaches to
look a claim up under its key. The fields are those of public business listings.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .data import Example, Span, merged
from .record_words import (
    AMBIENCE,
    AMENITIES,
    ASPECTS,
    BASELESS,
    CATEGORIES,
    CITIES,
    DAYS,
    FILLERS,
    FIRST_WORDS,
    KINDS,
    MUSIC,
    NOUNS,
    PARKING,
    QUERIES,
    SECOND_WORDS,
    STREETS,
    THINGS,
)

_RATINGS = (2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)
_RATES = (0.0, 0.1, 0.2, 0.3)  # of wrong claims, drawn per answer


def record_examples(count: int, answers: int = 6, seed: int = 0) -> list[Example]:
    """`answers` answers to each of `count` records. Raises ValueError for counts below 0 and answers below 1."""
    if count < 0 or answers < 1:
        raise ValueError(
            f"expected count of records >= 0 and answers >= 1 for each, got {count} and {answers}"
        )
    made = []
    for number in range(count):
        rng = random.Random(f"record {seed} {number}")
        record = _record(rng)
        context = str(record.fields) if rng.random() < 0.6 else json.dumps(record.fields)
        query = rng.choice(QUERIES)
        for turn in range(answers):
            text = _Writer(rng, record, rng.choice(_RATES)).written()
            name = f"record {seed} {number} {turn}"
            made.append(Example(name, context, query, text.text, merged(text.spans), "record"))
    return made


@dataclass
class _Record:
    """fields: what the context shows. said: (aspect, praised?, of what) of its reviews."""

    kind: str
    state: str
    fields: dict[str, Any]
    said: set[tuple[str, bool, str]]


def _record(rng: random.Random) -> _Record:
    kind = rng.choice(["Restaurants"] * 5 + list(KINDS))
    city, short, state = rng.choice(CITIES)
    pattern = rng.choice(["{f} {s} {k}", "The {f} {s}", "{s} & {t} {k}", "{s}'s {k}", "{f} {k}"])
    name = pattern.format(
        f=rng.choice(FIRST_WORDS),
        s=rng.choice(SECOND_WORDS),
        t=rng.choice(SECOND_WORDS),
        k=rng.choice(KINDS[kind]),
    )
    of_kind = CATEGORIES[kind]
    categories = [*rng.sample(of_kind, rng.randint(2, min(6, len(of_kind)))), kind]
    rng.shuffle(categories)
    said: set[tuple[str, bool, str]] = set()
    address = f"{rng.randint(1, 9999)} {rng.choice(SECOND_WORDS)} {rng.choice(STREETS)}"
    fields = {
        "name": name,
        "address": address if rng.random() < 0.9 else "",
        "city": city,
        "state": short,
        "categories": ", ".join(categories),
        "hours": _hours(rng),
        "attributes": _attributes(rng),
        "business_stars": rng.choice(_RATINGS),
        "review_info": [_review(rng, kind, said) for _ in range(3)],
    }
    return _Record(kind, state, fields, said)


def _hours(rng: random.Random) -> dict[str, str] | None:
    days = rng.choice([DAYS, DAYS, DAYS[:5], DAYS[:6], DAYS[1:], DAYS[2:], None])
    if days is None:
        return None
    hours = {}
    opens, closes = rng.randint(6, 16), rng.randint(17, 23)
    for day in days:
        if rng.random() < 0.2:
            opens, closes = rng.randint(6, 12), rng.randint(17, 23)
        hours[day] = f"{opens}:{rng.choice([0, 0, 0, 30])}-{closes}:{rng.choice([0, 0, 30])}"
    return hours


def _attributes(rng: random.Random) -> dict[str, Any]:
    def some(keys: Sequence[str], share: float) -> dict[str, bool]:
        return {key: rng.random() < share for key in rng.sample(keys, len(keys))}

    found: dict[str, Any] = {}
    if rng.random() < 0.85:
        found["BusinessParking"] = some(list(PARKING), 0.3) if rng.random() < 0.8 else None
    for key in rng.sample(list(AMENITIES), rng.randint(3, 7)):
        found[key] = rng.choice([True, True, True, False, False, None])
    if rng.random() < 0.8:
        found["WiFi"] = rng.choice(["free", "free", "no", "no", None, "paid"])
    if rng.random() < 0.5:
        found["Music"] = rng.choice([None, False, some(list(MUSIC), 0.25)])
    if rng.random() < 0.75:
        found["Ambience"] = some(AMBIENCE, 0.2) if rng.random() < 0.67 else None
    items = list(found.items())
    if rng.random() < 0.5:
        rng.shuffle(items)
    return dict(items)


def _review(rng: random.Random, kind: str, said: set[tuple[str, bool, str]]) -> dict[str, Any]:
    """A review; what it says is added to `said`."""
    glad = rng.random() < 0.65
    sentences = []
    for aspect in rng.sample(list(ASPECTS), rng.randint(1, 3)):
        good = glad if rng.random() < 0.85 else not glad
        thing = rng.choice(THINGS[kind])
        sentence = rng.choice(ASPECTS[aspect].reviews(good))
        said.add((aspect, good, thing if "{x}" in sentence else ""))
        sentences.append(sentence.format(x=thing))
    sentences += rng.sample(FILLERS, rng.randint(0, 3))
    rng.shuffle(sentences)
    day = f"20{rng.randint(14, 21)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    clock = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}"
    return {
        "review_stars": float(rng.choice([4, 5, 5] if glad else [1, 2, 3])),
        "review_date": f"{day} {clock}",
        "review_text": " ".join(sentences),
    }


@dataclass(frozen=True)
class _Claim:
    words: str
    true: bool


@dataclass
class _Writer:
    """Writes one answer; `rate`: how often it says what is not so."""

    rng: random.Random
    record: _Record
    rate: float
    text: str = ""
    spans: list[Span] = field(default_factory=list)

    def written(self) -> _Writer:
        self._opening()
        acts: list[Callable[[], None]] = [
            self._offers,
            self._offers,
            self._parking,
            self._has,
            self._lacks,
            self._ambience,
            self._open,
            self._rating,
            self._praise,
            self._praise,
            self._baseless,
        ]
        for act in self.rng.sample(acts, self.rng.randint(5, 9)):
            act()
        if self.rng.random() < 0.6:
            name, city = self.record.fields["name"], self.record.fields["city"]
            ends = (
                f" Overall, {name} is a {self.noun} worth visiting.",
                f" Overall, the {self.noun} has received mixed reviews.",
                f" In summary, {name} serves its customers in {city}.",
            )
            self.add(self.rng.choice(ends))
        return self

    # -- helpers

    @property
    def noun(self) -> str:
        """What the text calls a business of this kind."""
        return NOUNS[self.record.kind]

    @property
    def attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = self.record.fields["attributes"]
        return found

    def add(self, words: str, wrong: bool = False) -> None:
        if wrong:
            self.spans.append((len(self.text), len(self.text) + len(words)))
        self.text += words

    def errs(self, times: float = 1.0) -> bool:
        return self.rng.random() < self.rate * times

    def subject(self) -> str:
        name = self.record.fields["name"]
        ways = ("The business", "It", f"The {self.noun}", str(name), "The establishment")
        return self.rng.choice(ways)

    def drawn(self, pool: Sequence[_Claim], count: int) -> list[_Claim]:
        """Up to `count` different claims, wrong ones at the writer's rate."""
        picked: list[_Claim] = []
        wrong = [claim for claim in pool if not claim.true]
        right = [claim for claim in pool if claim.true]
        for _ in range(count):
            source = wrong if self.errs(1.3) and wrong else right
            claim = self.rng.choice(source) if source else None
            if claim is not None and claim not in picked:
                picked.append(claim)
        return picked

    def listed(self, claims: Sequence[_Claim]) -> None:
        for at, claim in enumerate(claims):
            if at:
                last = " and " if len(claims) == 2 else ", and "
                self.add(last if at == len(claims) - 1 else ", ")
            self.add(claim.words, not claim.true)

    # -- sentences

    def _opening(self) -> None:
        name, city = self.record.fields["name"], self.record.fields["city"]
        opening = self.rng.choice(
            [
                f"{name} is a {self.noun} located in ",
                f"{name} is a popular {self.noun} in ",
                "Located in ",
                f"Based on the provided data, {name} is a local business in ",
            ]
        )
        self.add(opening)
        if self.errs(0.3):
            other = self.rng.choice([each for each in CITIES if each[0] != city])
            self.add(f"{other[0]}, {other[2]}", True)
        else:
            self.add(f"{city}, {self.record.state}")
        if opening == "Located in ":
            self.add(f", {name} is a {self.noun}")
        self.add(self.rng.choice([", offering ", " that specializes in ", ", known for "]))
        kind = self.record.kind
        own = [each for each in self.record.fields["categories"].split(", ") if each != kind]
        others = [each for several in CATEGORIES.values() for each in several if each not in own]
        some = self.rng.sample(own, min(len(own), self.rng.randint(1, 3)))
        if self.errs(0.5):
            some.insert(self.rng.randint(0, len(some)), self.rng.choice(others))
        self.listed([_Claim(each.lower() if self.rng.random() < 0.5 else each, each in own) for each in some])
        self.add(".")

    def _claims(self) -> list[tuple[_Claim, bool]]:
        """What could be offered, and whether the record has the field."""
        found = []
        for key, words in AMENITIES.items():
            value = self.attributes.get(key)
            found.append((_Claim(self.rng.choice(words.things), value is True), key in self.attributes))
        wifi = self.attributes.get("WiFi") == "free"
        free = self.rng.choice(["free WiFi", "free Wi-Fi", "complimentary WiFi"])
        found.append((_Claim(free, wifi), "WiFi" in self.attributes))
        music = self.attributes.get("Music") or {}
        for key, text in MUSIC.items():
            found.append((_Claim(text, music.get(key) is True), "Music" in self.attributes))
        return found

    def _lots(self) -> list[_Claim]:
        parking = self.attributes.get("BusinessParking") or {}
        return [_Claim(self.rng.choice(words), parking.get(key) is True) for key, words in PARKING.items()]

    def _offers(self) -> None:
        # Fields that the record lacks are seldom spoken of, as people do it.
        pool = [claim for claim, has in self._claims() if has or self.rng.random() < 0.3]
        self._offered(self.drawn([*pool, *self._lots()], self.rng.randint(1, 4)))

    def _parking(self) -> None:
        self._offered(self.drawn(self._lots(), self.rng.randint(1, 2)))

    def _offered(self, claims: Sequence[_Claim]) -> None:
        if not claims:
            return
        begins = (
            f"{self.subject()} offers ",
            f"{self.subject()} provides ",
            "Customers can enjoy ",
            "Amenities include ",
            "Additionally, customers can expect ",
            "In terms of amenities, it offers ",
        )
        self.add(f" {self.rng.choice(begins)}")
        self.listed(claims)
        self.add(self.rng.choice([".", ".", " for its customers.", ", making it a convenient choice."]))

    def _has(self) -> None:
        self._stated(True)

    def _lacks(self) -> None:
        self._stated(False)

    def _stated(self, has: bool) -> None:
        known = {key: value for key, value in self.attributes.items() if key in AMENITIES}
        wrong = self.errs(1.3)
        keys = [key for key, value in known.items() if (value is has) != wrong]
        if not keys:
            return
        words = AMENITIES[self.rng.choice(keys)]
        self.add(f" {self.subject()} ")
        ways = (*words.has, f"offers {words.things[0]}") if has else words.lacks
        self.add(self.rng.choice(ways), wrong)
        self.add(".")

    def _ambience(self) -> None:
        own = self.attributes.get("Ambience") or {}
        claims = self.drawn(
            [_Claim(word, own.get(word) is True) for word in AMBIENCE], self.rng.randint(1, 2)
        )
        if not claims:
            return
        begin = self.rng.choice(
            [" The atmosphere is described as ", " The ambiance is ", " It has an atmosphere that is "]
        )
        self.add(begin)
        self.listed(claims)
        self.add(".")

    def _open(self) -> None:
        hours, wrong = self.record.fields["hours"], self.errs()
        if hours is None:
            if wrong:  # nothing is known of them
                daily = (
                    f"is open daily from {self.rng.randint(7, 11)}:00 AM to {self.rng.randint(5, 11)}:00 PM"
                )
                ways = ("is open seven days a week", daily, "is open late on weekends")
                self.add(f" {self.subject()} ")
                self.add(self.rng.choice(ways), True)
                self.add(".")
            return
        closed = [day for day in DAYS if day not in hours]
        day = self.rng.choice(list(hours))
        if wrong and closed and self.rng.random() < 0.3:
            self.add(f" {self.subject()} ")
            self.add(f"is open on {self.rng.choice(closed)}s", True)
            self.add(".")
        elif not wrong and self.rng.random() < 0.4:
            shut = f"closed on {self.rng.choice(closed)}s" if closed else "open seven days a week"
            self.add(f" {self.subject()} is {shut}.")
        else:
            opens, closes = (tuple(map(int, each.split(":"))) for each in hours[day].split("-"))
            if wrong and self.rng.random() < 0.5:
                opens = ((opens[0] + self.rng.randint(1, 3)) % 24, 0)
            elif wrong:
                closes = (closes[0] - self.rng.randint(1, 3), 30)
            self.add(f" On {day}s, it is open from ")
            self.add(f"{self._clock(*opens)} to {self._clock(*closes)}", wrong)
            self.add(".")

    def _clock(self, hour: int, minute: int) -> str:
        if self.rng.random() < 0.5:
            return f"{hour}:{minute:02d}"
        return f"{(hour - 1) % 12 + 1}:{minute:02d} {'AM' if hour < 12 else 'PM'}"

    def _rating(self) -> None:
        stars, wrong = self.record.fields["business_stars"], self.errs()
        if wrong:
            stars = self.rng.choice([each for each in _RATINGS if each != stars])
        self.add(f" {self.subject()} has {self.rng.choice(['a rating of', 'an overall rating of'])} ")
        self.add(self.rng.choice([f"{stars} stars", f"{stars} out of 5 stars", f"{stars}"]), wrong)
        self.add(".")

    def _baseless(self) -> None:
        if not self.errs(2.0):
            return
        self.add(
            f" {self.rng.choice([f'{self.subject()} also has ', f'{self.subject()} offers ', 'Guests appreciate '])}"
        )
        self.add(self.rng.choice(BASELESS), True)
        self.add(".")

    def _praise(self) -> None:
        """What reviews praise or, as often as not, complain about."""
        good, wrong = self.rng.random() < 0.6, self.errs(1.2)
        heard = {aspect for aspect, praised, _ in self.record.said if praised == good}
        if (
            "wait" in heard or "service" in heard
        ):  # quick service, slow service: each may be read as the other
            near = {"wait", "service"}
        else:
            near = set()
        aspects = [name for name in ASPECTS if (name not in heard | near if wrong else name in heard)]
        if not aspects:
            return
        claim = self.rng.choice(ASPECTS[self.rng.choice(aspects)].claims(good))
        if "{x}" in claim:
            named = sorted({thing for _, praised, thing in self.record.said if thing and praised == good})
            if not wrong and not named:
                return
            claim = claim.format(x=self.rng.choice(THINGS[self.record.kind] if wrong else named))
        leads = ("Customers have praised ", "One reviewer highlighted ", "Reviewers appreciated ")
        blames = (
            "Some customers have complained about ",
            "One reviewer criticized ",
            "Some reviews mention ",
        )
        lead = self.rng.choice(leads if good else blames)
        self.add(" ")
        if wrong and self.rng.random() < 0.4:
            self.add(lead + claim, True)
        else:
            self.add(lead)
            self.add(claim, wrong)
        self.add(".")
