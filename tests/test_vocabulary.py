"""The bytes of tokens: tokenizers trained here, one of each kind, and the real ones."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import real_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import lettuceprevent.vocabulary as module
from lettuceprevent.assets import TOKENIZERS
from lettuceprevent.vocabulary import UnsupportedTokenizerError, Vocabulary

CORPUS = [
    "Revenue was 2,400 million in 2021 and 3,100 million in 2022, up 29.2 %.",
    "The museum opens at 10:30 and closes at 18:00; tickets cost $12.50.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.\n\n\tEnd.",
] * 20

TEXTS = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=40),
    st.text(alphabet="0123456789.,:%-−–½٣१๓1２₂² \n\t", max_size=40),
    st.lists(
        st.sampled_from(
            [
                "😀",
                "👩‍🚀",
                "שלום",
                "عدد ٣١",
                "  ",
                "\n\n",
                "\r\n",
                "2,400",
                " million",
                "é",
                "漢字",
                "a",
                "▁",
                "<0x0A>",
            ]
        ),
        max_size=12,
    ).map("".join),
)


def wrap(backend: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=backend, **options)


def byte_level() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    backend.train_from_iterator(CORPUS, trainer)
    return wrap(backend, eos_token="<|end|>")


def sentencepiece_bpe() -> PreTrainedTokenizerFast:
    """In the form of Llama-2: the normaliser puts a blank in front, unknown characters go to bytes."""
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=600, special_tokens=specials))
    definition = json.loads(backend.to_str())
    definition["added_tokens"] = definition["added_tokens"][:3]  # byte tokens are ordinary tokens
    backend = Tokenizer.from_str(json.dumps(definition))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return wrap(backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def unigram() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>"
    )
    backend.train_from_iterator(CORPUS, trainer)
    return wrap(backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def word_piece() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]"]))
    return wrap(backend, unk_token="[UNK]")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables are cached aside, so that no test reads what another one, or an older version, wrote."""
    monkeypatch.setattr("lettuceprevent.vocabulary._default_cache", lambda: tmp_path / "vocabulary")
    return tmp_path / "vocabulary"


@functools.cache
def trained(kind: str) -> Any:
    return {"byte_level": byte_level, "sentencepiece": sentencepiece_bpe, "unigram": unigram}[kind]()


def normalised(tokenizer: Any, text: str) -> bytes:
    normalizer = tokenizer.backend_tokenizer.normalizer
    text = normalizer.normalize_str(text) if normalizer is not None else text
    if "ByteLevel" not in str(tokenizer.backend_tokenizer.decoder):
        text = text.replace("▁", " ")
    return text.encode()


@functools.cache
def known_bytes(vocabulary: Vocabulary) -> frozenset[int]:
    return frozenset(entry[0] for entry in vocabulary.table if len(entry) == 1)


def assert_round_trip(tokenizer: Any, vocabulary: Vocabulary, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False).input_ids
    if vocabulary.special_ids.intersection(ids):
        return  # the text names a special token, or holds a character that this tokenizer does not know
    got, expected = vocabulary.join(ids), normalised(tokenizer, text)
    if not set(expected) <= known_bytes(vocabulary):
        return  # SmolLM2 knows no token for some bytes, and drops them
    assert got in (expected, b" " + expected) or b" " + got == expected, (text, got, expected)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "unigram"])
@given(text=TEXTS)
def test_round_trip(kind: str, text: str) -> None:
    tokenizer = trained(kind)
    assert_round_trip(tokenizer, Vocabulary.for_tokenizer(tokenizer), text)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=TEXTS)
def test_round_trip_of_real_tokenizers(name: str, text: str) -> None:
    tokenizer = real_tokenizer(name)
    assert_round_trip(tokenizer, Vocabulary.for_tokenizer(tokenizer), text)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_real_tokens(name: str) -> None:
    tokenizer = real_tokenizer(name)
    vocabulary = Vocabulary.for_tokenizer(tokenizer)
    assert (
        vocabulary.size == len(vocabulary) == len(vocabulary.table) == max(tokenizer.get_vocab().values()) + 1
    )
    assert set(tokenizer.all_special_ids) <= vocabulary.special_ids
    assert all(vocabulary[i] == b"" for i in vocabulary.special_ids)
    # Every byte that can occur in UTF-8 has a token of its own, but for some that SmolLM2 does not know.
    possible = {byte for byte in range(256) if byte not in (0xC0, 0xC1) and byte < 0xF5}
    unknown = possible - known_bytes(vocabulary)
    assert not unknown or (name == "smollm2" and not unknown.intersection(b"0123456789\n\t .,%"))
    ids = tokenizer.encode("in 2021\n", add_special_tokens=False)
    assert vocabulary.join(ids).strip(b" ") == b"in 2021\n"
    assert vocabulary[tokenizer.encode("a\n", add_special_tokens=False)[-1]].endswith(b"\n")
    # Padded logits and nonsense ids.
    for token_id in (vocabulary.size, vocabulary.size + 1000, -1):
        assert vocabulary[token_id] == b""
    assert vocabulary.join([vocabulary.size + 5, *ids, -100]) == vocabulary.join(ids)


def test_lone_blank_pieces_and_byte_tokens() -> None:
    for name in ("mistral", "llama2", "gemma3"):
        tokenizer = real_tokenizer(name)
        vocabulary, ids = Vocabulary.for_tokenizer(tokenizer), tokenizer.get_vocab()
        assert vocabulary[ids["▁"]] == b" "
        assert vocabulary[ids["▁▁"]] == b"  "
        assert vocabulary[ids["<0x0A>"]] == b"\n"
        assert vocabulary[ids["<0xF0>"]] == b"\xf0"
        assert vocabulary[ids["▁the"]] == b" the"


def test_an_emoji_split_over_tokens() -> None:
    tokenizer = real_tokenizer("smollm2")
    vocabulary = Vocabulary.for_tokenizer(tokenizer)
    ids = tokenizer.encode("🧑‍🚀", add_special_tokens=False)
    assert len(ids) > 2
    assert vocabulary.join(ids) == "🧑‍🚀".encode()


def test_added_and_special_tokens_and_holes() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<tool>", special=False), AddedToken("naïve 25 ", special=False)])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    vocabulary, ids = Vocabulary.for_tokenizer(tokenizer), tokenizer.get_vocab()
    assert vocabulary[ids["<tool>"]] == b"<tool>"
    assert vocabulary[ids["naïve 25 "]] == "naïve 25 ".encode()
    assert vocabulary[ids["<|user|>"]] == vocabulary[ids["<|end|>"]] == b""
    assert {ids["<|user|>"], ids["<|end|>"]} <= vocabulary.special_ids
    gptoss = real_tokenizer("gptoss")
    known = set(gptoss.get_vocab().values())
    table = Vocabulary.for_tokenizer(gptoss)
    holes = [i for i in range(table.size) if i not in known]
    assert all(table[i] == b"" for i in holes)


def test_tokens_added_later_are_noticed() -> None:
    tokenizer = byte_level()
    before = Vocabulary.for_tokenizer(tokenizer)
    assert Vocabulary.for_tokenizer(tokenizer) is before
    tokenizer.add_tokens(["<later>"])
    after = Vocabulary.for_tokenizer(tokenizer)
    assert after.size == before.size + 1
    assert after[before.size] == b"<later>"
    assert after.fingerprint != before.fingerprint


def test_truncation_left_on_the_tokenizer_does_not_matter(own_cache: Path) -> None:
    first, second = byte_level(), byte_level()
    second("a long text that is cut", truncation=True, max_length=3)
    a, b = Vocabulary.for_tokenizer(first), Vocabulary.for_tokenizer(second)
    assert a.table == b.table
    assert len(list(own_cache.glob("*.npz"))) == 1


def test_unsupported_tokenizers_name_themselves() -> None:
    with pytest.raises(UnsupportedTokenizerError, match=r"got WordPiece: \w*Token\w*"):
        Vocabulary.for_tokenizer(word_piece())
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    with pytest.raises(UnsupportedTokenizerError, match="got WordLevel"):
        Vocabulary.for_tokenizer(wrap(words))
    clip = Tokenizer(models.BPE({"a</w>": 0, "a": 1}, [], end_of_word_suffix="</w>"))
    with pytest.raises(UnsupportedTokenizerError, match="end_of_word_suffix"):
        Vocabulary.for_tokenizer(wrap(clip))
    bare = Tokenizer(models.BPE({"a": 0}, []))
    with pytest.raises(UnsupportedTokenizerError, match="without a decoder"):
        Vocabulary.for_tokenizer(wrap(bare))
    with pytest.raises(UnsupportedTokenizerError, match="object"):
        Vocabulary.for_tokenizer(object())
    with pytest.raises(TypeError, match="expected a tokenizer, got None"):
        Vocabulary.for_tokenizer(None)


def test_a_table_that_does_not_hold_is_refused() -> None:
    """Joined bytes that are neither the text that went in nor what the tokenizer's decoding says."""
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("e", "o"), decoders.Fuse(), decoders.Replace("wasĠ2", "")]
    )
    with pytest.raises(UnsupportedTokenizerError, match="expected the tokens of"):
        Vocabulary.for_tokenizer(tokenizer)


class PiecewiseSlowTokenizer:
    """What a tokenizer written in Python over SentencePiece offers (transformers 4, `use_fast=False`)."""

    all_special_ids = (0,)
    pieces = ("<unk>", "▁", "<0x0A>", *(chr(c) for c in range(33, 127)))

    class Model:
        def __init__(self, pieces: tuple[str, ...]) -> None:
            self.pieces = pieces

        def piece_to_id(self, piece: str) -> int:
            return self.pieces.index(piece) if piece in self.pieces else 0

        def is_byte(self, token_id: int) -> bool:
            return self.pieces[token_id].startswith("<0x")

    def __init__(self) -> None:
        self.sp_model = self.Model(self.pieces)

    def get_vocab(self) -> dict[str, int]:
        return {piece: i for i, piece in enumerate(self.pieces)}

    def encode(self, text: str, **_: Any) -> list[int]:
        return [self.sp_model.piece_to_id(c) for c in ("▁" + text.replace(" ", "▁"))]


def test_tokenizers_without_a_backend_over_sentencepiece() -> None:
    vocabulary = Vocabulary.for_tokenizer(PiecewiseSlowTokenizer())
    assert vocabulary.table[:4] == (b"", b" ", b"\n", b"!")


def test_mappings_to_bytes_agree_with_the_decoder() -> None:
    """Every byte: decoding a token on its own gives its bytes, where these are text."""
    tokenizer = byte_level()
    vocabulary = Vocabulary.for_tokenizer(tokenizer)
    for token_id in range(vocabulary.size):
        if token_id not in vocabulary.special_ids:
            assert tokenizer.decode([token_id]) == vocabulary[token_id].decode("utf-8", "replace")


def test_disk_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Vocabulary.for_tokenizer(byte_level())
    (path,) = own_cache.glob("*.npz")
    builds = []
    from lettuceprevent import vocabulary as module

    build = module._build
    monkeypatch.setattr(module, "_build", lambda tokenizer: builds.append(1) or build(tokenizer))
    again = Vocabulary.for_tokenizer(byte_level())
    assert not builds
    assert (again.table, again.special_ids, again.fingerprint) == (
        first.table,
        first.special_ids,
        first.fingerprint,
    )

    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    damaged = [b"", b"not a zip file", whole[: len(whole) // 2], bytes(flipped)]
    for content in damaged:
        path.write_bytes(content)
        builds.clear()
        assert Vocabulary.for_tokenizer(byte_level()).table == first.table
        assert builds, content[:20]
        assert path.read_bytes() != content  # mended
    np.savez(path, something=np.arange(3))
    assert Vocabulary.for_tokenizer(byte_level()).table == first.table
    assert not list(own_cache.glob("*.tmp"))


def test_an_unwritable_cache_is_tolerated(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert Vocabulary.for_tokenizer(byte_level(), cache_dir=tmp_path / "file" / "below").size > 256


def test_concurrent_writers(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    byte_level().save_pretrained(folder)
    code = (
        "import sys; from transformers import PreTrainedTokenizerFast as T; "
        "from lettuceprevent import Vocabulary; "
        "print(Vocabulary.for_tokenizer(T.from_pretrained(sys.argv[1])).fingerprint)"
    )
    environment = os.environ | {"LETTUCEPREVENT_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", code, str(folder)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) for _ in range(3)
    ]
    results = {process.communicate()[0].strip() for process in running}
    assert results == {Vocabulary.for_tokenizer(byte_level()).fingerprint}
    assert len(list((tmp_path / "cache" / "vocabulary").iterdir())) == 1


def test_262_thousand_tokens_take_at_most_three_seconds() -> None:
    from transformers import AutoTokenizer

    from lettuceprevent.assets import asset_path

    real_tokenizer("gemma3")
    tokenizer = AutoTokenizer.from_pretrained(asset_path("gemma3"))
    start = time.process_time()  # of this process: the machine may be busy with other things
    vocabulary = Vocabulary.for_tokenizer(tokenizer)
    assert time.process_time() - start < 3
    assert vocabulary.size > 262_000
    start = time.process_time()
    assert Vocabulary.for_tokenizer(tokenizer) is vocabulary
    assert time.process_time() - start < 0.05


def test_a_vocabulary_of_ones_own() -> None:
    vocabulary = Vocabulary([b"a", b"</s>", b""], special_ids=[1, 9])
    assert vocabulary.table == (b"a", b"", b"")
    assert vocabulary.join([0, 1, 2, 9, 0]) == b"aa"
    assert "size=3" in repr(vocabulary)
    assert vocabulary.fingerprint != Vocabulary([b"b", b"", b""], special_ids=[1, 9]).fingerprint


@pytest.mark.parametrize(("name", "fallback"), [("llama2", True), ("smollm2", False)])
def test_byte_fallback_is_known_and_kept_on_disk(
    name: str, fallback: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = real_tokenizer(name)
    for _ in range(2):  # built, then read back
        monkeypatch.setattr(module, "_memo", weakref.WeakKeyDictionary())
        assert Vocabulary.for_tokenizer(tokenizer, cache_dir=tmp_path).byte_fallback is fallback
