"""Cached, branching, batched scores against full forward passes of transformers' own model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from causal import full_scores, make_checkpoint, reference_model

from lettuceprevent import tree
from lettuceprevent.checkpoint import Checkpoint, load_checkpoint
from lettuceprevent.detectors import ScoreRequest
from lettuceprevent.grounding import Grounding
from lettuceprevent.tree import CausalDetector
from lettuceprevent.vocabulary import Vocabulary

CONTEXT = (
    "The company said on Tuesday that revenue rose by 12.5 percent to 2,400 million dollars in 2021. " * 3
)
GROUNDING = Grounding((CONTEXT,), "How did revenue develop?")
OTHER = Grounding((CONTEXT,), "Who said so?")
EXACT = 1e-5


class Bench:
    """A detector beside the model it must agree with."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.checkpoint = load_checkpoint(folder)
        self.tokenizer = self.checkpoint.tokenizer
        self.vocabulary = Vocabulary.for_tokenizer(self.tokenizer)
        self.detector = CausalDetector.for_host(
            self.tokenizer, self.vocabulary, detector_model=self.checkpoint, **options
        )
        self.reference = reference_model(folder)

    def check(self, *requests: ScoreRequest) -> float:
        """Score the requests; the largest difference from full passes."""
        scores = self.detector.score(requests)
        worst = 0.0
        for request, got in zip(requests, scores, strict=True):
            assert got.dtype == np.float32
            assert got.shape == (len(request.candidates),)
            paths = []
            for candidate in request.candidates:
                answer = self.detector.alignment.ids((*request.history, candidate))
                prefixes = self.detector.prefixes(request.grounding)
                paths.append([prefix + answer for prefix in prefixes])
            for candidate, value, ids in zip(request.candidates, got, paths, strict=True):
                if not self.vocabulary[candidate]:
                    assert value == 0
                    continue
                expected = min(full_scores(self.reference, each) for each in ids)
                worst = max(worst, abs(float(value) - expected))
        return worst


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other are slower than one, for products as small as these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def bench(tiny: Path) -> Bench:
    return Bench(tiny)


def request(grounding: Grounding, history: Any, candidates: Any) -> ScoreRequest:
    return ScoreRequest(grounding, tuple(history), tuple(candidates))


@pytest.mark.parametrize("mode", ["host_chunks", "direct", "reference_chunks"])
def test_random_branching_equals_full_passes(tiny: Path, mode: str) -> None:
    bench = Bench(tiny, alignment=mode, reference_tokenizer=str(tiny))
    chance = random.Random(mode)
    tokens = range(5, bench.vocabulary.size)
    histories: dict[Grounding, list[int]] = {GROUNDING: [], OTHER: []}
    worst = 0.0
    for _ in range(40):
        asked = []
        for grounding in chance.choice([(GROUNDING,), (OTHER,), (GROUNDING, OTHER), (GROUNDING, GROUNDING)]):
            history = list(histories[grounding])
            if asked and asked[-1].grounding is grounding:  # a beam: the same answer with another end
                history = history[: len(history) - chance.randint(0, 3)] + chance.choices(tokens, k=1)
            asked.append(request(grounding, history, chance.choices(tokens, k=chance.choice([1, 2, 5]))))
        worst = max(worst, bench.check(*asked))
        for one in asked[:2]:
            chosen = [*one.history, chance.choice(one.candidates)]
            if chance.random() < 0.3:  # skipped steps
                chosen += chance.choices(tokens, k=chance.randint(1, 3))
            histories[one.grounding] = chosen
        if chance.random() < 0.1:
            bench.detector.drop_caches()
    assert worst < EXACT
    assert max(map(len, histories.values())) > 32  # longer than the window


def test_winner_is_not_computed_again(bench: Bench) -> None:
    history: list[int] = []
    bench.detector.score([request(GROUNDING, history, range(10, 20))])
    for step in range(5):
        before = bench.detector.notes()["rows"]
        history.append(10 + step)
        bench.detector.score([request(GROUNDING, history, range(10, 20))])
        pieces = sum(len(bench.detector.alignment.ids([token])) for token in range(10, 20))
        assert bench.detector.notes()["rows"] - before == pieces
    assert bench.check(request(GROUNDING, history, range(30, 40))) < EXACT


def test_skipped_steps_ride_along(bench: Bench) -> None:
    bench.detector.score([request(GROUNDING, [], [10, 11])])
    before = bench.detector.notes()["forward_passes"]
    assert bench.check(request(GROUNDING, [10, 50, 51, 52, 53], [60, 61])) < EXACT
    assert bench.detector.notes()["forward_passes"] == before + 1


def test_beams_share_their_prefix(bench: Bench) -> None:
    chance = random.Random(3)
    beams = [[chance.randrange(5, 300)] for _ in range(3)]
    for _ in range(25):
        asked = [request(GROUNDING, beam, chance.choices(range(5, 300), k=4)) for beam in beams]
        assert bench.check(*asked) < EXACT
        grown = [[*one.history, token] for one in asked for token in one.candidates]
        beams = chance.sample(grown, 3)
    assert bench.detector.notes()["prefixes_read"] == 1
    assert len(bench.detector._buffers) == 1


def test_compaction_keeps_scores(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "_SLACK", 8)
    monkeypatch.setattr(tree, "_REMEMBERED", 4)
    test_beams_share_their_prefix(Bench(tiny))


def test_buffer_grows_past_its_first_size(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "_FIRST_ROOM", 4)
    bench = Bench(tiny)
    history: list[int] = []
    for step in range(20):
        worst = bench.check(request(GROUNDING, history, range(20 + step, 23 + step)))
        assert worst < EXACT
        history.append(21 + step)


def test_two_groundings_with_a_common_prefix(bench: Bench) -> None:
    assert bench.check(request(GROUNDING, [40], [41, 42]), request(OTHER, [40], [41, 42])) < EXACT
    first, second = (bench.detector.prefixes(each)[0] for each in (GROUNDING, OTHER))
    assert bench.detector.notes()["prefix_tokens"] < len(first) + len(second) - 50


def test_changing_the_number_of_candidates_and_asking_again(bench: Bench) -> None:
    for size in (1, 7, 3, 12, 2):
        assert bench.check(request(GROUNDING, [30, 31], range(60, 60 + size))) < EXACT
    before = bench.detector.notes()["rows"]
    bench.detector.score([request(GROUNDING, [30, 31], [60, 61])])
    assert bench.detector.notes()["rows"] == before  # both are still there


def test_row_result_does_not_depend_on_the_batch(bench: Bench) -> None:
    alone = bench.detector.score([request(GROUNDING, [30], [40, 41])])[0]
    bench.detector.drop_caches()
    together = bench.detector.score([request(OTHER, [9, 9], [70]), request(GROUNDING, [30], [40, 41])])[1]
    np.testing.assert_allclose(alone, together, atol=1e-6)


def test_candidates_without_text_and_special_tokens(bench: Bench) -> None:
    special = bench.tokenizer.sep_token_id
    beyond = bench.vocabulary.size + 7
    scores = bench.detector.score([request(GROUNDING, [30], [special, beyond, 40])])[0]
    assert scores[0] == scores[1] == 0
    assert 0 < scores[2] < 1
    # A special token in the history adds nothing: the host re-emits it, the text stays the same.
    with_special = bench.detector.score([request(GROUNDING, [30, special], [40])])[0]
    np.testing.assert_allclose(with_special, scores[2:], atol=1e-6)
    assert bench.detector.score([request(GROUNDING, [30], [])])[0].shape == (0,)


def test_half_a_character(bench: Bench) -> None:
    whole = bench.tokenizer.encode("😀", add_special_tokens=False)
    assert len(whole) > 1
    assert bench.vocabulary[whole[0]].decode("utf-8", "replace") == "\ufffd"
    assert bench.check(request(GROUNDING, [], [whole[0]])) < EXACT
    assert bench.check(request(GROUNDING, whole[:1], [whole[1]])) < EXACT
    assert bench.check(request(GROUNDING, whole, [40])) < EXACT


def test_caches_are_bounded(tiny: Path) -> None:
    bench = Bench(tiny)
    groundings = [Grounding((f"{n} {CONTEXT}",)) for n in range(6)]
    one = Bench(tiny)
    one.detector.score([request(groundings[0], [], [40])])
    bench.detector.cache_bytes = 2 * one.detector.cached_bytes
    for _ in range(2):
        for grounding in groundings:
            assert bench.check(request(grounding, [], [40, 41])) < EXACT
            assert bench.detector.cached_bytes <= bench.detector.cache_bytes
    # A single call keeps what it needs, whatever the bound.
    bench.detector.cache_bytes = 0
    assert bench.check(*(request(grounding, [5], [40]) for grounding in groundings)) < EXACT


def test_long_contexts(tiny: Path) -> None:
    passages = tuple(f"{n}: {CONTEXT}" for n in range(8))
    grounding = Grounding(passages, "What?")
    with pytest.raises(ValueError, match="expected a context of at most"):
        Bench(tiny).detector.score([request(grounding, [], [40])])
    cut = Bench(tiny, on_long_context="truncate")
    assert cut.check(request(grounding, [30], [40, 41])) < EXACT
    assert cut.detector.notes()["contexts_truncated"] == 1
    split = Bench(tiny, on_long_context="passages")
    assert split.check(request(grounding, [30], [40, 41])) < EXACT
    assert split.detector.notes()["contexts_split"] == 1
    assert len(split.detector.prefixes(grounding)) == 8
    with pytest.raises(ValueError, match="on_long_context"):
        CausalDetector(split.checkpoint, split.detector.alignment, on_long_context="ignore")  # type: ignore[arg-type]


def test_answer_beyond_the_positions_raises_and_nothing_is_spoilt(bench: Bench) -> None:
    limit = bench.detector.max_positions
    with pytest.raises(ValueError, match="positions"):
        bench.detector.score([request(OTHER, [30], [40]), request(GROUNDING, [30] * limit, [40])])
    assert bench.check(request(OTHER, [30], [41]), request(GROUNDING, [30, 31], [40])) < EXACT


def test_failure_in_a_forward_pass_leaves_no_bad_cache(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.detector.score([request(GROUNDING, [30], [40, 41])])
    whole = Checkpoint.unsupported

    def broken(self: Checkpoint, hidden: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Checkpoint, "unsupported", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        bench.detector.score([request(GROUNDING, [30, 40], [50, 51])])
    monkeypatch.setattr(Checkpoint, "unsupported", whole)
    assert bench.check(request(GROUNDING, [30, 40, 50], [50, 51])) < EXACT


def test_reduced_precision_is_close(tiny: Path) -> None:
    exact = Bench(tiny)
    reduced = CausalDetector.for_host(
        exact.tokenizer, exact.vocabulary, detector_model=tiny, precision="bfloat16"
    )
    asked = request(GROUNDING, [30, 31, 32], range(40, 60))
    difference = np.abs(reduced.score([asked])[0] - exact.detector.score([asked])[0])
    assert 0 < difference.max() < 0.05


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_other_backbones_through_the_same_door(tmp_path: Path, kind: str) -> None:
    bench = Bench(make_checkpoint(tmp_path, kind=kind))
    chance = random.Random(kind)
    history: list[int] = []
    for _ in range(12):
        candidates = chance.choices(range(5, 300), k=3)
        assert bench.check(request(GROUNDING, history, candidates)) < EXACT
        history += [candidates[0], *chance.choices(range(5, 300), k=chance.randint(0, 3))]
