"""Arms of an experiment, and the one rule about them: they differ in prevention and in nothing else.

Contract: `require_matched` is called before anything is generated, `require_matched_lines` on the answers to each
prompt and `OneRun` on every line before anything is said of a run. All raise MatchError and name each difference.
There is no option that turns them off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..detectors import DETECTOR_OPTIONS
from ..generation import PROCESSOR_OPTIONS
from ..processor import ON_UNSUPPORTED
from ..profiles import Profile, Unset, restored

PLAIN = "plain"
PREVENTION_OPTIONS = (
    DETECTOR_OPTIONS | {"detector_type", "profile"} | PROCESSOR_OPTIONS - {"synchronize", "prompt_length"}
)
#: what all lines of a run have in common, whatever their arm
SHARED = ("decoding", "host", "versions", "data")
#: what a line does not say because it was written before there was a field for it
UNKNOWN = "unknown"
_OF_HOST = ("shape", "weights", "generation")  # fields of `host` that earlier lines lack


class MatchError(ValueError):
    """Arms that cannot be compared; the message names what differs."""


@dataclass(frozen=True)
class Arm:
    """prevention: options of lettuceprevent.generate(); None generates plainly.
    decoding: what this arm alone would ask of transformers' generate(). Allowed to be there so that a
    difference is seen and refused.

    A name that says what an arm does has to be true: "plain" with prevention, and a policy's name without it or
    with another policy, raise ValueError.
    """

    name: str
    prevention: dict[str, Any] | None = None
    decoding: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        policy = None if self.prevention is None else self.prevention.get("on_unsupported")
        if self.name == PLAIN and self.prevention is not None:
            told = ", ".join(f"{key}={value}" for key, value in self.prevention.items())
            raise ValueError(f"arm {PLAIN!r}: expected no prevention, got {told}")
        if self.name in ON_UNSUPPORTED and policy != self.name:
            told = "no prevention" if self.prevention is None else f"on_unsupported={policy}"
            raise ValueError(f"arm {self.name!r}: expected on_unsupported={self.name}, got {told}")


def parse_arm(text: str) -> Arm:
    """An arm from the command line.

    "plain"; "avoid", "substitute", "retract" (the number detector with that policy); or
    "NAME:key=value,key=value" with the names of generate()'s options. Options that are not prevention's are
    taken as decoding. A policy's name stands for its policy with options, too.
    """
    name, colon, rest = text.partition(":")
    if not name.strip():
        raise ValueError(f"arm: expected NAME or NAME:key=value,..., got {text!r}")
    if not colon:
        known = (PLAIN, *ON_UNSUPPORTED)
        if name not in known:
            raise ValueError(f"arm: expected one of {', '.join(known)}, or NAME:key=value,..., got {text!r}")
    options: dict[str, Any] = {}
    for pair in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"arm {name!r}: expected key=value, got {pair!r}")
        options[key.strip()] = option_value(value.strip())
    return make_arm(name.strip(), options)


def make_arm(name: str, options: Mapping[str, Any]) -> Arm:
    """An arm whose options are sorted into prevention and decoding. One that is called like a policy has it, and
    the number detector where none is named. A profile's options are the arm's where it has none of its own, as they
    are in the file now. Without a detector an arm is plain, and options of prevention raise."""
    if name in ON_UNSUPPORTED:
        options = {"on_unsupported": name, **options}
    if options.get("profile") is not None:
        filled = dict(options)
        wanted = Profile.load(filled["profile"]).fill(filled, options.get("detector_type", Unset()))
        options = {**filled, "detector_type": wanted}
    prevention = {key: value for key, value in options.items() if key in PREVENTION_OPTIONS}
    decoding = {key: value for key, value in options.items() if key not in PREVENTION_OPTIONS}
    if prevention and prevention.setdefault("detector_type", "number") is None:
        if len(prevention) > 1:
            others = ", ".join(sorted(set(prevention) - {"detector_type"}))
            raise ValueError(f"arm {name!r}: expected no {others} without a detector")
        prevention = {}
    return Arm(name, prevention or None, decoding)


def read_arms(path: Path) -> list[Arm]:
    """Arms from a JSON file: an object with one entry per arm, {"plain": {}, "number": {"units": false}}."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"arms: expected a JSON file at {str(path)!r}: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(value, dict) for value in found.values()):
        raise ValueError(f"arms: expected an object of objects in {str(path)!r}, got {type(found).__name__}")
    return [make_arm(name, restored(options)) for name, options in found.items()]


def require_matched(arms: Sequence[Arm], decoding: Mapping[str, Any]) -> None:
    """Raise MatchError where arms would decode differently, and ValueError where two share a name."""
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"arms: expected one or more, each with a name of its own, got {', '.join(names)}")
    settings = {arm.name: {**decoding, **arm.decoding} for arm in arms}
    first = names[0]
    found = [
        difference
        for name in names[1:]
        for difference in differences(settings[first], settings[name], first, name)
    ]
    if found:
        raise MatchError(f"arms differ in more than prevention: {'; '.join(found)}")


def require_matched_lines(answers: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise MatchError where the lines of one prompt (arm -> line) do not differ in prevention alone."""
    names = list(answers)
    first = names[0]
    found: list[str] = []
    for name in names[1:]:
        a, b = answers[first], answers[name]
        found += shared_differences(a, b, first, name)
        found += differences(_asked(a["prompt"]), _asked(b["prompt"]), first, name, "prompt.")
    if found:
        raise MatchError(
            f"prompt {answers[first]['prompt']['id']!r}: answers differ in more than prevention: "
            f"{'; '.join(dict.fromkeys(found))}"
        )


class OneRun:
    """Whether lines are of one run: every one decoded as the first one, and every one of an arm under its options.

    shared, prevention: what the first line is held to, by part of `SHARED`, and what the lines of an arm are; where
    they are not given, the first line and each arm's first line say it. name: what messages call these.
    """

    def __init__(
        self,
        shared: Mapping[str, Any] | None = None,
        prevention: Mapping[str, Mapping[str, Any]] | None = None,
        name: str = "",
    ) -> None:
        self._first = shared
        self._name = name
        self._arms = {arm: (name, options) for arm, options in (prevention or {}).items()}
        self._detectors: dict[str, tuple[str, dict[str, str]]] = {}  # versions, where a line says them

    def differences(self, line: Mapping[str, Any]) -> list[str]:
        """Each difference of a line from those before it, in words; and whether its arm is what it is called."""
        prompt, arm = line["prompt"]["id"], line["arm"]
        here = f"{prompt} under {arm}"
        if self._first is None:
            self._first, self._name = line, here
        there, options = self._arms.setdefault(arm, (here, line["prevention"] or {}))
        detectors = _detectors(line)
        if detectors:
            self._detectors.setdefault(arm, (here, detectors))
        before, known = self._detectors.get(arm, (here, {}))
        return [
            *_misnamed(arm, line["prevention"], here),
            *(differences(known, detectors, before, here, f"arm {arm!r}: detector ") if detectors else ()),
            *shared_differences(self._first, line, self._name, here),
            *differences(options, line["prevention"] or {}, there, here, f"arm {arm!r}: "),
        ]

    def require(self, line: Mapping[str, Any]) -> None:
        """Raise MatchError where a line differs from those before it."""
        found = self.differences(line)
        if found:
            raise MatchError(f"expected the lines of one run, got lines that differ: {'; '.join(found)}")


def _misnamed(arm: str, prevention: Mapping[str, Any] | None, where: str) -> list[str]:
    """What a line says of an arm whose name says something else. A policy that it does not name may be any."""
    if arm == PLAIN and prevention is not None:
        return [f"prevention is {dict(prevention)!r} in {where!r}"]
    if arm in ON_UNSUPPORTED and (prevention is None or prevention.get("on_unsupported", arm) != arm):
        return [f"prevention is {prevention!r} in {where!r}"]
    return []


def _detectors(line: Mapping[str, Any]) -> dict[str, str]:
    """Which detectors, in which version, answered a line; empty where it does not say."""
    return dict(((line.get("report") or {}).get("options") or {}).get("versions") or {})


def shared_differences(a: Mapping[str, Any], b: Mapping[str, Any], first: str, second: str) -> list[str]:
    """Each setting of `SHARED` in which two lines differ, in words."""
    return [
        text
        for part in SHARED
        for text in differences(_part(a, part), _part(b, part), first, second, f"{part}.")
    ]


def _part(line: Mapping[str, Any], part: str) -> dict[str, Any]:
    unknown = dict.fromkeys(_OF_HOST, UNKNOWN) if part == "host" else {}
    return unknown | (line.get(part) or {})


def _asked(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """What makes two prompts the same one: the text, and the batch it was answered in."""
    return {"sha256": prompt.get("sha256"), "batch": prompt.get("batch", UNKNOWN)}


def differences(
    a: Mapping[str, Any], b: Mapping[str, Any], first: str, second: str, prefix: str = ""
) -> list[str]:
    """Each key in which two settings differ, in words. What is `UNKNOWN` on a side differs from nothing."""
    missing = "unset"
    pairs = {key: (a.get(key, missing), b.get(key, missing)) for key in sorted({*a, *b})}
    return [
        f"{prefix}{key} is {one!r} in {first!r} and {other!r} in {second!r}"
        for key, (one, other) in pairs.items()
        if one != other and UNKNOWN not in (one, other)
    ]


def jsonable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a line can hold them: infinite numbers as "inf" and "-inf", other objects as text."""
    return {key: _jsonable(value) for key, value in options.items()}


def _jsonable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def option_value(text: str) -> Any:
    """An option of the command line: JSON, "inf" or "-inf", else the text itself."""
    if text in ("inf", "-inf"):
        return float(text)
    try:
        return json.loads(text)
    except ValueError:
        return text
