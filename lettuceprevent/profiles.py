"""Profiles: the options that `lettuceprevent tune` found for a host, as a small JSON file.

Contract: `generate(profile=...)` takes options from it that the call itself does not give. A profile names the
host, the detector, the versions and the data it was measured with; used with another host, detector or version
it warns, naming both, and goes on. It never changes how the host decodes.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from .version import VERSION

PROFILE_FORMAT = 1
_PROCESSOR = ("skip_threshold", "candidates", "confidence_threshold", "unscored", "on_unsupported")


def restored(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as they were before a JSON file held them: "inf" and "-inf" are numbers, which strict JSON has not."""
    return {name: float(value) if value in ("inf", "-inf") else value for name, value in options.items()}


@dataclass(frozen=True)
class Profile:
    """What was found, for whom, and from what.

    options: of `generate()`, detector_type not among them. detector: type, and the version of each detector by
    name. host: as `describe_host` has it. data: source, sha256, prompts. measured: figures of the chosen point.
    """

    detector: dict[str, Any]
    options: dict[str, Any]
    host: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    decoding: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    made: str = ""
    format: int = PROFILE_FORMAT

    @classmethod
    def load(cls, source: Profile | str | Path | Mapping[str, Any]) -> Profile:
        """A profile from a file, or from its content. Raises ValueError where it is none."""
        if isinstance(source, Profile) or hasattr(source, "fill"):  # or that of an exported copy
            return cast(Profile, source)
        where = "the given mapping"
        found: Any = source
        if not isinstance(source, Mapping):
            where = repr(str(source))
            try:
                found = json.loads(Path(source).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ValueError(f"profile: expected a JSON file at {where}: {error}") from error
        needed = ("format", "detector", "options", "host")
        missing = [key for key in needed if not isinstance(found, Mapping) or key not in found]
        if missing:
            raise ValueError(
                f"profile: expected {', '.join(needed)} in {where}, got none of {', '.join(missing)}"
            )
        if found["format"] != PROFILE_FORMAT:
            raise ValueError(f"profile: expected format {PROFILE_FORMAT} in {where}, got {found['format']!r}")
        known = {name: found[name] for name in cls.__dataclass_fields__ if name in found}
        return cls(**{**known, "options": restored(found["options"])})

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        text = json.dumps(asdict(self), ensure_ascii=False, indent=2, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    def fill(self, arguments: dict[str, Any], detector_type: str | None) -> str | None:
        """Add options that are not in `arguments` (or None there); returns the detector type to use.

        detector_type: as the call gives it; one of class `Unset` takes the profile's. With another detector
        only the processor's options are taken.
        """
        mine: str = self.detector["type"]
        wanted = mine if isinstance(detector_type, Unset) else detector_type
        for name, value in self.options.items():
            if arguments.get(name) is None and (wanted == mine or name in _PROCESSOR):
                arguments[name] = value
        return wanted

    def differences(
        self, model: Any, vocabulary: Any, detector_type: str | None, detectors: Sequence[Any]
    ) -> list[str]:
        """What is not as it was when the profile was made, in words."""
        found = []
        here = describe_host(model, vocabulary)
        name, now = (_last(host.get("id")) for host in (self.host, here))
        if name != now:
            found.append(f"the host is {here['id']!r}, it was made for {self.host.get('id')!r}")
        for key in ("shape", "vocabulary"):
            if self.host.get(key) != here[key]:
                found.append(f"the host's {key} is {here[key]!r}, not {self.host.get(key)!r}")
        if detector_type != self.detector["type"]:
            found.append(f"the detector is {detector_type!r}, it was made for {self.detector['type']!r}")
            return found
        versions = self.detector.get("versions") or {}
        for detector, version in detector_versions(detectors).items():
            if versions.get(detector) != version:
                found.append(f"detector {detector} has version {version!r}, not {versions.get(detector)!r}")
        if self.versions.get("lettuceprevent", VERSION) != VERSION:
            found.append(f"this is lettuceprevent {VERSION}, not {self.versions['lettuceprevent']}")
        return found

    def warn(self, model: Any, vocabulary: Any, detector_type: str | None, detectors: Sequence[Any]) -> None:
        """Warn where the profile is used with something else than it was made for."""
        found = self.differences(model, vocabulary, detector_type, detectors)
        if found:
            warnings.warn(f"the profile was measured otherwise: {'; '.join(found)}", stacklevel=3)


class Unset(str):
    """A default that can be told from the same string given by the caller."""


def describe_host(model: Any, vocabulary: Any) -> dict[str, Any]:
    """How a profile names a host: id (of a folder its name, not where it lies), shape (type, width x layers,
    vocabulary), and the vocabulary's hash."""
    config = model.config
    name = str(getattr(config, "_name_or_path", "") or "")
    parts = [getattr(config, name, None) for name in ("hidden_size", "num_hidden_layers", "vocab_size")]
    width, layers, size = parts
    return {
        "id": host_name(name),
        "shape": f"{getattr(config, 'model_type', '')} {width}x{layers}, {size}",
        "vocabulary": str(vocabulary.fingerprint)[:16],
    }


def host_name(source: str) -> str:
    """A host's id; of a folder its name, not where it lies."""
    return Path(source).name if source and Path(source).is_dir() else source


def detector_versions(detectors: Sequence[Any]) -> dict[str, str]:
    """The version of each detector, by name; `detectors` as `build_detectors` returns them."""
    firsts = [item[0] if isinstance(item, list | tuple) else item for item in detectors]
    return {str(item.name): str(item.version) for item in firsts}


def _last(name: Any) -> str:
    """The last part of a model id or folder: a copy of a model is the same model."""
    return str(name or "").rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1].casefold()
