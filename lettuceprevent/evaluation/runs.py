"""The run file: one JSON line per answer, with all that is needed to score it again without the host.

Contract: a run is a folder of shards (`answers-00000.jsonl`, one per process), or one such file, plain or
gzipped. A line is written with one call and synced before the next answer is begun; a process that is killed
loses at most the line it was writing, and the next writer cuts the torn rest off. A pair (prompt id, arm)
occurs once in a run; a second one raises. docs/evaluation.md describes every field.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

FORMAT = 1
_NEEDED = ("format", "prompt", "arm", "prevention", "decoding", "host", "answer", "timings")

Line = dict[str, Any]  #: one answer, as docs/evaluation.md describes it


class RunError(ValueError):
    """A run that cannot be read or written as it is; the message names file and line."""


def text_hash(text: str) -> str:
    """The first 16 hex digits of the SHA-256 of `text` in UTF-8: how a run names prompts and data."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def comparable(line: Mapping[str, Any]) -> Line:
    """A line without what differs between two runs of the same thing: its timings."""
    return {key: value for key, value in line.items() if key != "timings"}


# --- writing -----------------------------------------------------------------------------------------


class ShardWriter:
    """Appends lines to one shard. It holds a lock: a second writer of the same shard raises RunError.

    On opening, a torn last line is cut off; `cut` says how many bytes that were.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        import fcntl  # not on Windows, where runs can still be read

        new = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise RunError(f"{path}: expected to be its only writer, got a file another holds") from error
        if new:  # the name of the file is synced, too
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        self.cut = self._cut_torn_line()

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write `lines` and return when the disk has them. NaN and infinite numbers raise ValueError."""
        text = "".join(
            json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
            for line in lines
        )
        left = memoryview(text.encode("utf-8", errors="surrogatepass"))
        while left:
            left = left[os.write(self._fd, left) :]
        os.fsync(self._fd)

    def close(self) -> None:
        """Let the shard go."""
        os.close(self._fd)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut_torn_line(self) -> int:
        """A kill leaves a line without its end; a power cut may leave one whose end is there and whose
        middle is not."""
        size = os.fstat(self._fd).st_size
        start = good = 0
        last = b""
        with open(self.path, "rb") as file:
            for raw in file:
                if raw.endswith(b"\n"):
                    start, good, last = good, good + len(raw), raw
        if good and not _is_object(last):
            good = start
        if good < size:
            os.ftruncate(self._fd, good)
            os.fsync(self._fd)
        return size - good


def _is_object(raw: bytes) -> bool:
    try:
        return isinstance(json.loads(raw), dict)
    except ValueError:
        return False


# --- reading -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    file: int
    start: int
    size: int


class Run:
    """A run on disk, by prompt and arm. Memory grows by a few words per answer, never by their texts.

    arms: names in order of appearance. prompts: ids in order of appearance.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._files: list[IO[bytes]] = []
        self._names: list[Path] = []
        self._places: dict[str, dict[str, _Place]] = {}
        self.arms: list[str] = []
        for name in shards(self.path):
            self._index(name)

    @property
    def prompts(self) -> list[str]:
        return list(self._places)

    def __len__(self) -> int:
        """How many answers there are."""
        return sum(map(len, self._places.values()))

    def __contains__(self, key: tuple[str, str]) -> bool:
        """Whether (prompt id, arm) has been answered."""
        return key[1] in self._places.get(key[0], ())

    def __iter__(self) -> Iterator[Line]:
        """Every line, prompt by prompt."""
        for prompt in self._places:
            yield from self.answers(prompt).values()

    def answers(self, prompt: str) -> dict[str, Line]:
        """The lines of one prompt by arm, read from disk anew. An unknown prompt raises KeyError."""
        return {arm: self._read(place) for arm, place in self._places[prompt].items()}

    def first(self) -> Line | None:
        """Any line, None where there is none: for the settings all share."""
        return next(iter(self), None)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _index(self, name: Path) -> None:
        file = _opened(name)
        number, at, start = len(self._files), 0, 0
        self._files.append(file)
        self._names.append(name)
        for at, raw in enumerate(file, 1):
            if not raw.endswith(b"\n") and name.suffix != ".gz":
                break  # torn, or being written just now
            line = _parsed(raw, f"{name}, line {at}")
            prompt, arm = line["prompt"]["id"], line["arm"]
            if (prompt, arm) in self:
                raise RunError(
                    f"{name}, line {at}: expected one answer per prompt and arm, got a second one of {arm!r} "
                    f"to {prompt!r}"
                )
            self._places.setdefault(prompt, {})[arm] = _Place(number, start, len(raw))
            if arm not in self.arms:
                self.arms.append(arm)
            start += len(raw)

    def _read(self, place: _Place) -> Line:
        file = self._files[place.file]
        file.seek(place.start)
        return _parsed(file.read(place.size), str(self._names[place.file]))


def shards(path: Path) -> list[Path]:
    """The files of a run; none where the folder does not exist yet."""
    if path.is_dir():
        return sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")])
    return [path] if path.is_file() else []


def shard_name(folder: Path, process: int) -> Path:
    """The shard that process number `process` of a launch writes."""
    return folder / f"answers-{process:05d}.jsonl"


def read_lines(path: str | Path) -> Iterator[Line]:
    """The lines of a run in the order in which they were written, shard by shard."""
    for name in shards(Path(path)):
        with _opened(name) as file:
            for at, raw in enumerate(file, 1):
                if raw.endswith(b"\n") or name.suffix == ".gz":
                    yield _parsed(raw, f"{name}, line {at}")


def pack(run: str | Path, target: Path, *, contexts: bool = True, candidates: bool = True) -> int:
    """Write a run as one gzipped file, the same bytes for the same lines; returns how many there are.

    Lines are sorted by prompt and arm. contexts: without them the texts of the prompts are left out, where
    they must not be passed on; scoring then needs the prompts again. candidates: `answer.top`, most of a line.
    """
    count = 0
    with (
        Run(run) as lines,
        open(target, "wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as file,
    ):
        for prompt in sorted(lines.prompts):
            for _, line in sorted(lines.answers(prompt).items()):
                if not contexts:
                    line["prompt"] |= {"passages": [], "query": "", "text": ""}
                if not candidates:
                    line["answer"]["top"] = []
                text = json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
                file.write(text.encode("utf-8", "surrogatepass"))
                count += 1
    return count


def _opened(name: Path) -> IO[bytes]:
    if name.suffix != ".gz":
        return open(name, "rb")
    # seeking in gzip would unpack from the start each time
    copy = tempfile.TemporaryFile()  # noqa: SIM115
    with gzip.open(name, "rb") as packed:
        shutil.copyfileobj(packed, copy)
    copy.seek(0)
    return copy


def _parsed(raw: bytes, where: str) -> Line:
    try:
        line = json.loads(raw)
    except ValueError as error:
        raise RunError(f"{where}: expected a JSON object, got {raw[:60]!r}") from error
    missing = [key for key in _NEEDED if not isinstance(line, dict) or key not in line]
    if missing:
        raise RunError(f"{where}: expected an answer of a run, got a line without {', '.join(missing)}")
    if line["format"] != FORMAT:
        raise RunError(f"{where}: expected format {FORMAT}, got {line['format']!r}")
    return dict(line)
