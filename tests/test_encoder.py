"""The encoder detector against one forward pass per candidate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from causal import maker

from lettuceprevent.checkpoint import CheckpointError
from lettuceprevent.detectors import ScoreRequest
from lettuceprevent.encoder import EncoderDetector, prompt_of
from lettuceprevent.grounding import Grounding

PLAIN = Grounding(("Revenue rose by 12.5 percent in 2021.",))
ASKED = Grounding(("Ten officers came.", "It was Tuesday."), "How many officers came?")


def write_encoder(folder: Path, labels: int = 2) -> Path:
    """A tiny random ModernBERT token classifier."""
    from transformers import ModernBertConfig, ModernBertForTokenClassification

    tokenizer = maker().small_tokenizer()
    torch.manual_seed(0)
    config = ModernBertConfig(
        vocab_size=max(tokenizer.get_vocab().values()) + 1,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=512,
        local_attention=16,
        num_labels=labels,
        initializer_range=0.3,
        pad_token_id=tokenizer.pad_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
    ModernBertForTokenClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture
def tokenizer() -> Any:
    return maker().small_tokenizer()


def test_batched_scores_equal_single_passes(folder: Path, tokenizer: Any) -> None:
    detector = EncoderDetector.for_host(tokenizer, detector_model=folder)
    history = tuple(tokenizer.encode("In 2021 ten", add_special_tokens=False))
    smile = tokenizer.encode("😀", add_special_tokens=False)[0]
    requests = [
        ScoreRequest(PLAIN, (), (40, 41)),
        ScoreRequest(ASKED, history, (50, tokenizer.sep_token_id, 300, smile)),
    ]
    scores = detector.score(requests)
    for request, got in zip(requests, scores, strict=True):
        for candidate, value in zip(request.candidates, got, strict=True):
            data = detector.vocabulary[candidate]
            if not data:
                assert value == 0
                continue
            answer = (detector.vocabulary.join(request.history) + data).decode("utf-8", "replace")
            prompt = tokenizer.encode(prompt_of(request.grounding), add_special_tokens=False)
            written = tokenizer.encode(answer, add_special_tokens=False)
            ids = [tokenizer.cls_token_id, *prompt, tokenizer.sep_token_id, *written, tokenizer.sep_token_id]
            with torch.inference_mode():
                logits = detector.model(input_ids=torch.tensor([ids])).logits[0, -2]
            assert float(torch.softmax(logits, -1)[1]) == pytest.approx(float(value), abs=1e-5)
    assert np.ptp(np.concatenate(scores)) > 0.01


def test_prompt_has_every_passage_and_the_query() -> None:
    prompt = prompt_of(ASKED)
    assert "How many officers came?" in prompt
    assert "passage 1: Ten officers came." in prompt
    assert "passage 2: It was Tuesday." in prompt
    assert PLAIN.text in prompt_of(PLAIN)


def test_long_contexts(folder: Path, tokenizer: Any) -> None:
    long = Grounding(("word " * 800,))
    detector = EncoderDetector.for_host(tokenizer, detector_model=folder)
    with pytest.raises(ValueError, match="expected a context of at most"):
        detector.score([ScoreRequest(long, (), (40,))])
    cut = EncoderDetector.for_host(tokenizer, detector_model=folder, on_long_context="truncate")
    assert cut.score([ScoreRequest(long, (), (40,))])[0].shape == (1,)
    assert cut.notes()["contexts_truncated"] == 1
    with pytest.raises(ValueError, match="within"):
        detector.score([ScoreRequest(PLAIN, (40,) * 600, (40,))])


def test_one_model_per_process(folder: Path, tokenizer: Any) -> None:
    first, second = (EncoderDetector.for_host(tokenizer, detector_model=folder) for _ in range(2))
    assert first.model is second.model


def test_wrong_number_of_labels(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(CheckpointError, match="2 labels, got 3"):
        EncoderDetector.for_host(tokenizer, detector_model=write_encoder(tmp_path, labels=3))
