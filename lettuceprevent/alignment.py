"""Host ids → detector ids, in the three ways a host's tokens can be shown to a detector.

Contract: `ids(history)` is a pure function of the host ids; `paths` gives the same ids for a history and its
candidates, split so that everything up to the split is final. What a detector was trained on decides the
mode:

- `host_chunks`: each host token's text is tokenised on its own. Append-only. What training did, with
  Llama-3.1 as host.
- `reference_chunks`: the answer's text is cut by the tokenizer used in training, each of its tokens tokenised
  on its own.
- `direct`: the answer's text is tokenised whole. What the published inference did.

The last two change their mind about the end of the text when more comes; the unstable tail is worked out
anew. Bytes that are no complete UTF-8 character become U+FFFD, as in a token's own decoding. Special tokens
add nothing.

`align` measures how far a host is from the detector's training and says which mode to use.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from .vocabulary import Vocabulary

MODES = ("host_chunks", "reference_chunks", "direct")
TRAINABLE = ("host_chunks", "direct")  # how answers can be shown in training
REFERENCE_NAME = "meta-llama/Llama-3.1-8B"

_KEPT = 64  # histories (or texts) whose ids are remembered; beams and rows of a batch each need one

# transformers 4 applied this to every decoding where the tokenizer's config asks for it, as Llama-3.1's does.
_CLEAN_UP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


class Alignment(Protocol):
    """One mode, for one host vocabulary and one detector tokenizer."""

    mode: str

    def text_ids(self, text: str) -> list[int]:
        """Detector ids of a context or query."""

    def ids(self, history: Sequence[int]) -> tuple[int, ...]:
        """Detector ids of an answer."""

    def paths(
        self, history: tuple[int, ...], candidates: Sequence[int]
    ) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        """(stable, tails): `ids(history + (c,))` is `stable` + its tail; `stable` is a part of every
        continuation's ids.

        The tail of a candidate without text is empty.
        """


def clean_up_spaces(text: str) -> str:
    """The spaces before punctuation that transformers 4 took out of a decoding."""
    for spaced, closed in _CLEAN_UP:
        text = text.replace(spaced, closed)
    return text


def token_text(token: bytes, clean_up: bool = False) -> str:
    """A token's own decoding."""
    text = token.decode("utf-8", errors="replace")
    return clean_up_spaces(text) if clean_up else text


class DetectorTokenizer:
    """A fast tokenizer that adds no special tokens and takes none from the text: a context cannot forge a
    separator.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._inner = _plain_copy(tokenizer)

    def __call__(self, text: str) -> tuple[int, ...]:
        """Ids of one text."""
        return tuple(self._inner.encode(text, add_special_tokens=False).ids) if text else ()

    def many(self, texts: list[str]) -> list[tuple[int, ...]]:
        """Ids of each text on its own."""
        return [tuple(each.ids) for each in self._inner.encode_batch(texts, add_special_tokens=False)]


_copies: weakref.WeakKeyDictionary[Any, tuple[int, Any]] = weakref.WeakKeyDictionary()


def _plain_copy(tokenizer: Any) -> Any:
    """The `tokenizers` object behind a tokenizer, copied because its settings are changed.

    Copying takes a tenth of a second, so it is done once per tokenizer, and anew where tokens were added since.
    """
    from tokenizers import Tokenizer

    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
    size = inner.get_vocab_size(with_added_tokens=True)
    with contextlib.suppress(TypeError):  # an object that no weak reference can point to is not remembered
        known = _copies.get(tokenizer)
        if known is not None and known[0] == size:
            return known[1]
    copy = Tokenizer.from_str(inner.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = True
    with contextlib.suppress(TypeError):
        _copies[tokenizer] = (size, copy)
    return copy


class _Pieces:
    """Token id -> detector ids of its text alone, worked out when first asked for."""

    def __init__(self, vocabulary: Vocabulary, encode: DetectorTokenizer, clean_up: bool) -> None:
        self._vocabulary = vocabulary
        self._encode = encode
        self._clean_up = clean_up
        self._known: dict[int, tuple[int, ...]] = {}

    def __call__(self, token_id: int) -> tuple[int, ...]:
        known = self._known.get(token_id)
        if known is None:
            known = self._encode(token_text(self._vocabulary[token_id], self._clean_up))
            self._known[token_id] = known
        return known

    def join(self, ids: Sequence[int]) -> tuple[int, ...]:
        pieces: list[int] = []
        for token_id in ids:
            pieces.extend(self(token_id))
        return tuple(pieces)


class _Recent:
    """The last few results of a function on growing sequences: what was worked out for a prefix is not done again.

    A list and not a mapping: a tuple's hash is worked out anew each time, comparing with a prefix is cheaper.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[Any, tuple[int, ...]]] = []

    def longest(
        self, sequence: Any, may_end: Callable[[Any, int], bool] | None = None
    ) -> tuple[int, tuple[int, ...]]:
        """(length, ids) of the longest remembered prefix of `sequence` (a tuple or bytes); (0, ()) if none.

        may_end: whether a prefix of that length, shorter than the sequence, may be used; by default any.
        """
        best, whole = 0, len(sequence)
        ids: tuple[int, ...] = ()
        for known, found in reversed(self._kept):  # the newest is most often the longest
            size = len(known)
            if not (best < size <= whole and sequence[:size] == known):
                continue
            if size == whole or may_end is None or may_end(sequence, size):
                best, ids = size, found
        return best, ids

    def keep(self, sequence: Any, ids: tuple[int, ...]) -> None:
        """Remember a sequence that `longest` did not know as a whole."""
        self._kept.append((sequence, ids))
        if len(self._kept) > _KEPT:
            del self._kept[0]


class HostChunks:
    """`host_chunks`: append-only."""

    mode = "host_chunks"

    def __init__(
        self,
        vocabulary: Vocabulary,
        detector_tokenizer: Any,
        host_ids: Callable[[str], list[int]],
        *,
        clean_up: bool = False,
    ) -> None:
        """host_ids: a text's ids under the host's tokenizer without special tokens; used for context and
        query.
        """
        self._vocabulary = vocabulary
        self._host_ids = host_ids
        self._pieces = _Pieces(vocabulary, DetectorTokenizer(detector_tokenizer), clean_up)
        self._recent = _Recent()

    def text_ids(self, text: str) -> list[int]:
        if not text:
            return []
        return list(_chunked(text, self._host_ids(text), self._vocabulary, self._pieces))

    def ids(self, history: Sequence[int]) -> tuple[int, ...]:
        history = tuple(history)
        size, ids = self._recent.longest(history)
        if size < len(history):
            ids = ids + self._pieces.join(history[size:])
            self._recent.keep(history, ids)
        return ids

    def paths(
        self, history: tuple[int, ...], candidates: Sequence[int]
    ) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        return self.ids(history), [self._pieces(candidate) for candidate in candidates]


class _TextMode:
    """An answer's text as a whole; the part before the last safe cut is final."""

    mode = ""

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], tuple[int, ...]], cuts: bool) -> None:
        self._vocabulary = vocabulary
        self._encode = encode
        self._cuts = cuts
        self._recent = _Recent()

    def text_ids(self, text: str) -> list[int]:
        return list(self._encode(text))

    def ids(self, history: Sequence[int]) -> tuple[int, ...]:
        data = self._vocabulary.join(history)
        at = self._cut(data)
        return self._final(data[:at]) + self._encode(_text(data[at:]))

    def paths(
        self, history: tuple[int, ...], candidates: Sequence[int]
    ) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        data = self._vocabulary.join(history)
        at = self._cut(data)
        tail, table = data[at:], self._vocabulary
        tails = [self._encode(_text(tail + table[each])) if table[each] else () for each in candidates]
        return self._final(data[:at]), tails

    def _cut(self, data: bytes) -> int:
        return _last_cut(data) if self._cuts else 0

    def _final(self, head: bytes) -> tuple[int, ...]:
        """Ids of a text that ends at a safe cut, from those of a remembered one that ends at a safe cut of this text.

        Where another answer was cut, this one may be in the middle of a word ("neg" is one of "negative").
        """
        size, ids = self._recent.longest(head, _is_cut)
        if size < len(head):
            ids = ids + self._encode(_text(head[size:]))
            self._recent.keep(head, ids)
        return ids


class Direct(_TextMode):
    """`direct`."""

    mode = "direct"

    def __init__(self, vocabulary: Vocabulary, detector_tokenizer: Any) -> None:
        encode = DetectorTokenizer(detector_tokenizer)
        super().__init__(vocabulary, encode, _cuts_at_words(encode))


class ReferenceChunks(_TextMode):
    """`reference_chunks`."""

    mode = "reference_chunks"

    def __init__(
        self,
        vocabulary: Vocabulary,
        detector_tokenizer: Any,
        reference_tokenizer: Any,
        *,
        reference_vocabulary: Vocabulary | None = None,
        clean_up: bool = False,
    ) -> None:
        reference = DetectorTokenizer(reference_tokenizer)
        table = reference_vocabulary or Vocabulary.for_tokenizer(reference_tokenizer)
        pieces = _Pieces(table, DetectorTokenizer(detector_tokenizer), clean_up)

        def encode(text: str) -> tuple[int, ...]:
            return _chunked(text, list(reference(text)), table, pieces) if text else ()

        super().__init__(vocabulary, encode, _cuts_at_words(reference))


def make_alignment(
    mode: str,
    vocabulary: Vocabulary,
    host_tokenizer: Any,
    detector_tokenizer: Any,
    *,
    reference_tokenizer: Any = None,
    clean_up: bool = False,
) -> Alignment:
    """The alignment of `mode`. `reference_chunks` needs the tokenizer used in training (itself, its folder or
    its hub id); ValueError without it.

    clean_up: take the spaces before punctuation out of each chunk, as transformers 4 did in decoding
        Llama-3.1's tokens.
    """
    if mode == "host_chunks":
        return HostChunks(vocabulary, detector_tokenizer, host_encoder(host_tokenizer), clean_up=clean_up)
    if mode == "direct":
        return Direct(vocabulary, detector_tokenizer)
    if mode == "reference_chunks":
        if reference_tokenizer is None:
            raise ValueError(
                f"alignment 'reference_chunks' expects the tokenizer used in training (for the published "
                f"detector {REFERENCE_NAME}), got None"
            )
        if isinstance(reference_tokenizer, str | Path):
            from transformers import AutoTokenizer

            reference_tokenizer = AutoTokenizer.from_pretrained(reference_tokenizer, trust_remote_code=False)
        return ReferenceChunks(vocabulary, detector_tokenizer, reference_tokenizer, clean_up=clean_up)
    raise ValueError(f"expected an alignment among {', '.join(MODES)}, got {mode!r}")


def host_encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """text -> ids under the host's tokenizer, without special tokens, none of which is read out of the text."""
    if getattr(tokenizer, "backend_tokenizer", None) is not None:
        encode = DetectorTokenizer(tokenizer)
        return lambda text: list(encode(text))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False))


def _chunked(text: str, ids: list[int], vocabulary: Vocabulary, pieces: _Pieces) -> tuple[int, ...]:
    """Detector ids of a text that some tokenizer has cut into `ids`."""
    if ids and not text.startswith(" "):
        first = vocabulary[ids[0]]
        if first.startswith(b" "):
            # The blank that SentencePiece puts before a text is none of the text's.
            head = pieces._encode(token_text(first[1:], pieces._clean_up))
            return head + pieces.join(ids[1:])
    return pieces.join(ids)


def _cuts_at_words(encode: DetectorTokenizer) -> bool:
    """Whether a text may be cut before ' word' without changing its ids: true of byte-level pre-tokenizers."""
    probes = (
        "The mayor said it wasn't 12,500 people",
        "a b  c\n\n d (e) 'f g's 10th x",
        "Él dijo año nuevo über alles",
    )
    for probe in probes:
        data = probe.encode("utf-8")
        for at in range(1, len(data) - 1):
            if _is_cut(data, at) and encode(data[:at].decode()) + encode(data[at:].decode()) != encode(probe):
                return False
    return True


def _is_cut(data: bytes, at: int) -> bool:
    """Whether a single blank stands at `at`, between an ASCII letter or digit and an ASCII letter."""
    return data[at] == 0x20 and _is_word(data[at - 1]) and chr(data[at + 1]).isalpha() and data[at + 1] < 0x80


def _is_word(byte: int) -> bool:
    return byte < 0x80 and chr(byte).isalnum()


def _last_cut(data: bytes) -> int:
    """The last place where the text may be cut for good; 0 if there is none."""
    at = data.rfind(b" ", 1, len(data) - 1)
    while at > 0:
        if _is_cut(data, at):
            return at
        at = data.rfind(b" ", 1, at)
    return 0


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
