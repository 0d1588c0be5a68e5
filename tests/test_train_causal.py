"""Training causal detectors on tiny models: it learns, ends the same after a kill, and what it writes scores."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from causal import make_checkpoint
from conftest import real_tokenizer
from fakes import make_llama, make_tokenizer
from safetensors.torch import load_file, save_file

from lettuceprevent.alignment import make_alignment
from lettuceprevent.assets import HOST_HUB_ID
from lettuceprevent.candidates import own_threshold
from lettuceprevent.checkpoint import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    CheckpointError,
    forget_checkpoints,
    load_checkpoint,
)
from lettuceprevent.cli import main
from lettuceprevent.detectors import ScoreRequest
from lettuceprevent.evaluation.streaming import auroc
from lettuceprevent.generation import generate
from lettuceprevent.grounding import Grounding
from lettuceprevent.report import PreventionReport
from lettuceprevent.training.causal import (
    Recipe,
    Training,
    answers,
    corrupted,
    encode,
    order,
    padded,
    train_causal,
)
from lettuceprevent.training.classifier import TokenClassifier
from lettuceprevent.training.data import Example, load_examples
from lettuceprevent.training.probe import standardised
from lettuceprevent.training.splits import split_by_context
from lettuceprevent.tree import CausalDetector
from lettuceprevent.vocabulary import Vocabulary

ANSWER = "There were 24 cats and 31 dogs."
EXAMPLES = [
    Example(
        str(n), f"Context {n}: cats, {'birds ' * (n % 5)}dogs.", "How many?", ANSWER, ((11, 13), (23, 25))
    )
    for n in range(30)
]
TINY = Recipe(
    lora_rank=0,
    dtype="float32",
    learning_rate=5e-3,
    head_rate=2e-2,
    batch=4,
    epochs=2.0,
    validation=0.2,
    patience=9,
)

needs_peft = pytest.mark.skipif(
    importlib.util.find_spec("peft") is None, reason="peft is not installed (extra `train`)"
)
WAYS = [
    pytest.param("llama", {}, id="llama, full"),
    pytest.param("ettin", {}, id="ettin, full"),
    pytest.param("ettin", {"keep_layers": 3}, id="ettin, three layers, full"),
    pytest.param("llama", {"lora_rank": 4, "lora_layers": (2, 2)}, id="llama, lora", marks=needs_peft),
    pytest.param(
        "ettin",
        {"lora_rank": 2, "keep_layers": 4, "lora_layers": (2, 3)},
        id="ettin, four layers, lora",
        marks=needs_peft,
    ),
    pytest.param(
        "llama",
        {"lora_rank": 4, "lora_layers": (2, 2), "answer_only": True},
        id="llama, lora on answers",
        marks=needs_peft,
    ),
]
LORA = {"lora_rank": 4, "lora_layers": (2, 2)}


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A tiny Llama of two layers with its language model head, and an Ettin-type decoder of five."""
    folder = tmp_path_factory.mktemp("bases")
    tokenizer = make_tokenizer()
    make_llama(len(tokenizer)).save_pretrained(folder / "llama")
    tokenizer.save_pretrained(folder / "llama")
    make_checkpoint(folder / "ettin")
    return {"llama": str(folder / "llama"), "ettin": str(folder / "ettin")}


@pytest.mark.parametrize(("base", "changes"), WAYS)
def test_trained_written_loaded_and_used(
    bases: dict[str, str], base: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    recipe = replace(TINY, epochs=3.0, **changes)
    card = train_causal(bases[base], EXAMPLES, tmp_path, recipe, cpu=True, say=quiet)
    losses = [each["loss"] for each in card["history"]]
    assert losses[-1] < 0.5 * losses[0]
    assert card["validation"]["average_precision"] > 0.9  # the numbers are always the same
    assert not (tmp_path / "state.pt").exists() and (tmp_path / "README.md").is_file()
    assert not list(tmp_path.glob("prompts-*"))
    checkpoint = load_checkpoint(tmp_path)
    assert len(checkpoint.decoder.layers) == card["layers"] == changes.get("keep_layers", card["layers"])
    detector = CausalDetector.for_host(checkpoint.tokenizer, detector_model=checkpoint)
    ids = tuple(checkpoint.tokenizer(ANSWER, add_special_tokens=False)["input_ids"])
    grounding = Grounding((EXAMPLES[0].context,), EXAMPLES[0].query)
    scores = detector.score([ScoreRequest(grounding, ids[:at], (ids[at],)) for at in range(len(ids))])
    text = [checkpoint.tokenizer.decode([each]) for each in ids]
    numbers = np.array([any(mark.isdigit() for mark in each) for each in text])
    found = np.array([float(each[0]) for each in scores])
    assert found[numbers].min() > found[~numbers].max()

    tokenizer = make_tokenizer()  # and in generation
    host = make_llama(len(tokenizer))
    prompt = tokenizer(f"{EXAMPLES[0].context} How many?", return_tensors="pt")["input_ids"]
    report = PreventionReport()
    out = generate(
        host,
        prompt,
        tokenizer=tokenizer,
        input_text=EXAMPLES[0].context,
        detector_type="lettuceprevent",
        detector_model=str(tmp_path),
        max_new_tokens=4,
        pad_token_id=0,
        report=report,
    )
    assert out.shape[1] > prompt.shape[1]
    assert report.options["confidence_threshold"] == card["validation"]["threshold"]


def test_the_threshold_comes_with_the_detector(bases: dict[str, str], tmp_path: Path) -> None:
    card = train_causal(bases["llama"], EXAMPLES, tmp_path, replace(TINY, epochs=1.0), cpu=True, say=quiet)
    detector = CausalDetector.for_host(
        load_checkpoint(tmp_path).tokenizer, detector_model=load_checkpoint(tmp_path)
    )
    assert own_threshold([detector]) == card["validation"]["threshold"]
    assert own_threshold([detector, detector]) == 0.8  # one threshold for both: neither's own
    path = tmp_path / "training.json"
    path.write_text(json.dumps({"steps": 3}), encoding="utf-8")  # somebody else's file
    assert load_checkpoint(tmp_path).threshold is None
    for wrong in (1.5, "0.5", None):
        path.write_text(json.dumps({"validation": {"threshold": wrong}}), encoding="utf-8")
        with pytest.raises(CheckpointError, match=f"a threshold from 0 to 1, got {wrong!r}"):
            load_checkpoint(tmp_path)


def test_the_alignment_comes_with_the_detector(bases: dict[str, str], tmp_path: Path) -> None:
    recipe = replace(TINY, epochs=1.0, alignment="direct")
    train_causal(bases["llama"], EXAMPLES, tmp_path, recipe, cpu=True, say=quiet)
    tokenizer, host = make_tokenizer(), make_tokenizer(300)
    assert load_checkpoint(tmp_path).alignment == "direct"
    found = CausalDetector.for_host(host, detector_model=str(tmp_path))
    assert found.alignment.mode == "direct"
    ids = host(ANSWER, add_special_tokens=False)["input_ids"]  # shown what it was trained on
    assert list(found.alignment.ids(ids)) == tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    asked = CausalDetector.for_host(host, detector_model=str(tmp_path), alignment="host_chunks")
    assert asked.alignment.mode == "host_chunks"
    assert CausalDetector.for_host(host, detector_model=bases["ettin"]).alignment.mode == "host_chunks"
    path = tmp_path / "training.json"
    card = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**card, "recipe": {}}), encoding="utf-8")  # one that says nothing
    assert load_checkpoint(tmp_path).alignment is None
    path.write_text(json.dumps({**card, "recipe": {"alignment": "sideways"}}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="an alignment among host_chunks, direct, got 'sideways'"):
        load_checkpoint(tmp_path)


def test_direct_has_no_hosts(
    bases: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"context": "c", "answer": "a 1", "spans": [[2, 3]]}), encoding="utf-8")
    arguments = ["train", "causal", "--backbone", bases["llama"], "--data", str(data), "--cpu"]
    arguments += ["--out", str(tmp_path / "out"), "--host-tokenizer", bases["ettin"], "--alignment", "direct"]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "--host-tokenizer" in said and "--alignment direct" in said and bases["ettin"] in said
    with pytest.raises(ValueError, match="expected one of host_chunks, direct in training, got 'reference"):
        train_causal(
            bases["llama"], EXAMPLES, tmp_path, replace(TINY, alignment="reference_chunks"), cpu=True
        )


@needs_peft
@pytest.mark.parametrize("base", ["llama", "ettin"])
def test_the_merged_weights_score_as_the_unmerged(bases: dict[str, str], base: str, tmp_path: Path) -> None:
    layers = 2 if base == "llama" else 4
    model = TokenClassifier(
        bases[base], keep_layers=layers, rank=3, lora_layers=(2, layers), dtype=torch.float32
    )
    with torch.no_grad():
        for name, weight in model.trained().items():
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))) * 0.3)
        model.mean.normal_()  # the head's own scale is part of what is written
        model.scale.uniform_(0.5, 2.0)
    model.take(model.as_written())
    model.write(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    detector = CausalDetector.for_host(model.tokenizer, detector_model=checkpoint)
    alignment = detector.alignment
    row = encode(EXAMPLES[:1], [(model.tokenizer, alignment)], model, 700, 0)[0]
    answer = row.ids[-len(row.labels) :]
    grounding = Grounding((EXAMPLES[0].context,), EXAMPLES[0].query)
    merged = detector.score(
        [ScoreRequest(grounding, answer[:at], (answer[at],)) for at in range(len(answer))]
    )
    with torch.no_grad():
        plain = torch.softmax(model(torch.tensor([row.ids]))[0, -len(answer) :], -1)[:, 1]
        for module in model.modules():
            if hasattr(module, "lora_B"):
                module.lora_B["default"].weight.zero_()
        without = torch.softmax(model(torch.tensor([row.ids]))[0, -len(answer) :], -1)[:, 1]
    assert np.abs(np.concatenate(merged) - plain.numpy()).max() < 1e-4
    assert (without - plain).abs().max() > 1e-2  # the factors matter


@needs_peft
@pytest.mark.parametrize("base", ["llama", "ettin"])
def test_factors_on_the_answer_alone_leave_the_prompt_to_the_base(
    bases: dict[str, str], base: str, tmp_path: Path
) -> None:
    layers = 2 if base == "llama" else 4
    model = TokenClassifier(
        bases[base],
        keep_layers=layers,
        rank=3,
        lora_layers=(2, layers),
        answer_only=True,
        dtype=torch.float32,
    )
    plain = TokenClassifier(bases[base], keep_layers=layers, rank=0, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.trained().items():
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))) * 0.3)
    model.take(model.as_written())
    model.write(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.prompt_decoder is not None
    assert checkpoint.prompt_decoder.layers[0] is checkpoint.decoder.layers[0]  # below the factors
    assert checkpoint.prompt_decoder.layers[1] is not checkpoint.decoder.layers[1]
    detector = CausalDetector.for_host(model.tokenizer, detector_model=checkpoint)
    example = replace(EXAMPLES[0], context=" ".join([EXAMPLES[0].context] * 12))  # longer than a window
    row = encode([example], [(model.tokenizer, detector.alignment)], model, 700, 0)[0]
    prompt, answer = row.ids[: -len(row.labels)], row.ids[-len(row.labels) :]
    grounding = Grounding((example.context,), example.query)
    assert detector.prefixes(grounding) == [prompt]
    scores = detector.score(
        [ScoreRequest(grounding, answer[:at], (answer[at],)) for at in range(len(answer))]
    )
    with torch.no_grad():
        read = model.read_prompt(prompt)
        got = torch.softmax(model.classify(model.answer_states(read, answer)), -1)[:, 1]
        everywhere = torch.softmax(model(torch.tensor([row.ids]))[0, -len(answer) :], -1)[:, 1]
        # The base alone reads the prompt as the checkpoint's other decoder does, and as a whole pass does.
        whole = plain.states(torch.tensor([row.ids]))[0, -len(answer) :]
        apart = plain.answer_states(read, answer)
    assert np.abs(np.concatenate(scores) - got.numpy()).max() < 1e-4
    assert (everywhere - got).abs().max() > 1e-2  # it matters where the factors act
    assert (whole - apart).abs().max() < 1e-4 * max(1.0, float(whole.abs().max()))


@needs_peft
def test_a_prompt_is_read_once_per_training(
    bases: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, ...]] = []
    before = TokenClassifier.read_prompt
    monkeypatch.setattr(
        TokenClassifier, "read_prompt", lambda self, ids: read.append(tuple(ids)) or before(self, ids)
    )
    recipe = replace(TINY, **LORA, answer_only=True)
    data = [*EXAMPLES, *(replace(each, id=f"{each.id}b", spans=()) for each in EXAMPLES)]
    (tmp_path / "prompts-of-another-recipe").mkdir()
    train_causal(bases["llama"], data, tmp_path, recipe, cpu=True, say=quiet)
    assert len(read) == len(set(read)) == len(EXAMPLES)
    assert not list(tmp_path.glob("prompts-*"))


def test_answer_only_needs_factors(bases: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="expected LoRA"):
        TokenClassifier(bases["llama"], rank=0, answer_only=True)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param(LORA, marks=needs_peft),
        pytest.param({**LORA, "answer_only": True, "average": 0.9}, marks=needs_peft),
    ],
)
def test_a_killed_run_ends_like_an_undisturbed_one(
    bases: dict[str, str], changes: dict[str, Any], tmp_path: Path
) -> None:
    recipe = replace(TINY, corrupted=0.5, **changes)
    data = [*EXAMPLES, *(replace(each, id=f"{each.id}b", spans=()) for each in EXAMPLES)]
    train = lambda out, say: train_causal(  # noqa: E731
        bases["llama"], data, tmp_path / out, recipe, cpu=True, save_minutes=0, say=say
    )
    whole = train("whole", quiet)
    assert whole["data"]["corrupted"] > 0

    def killed(text: str) -> None:
        if text.startswith("step 20 "):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("killed", killed)
    assert (tmp_path / "killed" / "state.pt").is_file()
    said: list[str] = []
    again = train("killed", said.append)
    assert said[0].startswith("going on after step 19 of")
    assert {**again, "minutes": 0} == {**whole, "minutes": 0}
    for name in ("whole", "killed"):
        assert not (tmp_path / name / "state.pt").exists()
    file = ADAPTER_WEIGHTS if changes else "model.safetensors"
    one, other = load_file(tmp_path / "whole" / file), load_file(tmp_path / "killed" / file)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    said.clear()
    assert train("killed", said.append) == again and len(said) == 1  # finished: nothing is done again


IN_TWO = """
import dataclasses, sys
sys.path.insert(0, sys.argv[4])
from test_train_causal import EXAMPLES, TINY
from lettuceprevent.training.causal import train_causal

def say(text):
    print(text, flush=True)
    if text.startswith(sys.argv[3]):
        raise SystemExit(3)

train_causal(sys.argv[1], EXAMPLES, sys.argv[2], dataclasses.replace(TINY, epochs=8.0), cpu=True, save_minutes=0, say=say)
"""


def test_two_processes_say_it_once_and_go_on_together(bases: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(IN_TWO, encoding="utf-8")

    def trained(until: str) -> subprocess.CompletedProcess[str]:
        launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        mine = [str(script), bases["llama"], str(tmp_path / "out"), until, str(Path(__file__).parent)]
        return subprocess.run([*launched, *mine], capture_output=True, text=True, timeout=240)

    stopped = trained("step 20 ")
    assert stopped.returncode != 0 and (tmp_path / "out" / "state.pt").is_file()
    assert len([text for text in stopped.stdout.splitlines() if text.startswith("step 10 ")]) == 1
    went_on = trained("-")
    assert went_on.returncode == 0, went_on.stderr
    said = went_on.stdout.splitlines()
    assert [text for text in said if text.startswith("going on after step")] == said[:1]
    steps = [text.split(":")[0] for text in said if text.startswith(("step", "validation"))]
    assert steps and len(steps) == len(set(steps))
    assert load_checkpoint(tmp_path / "out")
    again = trained("-")
    assert again.returncode == 0, again.stderr
    assert again.stdout == f"{tmp_path / 'out'} is finished already\n"


def test_the_average_of_the_weights_is_written(bases: dict[str, str], tmp_path: Path) -> None:
    model = TokenClassifier(bases["llama"], rank=0, dtype=torch.float32)
    alignment = make_alignment(
        "host_chunks", Vocabulary.for_tokenizer(model.tokenizer), model.tokenizer, model.tokenizer
    )
    rows = encode(EXAMPLES, [(model.tokenizer, alignment)], model, 700, 0)
    run = Training(model, rows, replace(TINY, average=0.5), Accelerator(cpu=True))
    expected: Any = None
    for step in range(1, 15):
        run.advance()
        now = model.trained()["head.weight"].detach().clone()
        share = min(0.5, step / (step + 10))  # half of what was, from step 10 on
        expected = now if expected is None else share * expected + (1 - share) * now
    run.validate(rows[:4])
    assert torch.allclose(run.best["head.weight"], expected, atol=1e-6)
    assert not torch.allclose(expected, now, atol=1e-4)
    assert torch.equal(model.trained()["head.weight"], now)  # training goes on from the weights as they are
    with pytest.raises(ValueError, match="expected a decay from 0 up to, not including, 1, got 1"):
        train_causal(bases["llama"], EXAMPLES, tmp_path, replace(TINY, average=1.0), cpu=True, say=quiet)


def test_a_kill_while_the_folder_is_written_is_made_good(
    bases: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = lambda recipe: train_causal(  # noqa: E731
        bases["llama"], EXAMPLES, tmp_path, recipe, cpu=True, save_minutes=0, say=quiet
    )
    first = train(replace(TINY, epochs=1.0))
    write = Path.write_text

    def killed(path: Path, text: str, **options: Any) -> int:
        if "training.json" in path.name:
            write(path, text[: len(text) // 2], **options)
            raise KeyboardInterrupt
        return write(path, text, **options)

    other = replace(TINY, epochs=1.0, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            train(other)
    assert load_checkpoint(tmp_path).threshold is None  # not the first one's with the second one's weights
    card = train(other)
    assert (
        card["key"] != first["key"] and load_checkpoint(tmp_path).threshold == card["validation"]["threshold"]
    )


@needs_peft
def test_frozen_layers_below_have_no_graph(bases: dict[str, str]) -> None:
    model = TokenClassifier(bases["ettin"], rank=2, lora_layers=(4, 5))
    seen: list[bool] = []
    for layer in model.backbone.layers:
        layer.register_forward_hook(
            lambda module, inputs, output: seen.append(
                (output[0] if isinstance(output, tuple) else output).requires_grad
            )
        )
    assert model(torch.tensor([[1, 5, 6, 7]])).dtype == torch.float32
    assert seen == [False, False, False, True, True]
    assert {weight.dtype for weight in model.trained().values()} == {torch.float32}
    assert model.backbone.embeddings.tok_embeddings.weight.dtype == torch.bfloat16


@needs_peft
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers.1.mlp.up_proj.lora_A": None}, "1 missing .layers.1.mlp.up_proj.lora_A"),
        ({"layers.0.mlp.up_proj.lora_A": torch.ones(4, 32)}, "1 foreign .layers.0.mlp.up_proj.lora_A"),
        ({"classifier.weight": torch.ones(3, 32)}, r"classifier.weight of shape \(2, 32\), got \(3, 32\)"),
        ({"classifier.bias": None}, "1 missing .classifier.bias"),
        ({"layers.1.mlp.up_proj.lora_B": torch.ones(48, 5)}, r"shape \(48, 4\), got \(48, 5\)"),
    ],
)
def test_an_adapter_is_read_strictly(
    bases: dict[str, str], change: dict[str, torch.Tensor | None], message: str, tmp_path: Path
) -> None:
    model = TokenClassifier(bases["llama"], rank=4, lora_layers=(2, 2))
    model.write(tmp_path)
    tensors = load_file(tmp_path / ADAPTER_WEIGHTS)
    for name, tensor in change.items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, tmp_path / ADAPTER_WEIGHTS)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path)


@needs_peft
def test_an_adapter_knows_its_base(bases: dict[str, str], tmp_path: Path) -> None:
    TokenClassifier(bases["llama"], rank=4, lora_layers=(2, 2)).write(tmp_path)
    file = tmp_path / ADAPTER
    card = json.loads(file.read_text())
    size = sum(each.stat().st_size for each in tmp_path.iterdir())
    assert size < 30_000 and card["base"]["id"] == bases["llama"]  # no base weights in the folder
    forget_checkpoints()
    file.write_text(json.dumps({**card, "base": {**card["base"], "weights": "0" * 16}}))
    with pytest.warns(UserWarning, match="trained on a base with weights 0000"):
        load_checkpoint(tmp_path)
    file.write_text(json.dumps({**card, "base": {**card["base"], "shape": "0" * 16}}))
    with pytest.raises(CheckpointError, match="expected a base of shape 0000"):
        load_checkpoint(tmp_path)
    file.write_text(json.dumps({**card, "base": {**card["base"], "id": str(tmp_path / "gone")}}))
    with pytest.raises(CheckpointError, match="found none at"):
        load_checkpoint(tmp_path)
    file.write_text(json.dumps({"format": 2}))
    with pytest.raises(CheckpointError, match=r"expected adapter\.json of format 1"):
        load_checkpoint(tmp_path)


@needs_peft
@pytest.mark.parametrize("relative", ["llama", "./llama", "../{}/llama"])
def test_a_base_is_found_from_any_folder(
    bases: dict[str, str], relative: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(bases["llama"]).parent
    monkeypatch.chdir(place)
    recipe = replace(TINY, epochs=1.0, head_answers=0, **LORA)
    named = relative.format(place.name)
    card = train_causal(named, EXAMPLES, tmp_path / "out", recipe, cpu=True, say=quiet)
    assert card["backbone"] == bases["llama"]
    monkeypatch.chdir(tmp_path)
    forget_checkpoints()
    assert len(load_checkpoint("out").decoder.layers) == 2
    said: list[str] = []
    assert train_causal(bases["llama"], EXAMPLES, "out", recipe, cpu=True, say=said.append) == card
    assert said == ["out is finished already"]  # the same base under another name


def test_the_demo_model_is_named_by_its_id(bases: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from lettuceprevent.training import classifier

    monkeypatch.setattr(classifier, "host_id", lambda: bases["llama"])
    monkeypatch.chdir(Path(bases["llama"]).parent)
    for name in (bases["llama"], "llama", "./llama/", HOST_HUB_ID):
        assert classifier.base_name(name) == HOST_HUB_ID
    assert classifier.base_name("ettin") == bases["ettin"]
    assert classifier.base_name("some/model") == "some/model"


def write_qwen(folder: Path, bos: int | None) -> str:
    """A tiny Qwen2 whose tokenizer has no bos token; `bos`: what its config says of one."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = make_tokenizer()
    tokenizer.bos_token = None
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer) + 8,  # transformers 5 adds tokens of Qwen's
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=bos,
        eos_token_id=2,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_a_backbone_without_a_bos_token_takes_the_one_of_its_config(tmp_path: Path) -> None:
    base = write_qwen(tmp_path / "base", bos=1)
    card = train_causal(base, EXAMPLES, tmp_path / "out", replace(TINY, epochs=1.0), cpu=True, say=quiet)
    checkpoint = load_checkpoint(tmp_path / "out")
    assert checkpoint.tokenizer.bos_token_id is None and checkpoint.tokenizer.cls_token_id is None
    assert (checkpoint.cls_id, checkpoint.sep_id) == (1, 2) and card["layers"] == 2
    model = TokenClassifier(base, rank=0)
    align = make_alignment(
        "host_chunks", Vocabulary.for_tokenizer(model.tokenizer), model.tokenizer, model.tokenizer
    )
    (row,) = encode(EXAMPLES[:1], [(model.tokenizer, align)], model, 700, 0)
    assert row.ids[0] == 1 and row.ids.count(2) == 2
    detector = CausalDetector.for_host(checkpoint.tokenizer, detector_model=checkpoint)
    (prefix,) = detector.prefixes(Grounding((EXAMPLES[0].context,), EXAMPLES[0].query))
    assert prefix == row.ids[: len(prefix)]  # at work as in training


@pytest.mark.parametrize("bos", [None, 20])
def test_a_backbone_with_no_token_to_begin_with_is_refused(tmp_path: Path, bos: int | None) -> None:
    base = write_qwen(tmp_path / "base", bos)  # 20 is an ordinary token
    with pytest.raises(
        CheckpointError, match="expected a cls or bos token in the tokenizer, or in the config"
    ):
        train_causal(base, EXAMPLES, tmp_path / "out", TINY, cpu=True, say=quiet)


def test_a_host_without_special_tokens(bases: dict[str, str], tmp_path: Path) -> None:
    host = make_tokenizer(300)
    host.bos_token = host.eos_token = None
    host.save_pretrained(tmp_path / "host")
    card = train_causal(
        bases["llama"],
        EXAMPLES,
        tmp_path / "out",
        replace(TINY, epochs=1.0),
        hosts=[str(tmp_path / "host")],
        cpu=True,
        say=quiet,
    )
    assert card["hosts"] == ["host"] and card["validation"]["average_precision"] > 0.5


@pytest.mark.parametrize("name", ["qwen3", "modernbert"])
def test_real_hosts_without_a_bos_token(bases: dict[str, str], name: str) -> None:
    host = real_tokenizer(name)
    assert host.bos_token_id is None
    model = TokenClassifier(bases["ettin"], rank=0)
    align = make_alignment("host_chunks", Vocabulary.for_tokenizer(host), host, model.tokenizer)
    for row in encode(EXAMPLES[:3], [(host, align)], model, 700, 0):
        assert all(type(each) is int for each in row.ids) and row.ids.count(model.sep_id) == 2
        text = Vocabulary.for_tokenizer(model.tokenizer).join(row.ids[-len(row.labels) :])
        assert text.decode() == ANSWER and 0 < row.labels.sum() < len(row.labels)


def test_prompts_are_cut_and_padding_is_not_seen(bases: dict[str, str]) -> None:
    model = TokenClassifier(bases["ettin"], rank=0, dtype=torch.float32)
    align = make_alignment(
        "host_chunks", Vocabulary.for_tokenizer(model.tokenizer), model.tokenizer, model.tokenizer
    )
    rows = encode(EXAMPLES[:5], [(model.tokenizer, align)], model, 12, 0)
    ids = model.tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    for row in rows:
        assert list(row.ids[-len(row.labels) :]) == ids  # the identity where host and detector are the same
        assert len(row.ids) == 12 + len(ids) and row.ids[0] == model.cls_id
    uncut = encode(EXAMPLES[:5], [(model.tokenizer, align)], model, 700, 0)
    ((batch, some),) = padded(uncut, "cpu")
    assert len({len(row.ids) for row in some}) > 1
    with torch.no_grad():
        together = model(batch)
        for at, row in enumerate(some):
            alone = model(torch.tensor([row.ids]))[0]
            assert torch.allclose(together[at, : len(row.ids)], alone, atol=1e-5)


@pytest.mark.parametrize("alignment", ["host_chunks", "direct"])
def test_labels_on_detector_tokens_mark_the_same_text(bases: dict[str, str], alignment: str) -> None:
    model = TokenClassifier(bases["ettin"], rank=0)
    other = make_tokenizer(300)
    shown = other if alignment == "host_chunks" else model.tokenizer
    align = make_alignment(alignment, Vocabulary.for_tokenizer(shown), shown, model.tokenizer)
    (row,) = encode(EXAMPLES[:1], [(shown, align)], model, 700, 0)
    table = Vocabulary.for_tokenizer(model.tokenizer)
    answer = row.ids[-len(row.labels) :]
    assert table.join(answer).decode() == ANSWER
    marked = table.join(each for each, label in zip(answer, row.labels, strict=True) if label).decode()
    assert marked.replace(" ", "") == "2431"


@needs_peft
def test_a_folder_trained_again_holds_the_last_training(bases: dict[str, str], tmp_path: Path) -> None:
    model = TokenClassifier(bases["llama"], dtype=torch.float32, rank=4, lora_layers=(2, 2))
    model.write(tmp_path)
    whole = TokenClassifier(bases["llama"], dtype=torch.float32, rank=0)
    with torch.no_grad():
        whole.head.bias[1] = 7.0
    whole.write(tmp_path)
    assert load_checkpoint(tmp_path).head_bias.tolist() == [0.0, 7.0]
    model.write(tmp_path)  # and back: whatever else lies there, a base for instance, stays
    assert load_checkpoint(tmp_path).head_bias.tolist() == [0.0, 0.0]
    assert (tmp_path / "model.safetensors").is_file() and (tmp_path / "config.json").is_file()


def test_the_head_begins_fitted(bases: dict[str, str]) -> None:
    model = TokenClassifier(bases["llama"], rank=0, dtype=torch.float32)
    alignment = make_alignment(
        "host_chunks", Vocabulary.for_tokenizer(model.tokenizer), model.tokenizer, model.tokenizer
    )
    rows = encode(EXAMPLES, [(model.tokenizer, alignment)], model, 700, 0)
    run = Training(model, rows, replace(TINY, head_answers=3), Accelerator(cpu=True))
    run.begin_head()
    with torch.no_grad():
        states = torch.cat([answers(model.states(ids), some) for ids, some in padded(rows, "cpu")])
        odds = torch.cat([answers(model(ids), some) for ids, some in padded(rows, "cpu")])
        labels = np.concatenate([row.labels for _, some in padded(rows, "cpu") for row in some])
    seen = standardised(states.numpy())[0]
    assert auroc((odds[:, 1] - odds[:, 0]).numpy(), labels) > 0.95  # before any step
    assert np.abs(seen).max() < 50 and float(model.scale.min()) > 0
    run.begin_head()  # the same again: drawn by the seed
    again = torch.cat([answers(model(ids), some).detach() for ids, some in padded(rows, "cpu")])
    torch.testing.assert_close(again, odds)


def test_order_is_seeded_and_like_lengths_go_together() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 203).tolist()
    steps = order(lengths, 8, 0, 0)
    assert sorted(at for step in steps for at in step) == list(range(203)) and len(steps) == 26
    assert order(lengths, 8, 0, 0) == steps != order(lengths, 8, 0, 1)
    waste = sum(max(lengths[at] for at in step) * len(step) for step in steps) / sum(lengths)
    assert waste < 1.2


def test_only_supported_answers_are_corrupted() -> None:
    supported = [replace(each, spans=()) for each in EXAMPLES]
    assert corrupted(EXAMPLES, 1.0, 0) == []
    made = corrupted(supported, 1.0, 0)
    assert len(made) == 30 and all(len(each.spans) == len(each.kinds) == 1 for each in made)
    assert 5 < len(corrupted(supported, 0.5, 0)) < 25
    assert corrupted(supported, 1.0, 0) == made


def test_time_and_patience_end_a_run(bases: dict[str, str], tmp_path: Path) -> None:
    said: list[str] = []
    card = train_causal(
        bases["llama"], EXAMPLES, tmp_path / "time", replace(TINY, minutes=0.0), cpu=True, say=said.append
    )
    assert card["steps"] == 1 and said[-1] == "no time is left" and load_checkpoint(tmp_path / "time")
    bored = replace(TINY, patience=1, epochs=50.0, learning_rate=0.0, head_rate=0.0)
    card = train_causal(bases["llama"], EXAMPLES, tmp_path / "bored", bored, cpu=True, say=quiet)
    assert len(card["history"]) == 2 and card["validation"]["step"] == card["history"][0]["step"]


def test_the_command(bases: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"id": each.id, "context": each.context, "answer": each.answer, "spans": each.spans}
        for each in EXAMPLES
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    other = tmp_path / "test.jsonl"
    other.write_text(json.dumps({"context": EXAMPLES[3].context.upper()}), encoding="utf-8")
    arguments = [
        "train",
        "causal",
        "--backbone",
        bases["llama"],
        "--data",
        str(data),
        "--cpu",
        "--lora-rank",
        "0",
    ]
    arguments += [
        "--dtype",
        "float32",
        "--validation",
        "0.3",
        "--epochs",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main([*arguments, "--test-file", str(other)]) == 2
    assert "no context of test.jsonl among the examples, got 1" in capsys.readouterr().err
    two = ["--host-tokenizer", bases["llama"], bases["ettin"]]
    assert main([*arguments, *two]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["hosts"] == ["llama", "ettin"] and load_checkpoint(tmp_path / "out")
    assert main([*arguments[:-1], str(tmp_path / "b"), "--keep-layers", "7"]) == 2
    assert "expected 1 to 2 layers to keep, got 7" in capsys.readouterr().err


def test_both_labels_are_needed(bases: dict[str, str], tmp_path: Path) -> None:
    clean = [replace(each, spans=()) for each in EXAMPLES]
    with pytest.raises(ValueError, match="training: expected tokens of both labels, got 0"):
        train_causal(bases["llama"], clean, tmp_path, TINY, cpu=True, say=quiet)


def test_hub_data(monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    asked: list[tuple[str, str]] = []

    def load_dataset(name: str, split: str) -> list[dict[str, Any]]:
        asked.append((name, split))
        return [{"context": "c", "answer": "a 1", "spans": [[2, 3]]}]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert load_examples(["hub:some/data", "hub:some/data:dev"])[1].spans == ((2, 3),)
    assert asked == [("some/data", "train"), ("some/data", "dev")]
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="expected the package datasets for hub data"):
        load_examples("hub:some/data")


@pytest.mark.parametrize("arguments", [["causal", "--backbone", "nowhere"], ["probe", "--host", "nowhere"]])
def test_data_that_cannot_be_read_is_one_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    train = ["train", *arguments, "--out", str(tmp_path / "out"), "--data"]
    assert main([*train, "hub:some/data"]) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said and "hub:some/data" in said and "lettuceprevent[data]" in said
    data, test = tmp_path / "rows.jsonl", tmp_path / "test.jsonl"
    data.write_text(json.dumps({"context": "c", "answer": "a 1", "spans": [[2, 3]]}), encoding="utf-8")
    for wrong in ({"answer": "x"}, {"context": ["x"]}):
        test.write_text(
            "\n".join([json.dumps({"context": "other"}), "", json.dumps(wrong)]), encoding="utf-8"
        )
        assert main([*train, str(data), "--test-file", str(test)]) == 2
        said = capsys.readouterr().err.strip()
        assert "\n" not in said and f"{test}:3: expected 'context' to be text, got" in said


def test_answers_without_support_are_trained_on_and_counted(bases: dict[str, str], tmp_path: Path) -> None:
    context = "{0} dogs slept. Anna Brown opened the harbour museum on Monday. "
    context += "The garden was planted by volunteers from Oslo in 1998. {0} birds sang."
    data = [
        Example(f"m{n}", context.format(n), "Who?", "Anna Brown opened the harbour museum on Monday.")
        for n in range(12)
    ]
    recipe = replace(TINY, omitted=1.0, epochs=0.1)
    card = train_causal(bases["llama"], [*EXAMPLES, *data], tmp_path, recipe, cpu=True, say=quiet)
    trained = {each.id for each in split_by_context([*EXAMPLES, *data], validation=0.2)[0]}
    assert card["data"]["without_support"] == sum(each.id in trained for each in data) > 0
    assert f"{card['data']['without_support']} over a context" in (tmp_path / "README.md").read_text("utf-8")
