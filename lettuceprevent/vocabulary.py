"""Token id → the bytes the token adds to the text, for Hugging Face tokenizers.

Contract: the joined bytes of an encoded text are the tokenizer's normalised text, apart from the leading
blank that SentencePiece adds. Special tokens, ids the tokenizer does not know (holes, logits wider than the
tokenizer) add b"". Which kind a tokenizer is, is read from its pipeline (model type and decoder chain),
never from its class name, and the result is tried on probe texts before it is used. Kinds: byte-level BPE;
BPE and Unigram over SentencePiece pieces, with or without byte fallback. WordPiece and others whose text
depends on neighbouring tokens raise UnsupportedTokenizerError.

Built once per tokenizer object, cached on disk under the hash of the tokenizer's definition.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import weakref
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

_FORMAT = "2"  # part of the cache key: raise it when the table of an unchanged tokenizer changes

# Short texts with what tends to go wrong: digits and signs, runs of blanks, line ends, several scripts,
# split emoji.
_PROBES = (
    "Revenue was 2,400 million in 2021.",
    "Hello  world\n\n\tx = 3.14;   end",
    "−5.13 % · 23½ é ü שלום ٣١ 漢字 😀👩‍🚀",
)


class UnsupportedTokenizerError(ValueError):
    """The tokenizer's tokens cannot be mapped to bytes one by one. The message names it and its kind."""


class Vocabulary:
    """The bytes each token id adds.

    table: one entry per id below `size`; b"" for special tokens and holes.
    size: the largest id the tokenizer knows, plus one. len(vocabulary) is the same.
    special_ids: ids of special tokens (end of sequence, padding, chat roles, unknown ...).
    byte_fallback: characters without a token are spelled in byte tokens, and decoding shows a run of byte
        tokens as U+FFFD, one per token, unless the whole run is valid UTF-8.
    fingerprint: hash of all of this, a hex string.
    """

    __slots__ = ("__weakref__", "byte_fallback", "fingerprint", "size", "special_ids", "table")

    def __init__(
        self, table: Iterable[bytes], special_ids: Iterable[int] = (), *, byte_fallback: bool = False
    ) -> None:
        self.byte_fallback = byte_fallback
        entries = list(table)
        self.special_ids: frozenset[int] = frozenset(special_ids)
        for token_id in self.special_ids:
            if 0 <= token_id < len(entries):
                entries[token_id] = b""
        self.table: tuple[bytes, ...] = tuple(entries)
        self.size: int = len(entries)
        self.fingerprint: str = _fingerprint(*_pack(self))

    def __getitem__(self, token_id: int) -> bytes:
        return self.table[token_id] if 0 <= token_id < self.size else b""

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"Vocabulary(size={self.size}, fingerprint={self.fingerprint[:12]})"

    def join(self, ids: Iterable[int]) -> bytes:
        """The bytes that `ids` add, in order. May end, or begin, inside a UTF-8 character."""
        table, size = self.table, self.size
        return b"".join([table[i] for i in ids if 0 <= i < size])

    @classmethod
    def for_tokenizer(cls, tokenizer: Any, *, cache_dir: str | Path | None = None) -> Vocabulary:
        """The vocabulary of a transformers tokenizer, memoised on the tokenizer object.

        cache_dir: where tables are kept between runs; default the folder `vocabulary` in
            ``${LETTUCEPREVENT_CACHE:-~/.cache/lettuceprevent}``. A folder that cannot be written is
            tolerated, a damaged file is rebuilt.

        Tokens added to the tokenizer later are noticed. Raises UnsupportedTokenizerError, naming the
        tokenizer and its kind.
        """
        if tokenizer is None:
            raise TypeError("expected a tokenizer, got None")
        state = _state(tokenizer)
        with contextlib.suppress(TypeError):  # an object that cannot be hashed is not memoised
            known = _memo.get(tokenizer)
            if known is not None and known[0] == state:
                return known[1]
        vocabulary = _load_or_build(tokenizer, Path(cache_dir) if cache_dir is not None else _default_cache())
        with contextlib.suppress(TypeError):
            _memo[tokenizer] = (state, vocabulary)
        return vocabulary


_memo: weakref.WeakKeyDictionary[Any, tuple[Any, Vocabulary]] = weakref.WeakKeyDictionary()


def _state(tokenizer: Any) -> tuple[Any, ...]:
    """What changes when tokens are added to a tokenizer object; cheap for hundreds of thousands of tokens."""
    backend = _backend(tokenizer)
    if backend is not None:
        size = len(backend.get_added_tokens_decoder())
    else:
        size = len(tokenizer) if hasattr(tokenizer, "__len__") else -1
    return size, repr(getattr(tokenizer, "special_tokens_map", None))


def _special_ids(tokenizer: Any) -> set[int]:
    return {int(i) for i in getattr(tokenizer, "all_special_ids", ()) if i is not None}


def _name(tokenizer: Any) -> str:
    where = getattr(tokenizer, "name_or_path", "")
    return type(tokenizer).__name__ + (f" ({where})" if where else "")


def _unsupported(tokenizer: Any, kind: str) -> UnsupportedTokenizerError:
    return UnsupportedTokenizerError(
        f"expected byte-level BPE or SentencePiece pieces (BPE or Unigram), got {kind}: {_name(tokenizer)}. "
        "Its tokens cannot be mapped to bytes one by one."
    )


# --- token strings → bytes ----------------------------------------------------------------------


def _byte_level_map() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes, from character to byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


# As a translation to Latin-1, where the n-th character is byte n: str.translate and encode run in C.
_BYTE_LEVEL = {ord(character): byte for character, byte in _byte_level_map().items()}
# Latin-1 characters that stand for nothing must not survive the translation as if they were bytes.
_BYTE_LEVEL |= {code: 0xFFFD for code in range(256) if code not in _BYTE_LEVEL}


def _byte_level_bytes(token: str) -> bytes:
    try:
        return token.translate(_BYTE_LEVEL).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode(
            "utf-8", "surrogatepass"
        )  # not in the alphabet: the decoder, too, takes it as it stands


_BYTE_TOKENS = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


class _Pieces:
    """How the tokens of one tokenizer turn into bytes."""

    def __init__(self, byte_level: bool, replacements: list[tuple[str, str]], byte_fallback: bool) -> None:
        self.byte_level = byte_level
        self.replacements = replacements
        self.byte_fallback = byte_fallback

    def text(self, piece: str) -> str:
        for old, new in self.replacements:
            piece = piece.replace(old, new)
        return piece

    def token(self, token: str) -> bytes:
        if self.byte_level:
            return _byte_level_bytes(token)
        if self.byte_fallback and token in _BYTE_TOKENS:
            return _BYTE_TOKENS[token]
        return self.text(token).encode("utf-8", "surrogatepass")

    def added(self, content: str) -> bytes:
        return (content if self.byte_level else self.text(content)).encode("utf-8", "surrogatepass")


def _component(part: Any) -> Any:
    """A tokenizers component as data ({"type": ...}), or None where there is none."""
    return None if part is None else json.loads(part.__getstate__())


def _chain(component: Any, key: str) -> list[dict[str, Any]]:
    if component is None:
        return []
    if component.get("type") == "Sequence":
        return [inner for each in component[key] for inner in _chain(each, key)]
    return [component]


def _pieces_of_backend(tokenizer: Any, backend: Any) -> _Pieces:
    model = backend.model
    kind = type(model).__name__
    if kind not in ("BPE", "Unigram"):
        raise _unsupported(tokenizer, kind)
    for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
        if getattr(model, affix, None):
            raise _unsupported(tokenizer, f"{kind} with {affix} {getattr(model, affix)!r}")
    try:
        decoders = _chain(_component(backend.decoder), "decoders")
        before = _chain(_component(backend.pre_tokenizer), "pretokenizers")
        before += _chain(_component(backend.normalizer), "normalizers")
    except Exception as error:
        raise _unsupported(tokenizer, f"{kind} with a pipeline written in Python") from error
    if not decoders:  # then the way in says what the way out has to undo
        decoders = [step for step in before if step["type"] in ("ByteLevel", "Metaspace")]
    if any(step["type"] == "ByteLevel" for step in decoders):
        return _Pieces(True, [], False)
    replacements: list[tuple[str, str]] = []
    byte_fallback = bool(getattr(model, "byte_fallback", False))
    for step in decoders:
        name = step["type"]
        if name == "Metaspace":
            replacements.append((step["replacement"], " "))
        elif name == "Replace" and "String" in step["pattern"]:
            replacements.append((step["pattern"]["String"], step["content"]))
        elif name == "ByteFallback":
            byte_fallback = True
        elif name == "Strip" and step["content"] == " " and step["stop"] == 0:
            pass  # only the text's leading blank
        elif name != "Fuse":
            raise _unsupported(tokenizer, f"{kind} with the decoder {name}")
    if not replacements and not byte_fallback:
        raise _unsupported(tokenizer, f"{kind} without a decoder that says how tokens become text")
    return _Pieces(False, replacements, byte_fallback)


def _build(tokenizer: Any) -> Vocabulary:
    backend = _backend(tokenizer)
    special = _special_ids(tokenizer)
    added: Mapping[int, Any]
    if backend is not None:
        pieces = _pieces_of_backend(tokenizer, backend)
        tokens: Mapping[str, int] = backend.get_vocab(with_added_tokens=False)
        added = backend.get_added_tokens_decoder()
        unknown = getattr(backend.model, "unk_token", None)
        if isinstance(unknown, str) and unknown in tokens:
            special.add(tokens[unknown])
        unknown_id = getattr(backend.model, "unk_id", None)
        if isinstance(unknown_id, int):
            special.add(unknown_id)
    elif hasattr(tokenizer, "sp_model"):  # written in Python over SentencePiece
        fallback = bool(
            getattr(tokenizer.sp_model, "is_byte", lambda _: False)(tokenizer.sp_model.piece_to_id("<0x0A>"))
        )
        pieces = _Pieces(False, [("▁", " ")], fallback)
        tokens, added = tokenizer.get_vocab(), getattr(tokenizer, "added_tokens_decoder", {})
    elif hasattr(tokenizer, "byte_decoder"):  # written in Python, byte-level
        pieces = _Pieces(True, [], False)
        tokens, added = tokenizer.get_vocab(), getattr(tokenizer, "added_tokens_decoder", {})
    else:
        raise _unsupported(
            tokenizer, "a tokenizer without a `tokenizers` backend, SentencePiece model or byte map"
        )
    size = 1 + max(max(tokens.values(), default=-1), max(added, default=-1))
    table = [b""] * size
    for token, token_id in tokens.items():
        table[token_id] = pieces.token(token)
    for token_id, entry in added.items():
        table[token_id] = pieces.added(entry.content)
        if entry.special:
            special.add(token_id)
    vocabulary = Vocabulary(table, special, byte_fallback=pieces.byte_fallback)
    _check(tokenizer, backend, pieces, vocabulary)
    return vocabulary


def _backend(tokenizer: Any) -> Any:
    return getattr(tokenizer, "backend_tokenizer", None)


def _check(tokenizer: Any, backend: Any, pieces: _Pieces, vocabulary: Vocabulary) -> None:
    """Encodes the probe texts and compares the joined bytes with them. Raises UnsupportedTokenizerError."""
    normalizer = backend.normalizer if backend is not None else None
    for probe in _PROBES:
        ids = tokenizer.encode(probe, add_special_tokens=False)
        if vocabulary.special_ids.intersection(ids):
            continue  # an unknown character; there is no text to compare
        got = vocabulary.join(ids)
        text = normalizer.normalize_str(probe) if normalizer is not None else probe
        expected = (text if pieces.byte_level else pieces.text(text)).encode()
        if _same(got, expected):
            continue
        # Tokenizers that drop line ends or runs of blanks: their own decoding says what the text is.
        decoded = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        if not _same(got, decoded.encode()):
            raise UnsupportedTokenizerError(
                f"{_name(tokenizer)}: expected the tokens of {probe!r} to add {expected!r}, got {got!r}; "
                "the tokenizer changes text in a way this version does not know"
            )


def _same(left: bytes, right: bytes) -> bool:
    return left == right or left == b" " + right or right == b" " + left


# --- the disk cache -----------------------------------------------------------------------------


def _default_cache() -> Path:
    chosen = os.environ.get("LETTUCEPREVENT_CACHE") or "~/.cache/lettuceprevent"
    return Path(os.path.expanduser(chosen)) / "vocabulary"


def _key(tokenizer: Any) -> str | None:
    """A hash of everything the table depends on, or None for tokenizers without a serialisable definition."""
    backend = _backend(tokenizer)
    if backend is None:
        return None
    try:
        definition = backend.to_str()
    except Exception:
        return None
    # What comes before is the truncation and padding of the last call.
    definition = definition[max(0, definition.find('"added_tokens"')) :]
    digest = hashlib.sha256(f"{_FORMAT} {sorted(_special_ids(tokenizer))} ".encode())
    digest.update(definition.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _load_or_build(tokenizer: Any, folder: Path) -> Vocabulary:
    key = _key(tokenizer)
    if key is None:
        return _build(tokenizer)
    path = folder / f"{key[:32]}.npz"
    vocabulary = _load(path)
    if vocabulary is None:
        vocabulary = _build(tokenizer)
        _save(path, vocabulary)
    return vocabulary


def _pack(vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    lengths = np.fromiter(map(len, vocabulary.table), dtype=np.int32, count=vocabulary.size)
    data = np.frombuffer(b"".join(vocabulary.table), dtype=np.uint8)
    special = np.array(sorted(vocabulary.special_ids), dtype=np.int64)
    return lengths, data, special, np.array(vocabulary.byte_fallback)


def _fingerprint(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _load(path: Path) -> Vocabulary | None:
    """The cached vocabulary, or None where there is none or the file is damaged."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            lengths, data, special = stored["lengths"], stored["data"].tobytes(), stored["special"]
            fallback, expected = bool(stored["byte_fallback"]), str(stored["fingerprint"])
        ends = np.cumsum(lengths, dtype=np.int64).tolist()
        starts = [0, *ends[:-1]]
        table = [data[a:b] for a, b in zip(starts, ends, strict=True)]
        vocabulary = Vocabulary(table, special.tolist(), byte_fallback=fallback)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        logger.info("rebuilding the vocabulary: %s cannot be read (%s)", path, error)
        return None
    return vocabulary if vocabulary.fingerprint == expected else None


def _save(path: Path, vocabulary: Vocabulary) -> None:
    """Writes aside and renames, so that readers and other writers never see half a file."""
    lengths, data, special, fallback = _pack(vocabulary)
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=".tmp")
        with os.fdopen(descriptor, "wb") as file:
            np.savez(
                file,
                lengths=lengths,
                data=data,
                special=special,
                byte_fallback=fallback,
                fingerprint=np.array(vocabulary.fingerprint),
            )
        os.replace(temporary, path)
    except OSError as error:
        logger.info("the vocabulary is not cached: %s", error)
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
