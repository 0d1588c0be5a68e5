"""Host ids to detector ids: every mode equals its definition, whatever the order of questions."""

from __future__ import annotations

import random
from typing import Any

import pytest
from causal import maker
from conftest import real_tokenizer

from lettuceprevent.align import SAMPLE, align
from lettuceprevent.alignment import MODES, DetectorTokenizer, clean_up_spaces, make_alignment
from lettuceprevent.cli import main
from lettuceprevent.vocabulary import Vocabulary

TEXTS = (
    *SAMPLE,
    "it's the 3rd  time\n\n\tthey've   said so !\n  x",
    "日本語の文 and мир 😀👩‍🚀 e\u0301\u0301 ٣١",
    "a",
    " leading blank",
)


@pytest.fixture(scope="module")
def small() -> Any:
    return maker().small_tokenizer()


@pytest.mark.parametrize("mode", MODES)
def test_paths_equal_ids_in_any_order(small: Any, mode: str) -> None:
    vocabulary = Vocabulary.for_tokenizer(small)
    alignment = make_alignment(mode, vocabulary, small, small, reference_tokenizer=small)
    chance = random.Random(mode)
    cases = []
    for text in TEXTS:
        ids = tuple(small.encode(text, add_special_tokens=False))
        cases += [
            (ids[:at], [*ids[at : at + 1], *chance.choices(range(vocabulary.size), k=3)])
            for at in range(len(ids))
        ]
    chance.shuffle(cases)
    for history, candidates in cases:
        stable, tails = alignment.paths(history, candidates)
        fresh = make_alignment(mode, vocabulary, small, small, reference_tokenizer=small)
        for candidate, tail in zip(candidates, tails, strict=True):
            if vocabulary[candidate]:
                assert (
                    stable + tail == alignment.ids((*history, candidate)) == fresh.ids((*history, candidate))
                )
            else:
                assert tail == ()


@pytest.mark.parametrize("mode", ["direct", "reference_chunks"])
def test_answers_that_begin_alike_do_not_lend_each_other_half_words(mode: str) -> None:
    names = ("smollm2", "modernbert", "llama31")
    host, detector, reference = (real_tokenizer(name) for name in names)
    vocabulary = Vocabulary.for_tokenizer(host)

    def ids(alignment: Any, text: str) -> tuple[int, ...]:
        found: tuple[int, ...] = alignment.ids(host.encode(text, add_special_tokens=False))
        return found

    def fresh() -> Any:
        return make_alignment(mode, vocabulary, host, detector, reference_tokenizer=reference)

    alignment = fresh()
    for text in ("neg George said", "negiella George said", "negiella Georgetown said so"):
        assert ids(alignment, text) == ids(fresh(), text)


def test_a_tokenizer_is_copied_once_and_keeps_its_settings() -> None:
    tokenizer = maker().small_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(2)
    text = "Revenue rose by 12.5 percent."
    encode = DetectorTokenizer(tokenizer)
    assert len(encode(text)) > 2
    assert len(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids) == 2
    assert DetectorTokenizer(tokenizer)._inner is encode._inner
    tokenizer.add_tokens(["Revenue rose"])
    assert len(DetectorTokenizer(tokenizer)(text)) < len(encode(text))


def test_direct_is_the_text_tokenised_whole() -> None:
    host, detector = real_tokenizer("llama2"), real_tokenizer("modernbert")
    vocabulary = Vocabulary.for_tokenizer(host)
    alignment = make_alignment("direct", vocabulary, host, detector)
    encode = DetectorTokenizer(detector)
    for text in TEXTS:
        ids = tuple(host.encode(text, add_special_tokens=False))
        for at in range(len(ids) + 1):
            written = vocabulary.join(ids[:at]).decode("utf-8", "replace")
            assert alignment.ids(ids[:at]) == encode(written)


def test_reference_chunks_equal_the_training_procedure_for_any_host() -> None:
    host, detector, reference = (real_tokenizer(name) for name in ("smollm2", "modernbert", "llama31"))
    vocabulary = Vocabulary.for_tokenizer(host)
    alignment = make_alignment("reference_chunks", vocabulary, host, detector, reference_tokenizer=reference)
    for text in TEXTS:
        expected = []
        for token in reference.encode(text, add_special_tokens=False):
            chunk = reference.decode([token], clean_up_tokenization_spaces=False)
            expected += detector.encode(chunk, add_special_tokens=False)
        assert alignment.text_ids(text) == expected
        assert list(alignment.ids(host.encode(text, add_special_tokens=False))) == expected


def test_host_chunks_of_the_training_host_equal_the_training_procedure() -> None:
    host, detector = real_tokenizer("llama31"), real_tokenizer("modernbert")
    vocabulary = Vocabulary.for_tokenizer(host)
    for clean_up in (False, True):
        alignment = make_alignment("host_chunks", vocabulary, host, detector, clean_up=clean_up)
        for text in (*TEXTS, "Well , no . It 's"):
            ids = host.encode(text, add_special_tokens=False)
            expected: list[int] = []
            for token in ids:
                chunk = host.decode([token], clean_up_tokenization_spaces=False)
                expected += detector.encode(
                    clean_up_spaces(chunk) if clean_up else chunk, add_special_tokens=False
                )
            assert alignment.text_ids(text) == list(alignment.ids(tuple(ids))) == expected


def test_sentencepiece_blank_before_a_context_is_not_the_contexts() -> None:
    host, detector = real_tokenizer("llama2"), real_tokenizer("modernbert")
    alignment = make_alignment("host_chunks", Vocabulary.for_tokenizer(host), host, detector)
    pieces = detector.decode(alignment.text_ids("The mayor"))
    assert pieces == "The mayor"


def test_a_context_cannot_forge_a_separator(small: Any) -> None:
    vocabulary = Vocabulary.for_tokenizer(small)
    for mode in MODES:
        alignment = make_alignment(mode, vocabulary, small, small, reference_tokenizer=small)
        assert not set(alignment.text_ids("a [SEP] b [CLS]")) & {small.sep_token_id, small.cls_token_id}


def test_unknown_mode_and_missing_reference(small: Any) -> None:
    vocabulary = Vocabulary.for_tokenizer(small)
    with pytest.raises(ValueError, match="host_chunks"):
        make_alignment("words", vocabulary, small, small)
    with pytest.raises(ValueError, match="Llama"):
        make_alignment("reference_chunks", vocabulary, small, small)


def test_align_recognises_the_training_host_and_a_far_one() -> None:
    detector, reference = real_tokenizer("modernbert"), real_tokenizer("llama31")
    same = align(reference, detector, reference_tokenizer=reference, name="llama31")
    assert same.recommended == "host_chunks"
    assert same.host_chunks_vs_training == 0
    assert same.numbers is not None
    assert same.numbers.precision == same.numbers.recall == 1
    assert same.number_pattern == "in threes from the left"
    far = align(real_tokenizer("llama2"), detector, reference_tokenizer=reference, name="llama2")
    assert far.recommended == "reference_chunks"
    assert far.round_trip == 1
    assert far.number_pattern == "one by one"
    assert "use reference_chunks" in far.summary()
    alone = align(reference, detector)
    assert alone.host_chunks_vs_training is None
    assert alone.recommended == "host_chunks"
    with pytest.raises(ValueError, match="at least one text"):
        align(reference, detector, texts=[])


def test_align_command(small: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    small.save_pretrained(tmp_path / "host")
    (tmp_path / "answers.txt").write_text("Twelve of 1,234 people.\n\nAnother answer.", "utf-8")
    host = str(tmp_path / "host")
    arguments = [host, "--detector", host, "--reference", host, "--text", str(tmp_path / "answers.txt")]
    assert main(["align", *arguments]) == 0
    assert "use host_chunks" in capsys.readouterr().out
    assert main(["align", *arguments, "--json"]) == 0
    assert '"texts": 2' in capsys.readouterr().out
    assert main(["align", str(tmp_path / "nothing-here"), "--detector", host]) == 2
    assert capsys.readouterr().err.startswith("lettuceprevent: ")
