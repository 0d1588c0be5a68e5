"""Loading: the published form and its relatives load; anything else says what is wrong."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from causal import full_scores, make_checkpoint, maker, reference_model
from safetensors.torch import load_file, save_file

from lettuceprevent import checkpoint as module
from lettuceprevent.assets import HOST, HOST_HUB_ID
from lettuceprevent.checkpoint import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    DEFAULT_CHECKPOINT,
    CheckpointError,
    adapted_names,
    base_folder,
    base_weights,
    forget_checkpoints,
    load_checkpoint,
    resolve_dtype,
    weights_hash,
)
from lettuceprevent.decoder import Decoder, Linear, Mask, Segment, known_backbones


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "detector")


def change(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace, add or (None) remove tensors; `__` stands for a dot."""
    file = folder / "model.safetensors"
    weights = load_file(str(file))
    for name, tensor in changes.items():
        key = name.replace("__", ".")
        if tensor is None:
            del weights[key]
        else:
            weights[key] = tensor
    save_file(weights, str(file))


def test_published_form(folder: Path) -> None:
    checkpoint = load_checkpoint(folder)
    assert checkpoint.config.model_type == "modernbert-decoder"
    assert checkpoint.class_weights is not None
    assert checkpoint.class_weights.tolist() == [0.5, 4.0]
    assert checkpoint.head_weight.shape == (2, 32)
    assert (checkpoint.cls_id, checkpoint.sep_id) == (
        checkpoint.tokenizer.cls_token_id,
        checkpoint.tokenizer.sep_token_id,
    )
    assert "modernbert-decoder" in known_backbones()


def test_one_model_per_process(folder: Path) -> None:
    first = load_checkpoint(folder)
    assert load_checkpoint(str(folder)) is first
    assert load_checkpoint(folder, dtype="bfloat16") is not first
    assert load_checkpoint(folder, dtype=torch.bfloat16) is load_checkpoint(folder, dtype="bfloat16")
    forget_checkpoints()
    again = load_checkpoint(folder)
    assert again is not first
    assert again.fingerprint == first.fingerprint
    change(folder, class_weights=None)  # other files: loaded anew, and known to be others
    assert load_checkpoint(folder).fingerprint != first.fingerprint
    assert load_checkpoint(folder).class_weights is None


@pytest.mark.parametrize("length", [1, 17, 150, 300])
def test_whole_passes_equal_transformers(folder: Path, length: int) -> None:
    checkpoint = load_checkpoint(folder)
    decoder = checkpoint.decoder
    ids = tuple(torch.randint(5, 300, (length,), generator=torch.Generator().manual_seed(length)).tolist())
    cache, chain = decoder.new_cache(length), Mask(0, 0, None)
    hidden = decoder.forward(
        torch.tensor(ids), torch.arange(length), [Segment(cache, 0, length, 0, chain, chain)]
    )
    assert float(checkpoint.unsupported(hidden)[-1]) == pytest.approx(
        full_scores(reference_model(folder), ids), abs=1e-5
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone__final_norm__weight": None}, "1 missing .final_norm.weight"),
        ({"backbone__layers__9__mlp__Wi__weight": torch.ones(2, 2)}, "1 foreign"),
        ({"backbone__final_norm__weight": torch.ones(31)}, r"shape \(32,\), got \(31,\)"),
        ({"decoder__weight": torch.ones(2)}, "got also decoder.weight"),
        ({"classifier__dense__weight": torch.ones(2)}, "got also classifier.dense.weight"),
        ({"classifier__weight": torch.ones(3, 32)}, "head of 2 labels"),
        ({"classifier__weight": torch.ones(2, 16)}, "head over 32 features, got 16"),
        ({"classifier__bias": torch.ones(3)}, "head bias"),
        ({"classifier__weight": None, "classifier__bias": None}, "found none"),
        ({"class_weights": torch.ones(3)}, "class_weights"),
        ({"model__final_norm__weight": torch.ones(32)}, r"found backbone\. and model\."),
    ],
)
def test_wrong_weights(folder: Path, changes: dict[str, torch.Tensor | None], message: str) -> None:
    change(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def edit(folder: Path, name: str, **values: object) -> None:
    file = folder / name
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **values}), "utf-8")


def test_wrong_files(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="found none at"):
        load_checkpoint(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_checkpoint(tmp_path / "empty")
    edit(folder, "config.json", sep_token_id=1, eos_token_id=1)
    with pytest.raises(CheckpointError, match="sep_token_id 1 as in the config"):
        load_checkpoint(folder)


def test_tokenizer_class_of_another_release(folder: Path) -> None:
    known = load_checkpoint(folder).tokenizer("Revenue rose by 12.5 percent.")["input_ids"]
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**config, "tokenizer_class": "TokenizersOfTomorrow"}), encoding="utf-8")
    assert load_checkpoint(folder).tokenizer("Revenue rose by 12.5 percent.")["input_ids"] == known


def test_tokenizer_that_does_not_fit(folder: Path) -> None:
    tokenizer = maker().small_tokenizer()
    tokenizer.add_tokens(["one", "too", "many"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(CheckpointError, match="tokenizer ids below the embedding's"):
        load_checkpoint(folder)


def test_no_weights_and_unknown_backbone(folder: Path) -> None:
    from transformers import GPT2Config

    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors, found no such file"):
        load_checkpoint(folder)
    (folder / "weights.safetensors").rename(folder / "model.safetensors")
    GPT2Config(vocab_size=400, n_embd=32, n_layer=1, n_head=2).save_pretrained(folder)
    with pytest.raises(CheckpointError):
        load_checkpoint(folder)


def test_precision_names() -> None:
    cpu = torch.device("cpu")
    assert resolve_dtype(None, cpu) == torch.float32
    assert resolve_dtype(torch.bfloat16, cpu) == torch.bfloat16
    assert resolve_dtype("float16", cpu) == torch.bfloat16  # no fast products in float16 there
    assert resolve_dtype("float16", torch.device("cuda")) == torch.float16
    with pytest.raises(ValueError, match="expected a precision"):
        resolve_dtype("int4", cpu)


def test_unpacked_products_give_the_same_scores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines whose torch has no oneDNN go through plain products."""
    from lettuceprevent import decoder

    packed = load_checkpoint(folder)
    monkeypatch.setattr(decoder, "_pack", lambda weight: None)
    forget_checkpoints()
    plain = load_checkpoint(folder)
    assert all(layer.qkv.packed is None for layer in plain.decoder.layers)
    ids, positions, chain = torch.arange(5, 45), torch.arange(40), Mask(0, 0, None)

    def run(decoder: Decoder) -> torch.Tensor:
        return decoder.forward(ids, positions, [Segment(decoder.new_cache(40), 0, 40, 0, chain, chain)])

    torch.testing.assert_close(run(packed.decoder), run(plain.decoder), atol=1e-5, rtol=1e-5)
    forget_checkpoints()


def test_linear_adds_to_a_residual() -> None:
    weight, bias = torch.randn(6, 4), torch.randn(6)
    x, residual = torch.randn(3, 4), torch.randn(3, 6)
    expected = residual + x @ weight.t() + bias
    torch.testing.assert_close(Linear(weight, bias).add_to(residual.clone(), x), expected)


def test_bytes_are_stated(folder: Path) -> None:
    decoder = load_checkpoint(folder).decoder
    assert decoder.bytes_per_node == 5 * 2 * 32 * 4
    assert decoder.new_cache(10).numel() * 4 == 10 * decoder.bytes_per_node
    assert decoder.weight_bytes() == 5 * (96 * 32 + 32 * 32 + 96 * 32 + 32 * 48) * 4


# -- what is loaded where nothing is named ----------------------------------------------------------------


def write_adapter(folder: Path, base: str, base_files: Path) -> Path:
    """An adapter of rank 2 on the last layer of the tiny detector, its head small random numbers."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(base_files)
    body = base_weights(base_files, config, "base")
    draw = torch.Generator().manual_seed(0)
    tensors = {"classifier.weight": torch.randn(2, 32, generator=draw), "classifier.bias": torch.zeros(2)}
    for name in adapted_names(body, 5, 5):
        rows, columns = body[f"{name}.weight"].shape
        tensors[f"{name}.lora_A"] = torch.randn(2, columns, generator=draw)
        tensors[f"{name}.lora_B"] = torch.randn(rows, 2, generator=draw)
    folder.mkdir()
    save_file(tensors, str(folder / ADAPTER_WEIGHTS))
    card = {
        "format": 1,
        "base": {"id": base, "shape": module.host_hash(config), "weights": weights_hash(base_files)},
        "layers": 5,
        "rank": 2,
        "scale": 2.0,
        "lora_layers": [5, 5],
    }
    (folder / ADAPTER).write_text(json.dumps(card), encoding="utf-8")
    return folder


class Hub:
    """Stands for the hub: the ids it has, and what was asked."""

    def __init__(self) -> None:
        self.has: dict[str, Path] = {}
        self.asked: list[str] = []

    def __call__(self, name: str, revision: str | None = None, **options: object) -> str:
        self.asked.append(name)
        assert type(name) is str
        if name not in self.has:
            raise FileNotFoundError(f"no {name} here\nand more lines")
        return str(self.has[name])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    import huggingface_hub

    made = Hub()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made)
    forget_checkpoints()
    return made


def test_the_published_checkpoint_goes_first(
    folder: Path, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHIPPED", write_adapter(tmp_path / "shipped", str(folder), folder))
    hub.has[str(DEFAULT_CHECKPOINT)] = folder
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_checkpoint().source == DEFAULT_CHECKPOINT
    assert hub.asked == [DEFAULT_CHECKPOINT]


def test_the_shipped_one_stands_in(
    folder: Path, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHIPPED", write_adapter(tmp_path / "shipped", "some/base", folder))
    with pytest.raises(FileNotFoundError, match="no lebe1/"):  # its base cannot be had either
        load_checkpoint()
    hub.has["some/base"] = folder
    with pytest.warns(UserWarning, match=r"lebe1/.* cannot be had \(no lebe1/\S+ here\); using .* some/base"):
        first = load_checkpoint()
    assert first.source == str(tmp_path / "shipped")
    assert first.fingerprint != load_checkpoint(folder).fingerprint
    hub.asked.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_checkpoint() is first  # neither asked nor warned again
    assert hub.asked == []
    with pytest.raises(FileNotFoundError):  # who asks by name gets that one or none
        load_checkpoint(str(DEFAULT_CHECKPOINT))
    with pytest.raises(FileNotFoundError):
        load_checkpoint(DEFAULT_CHECKPOINT, revision="main")
    forget_checkpoints()


def test_nothing_is_shipped(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHIPPED", tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="no lebe1/"):
        load_checkpoint()


def test_the_demo_model_serves_as_base(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETTUCEPREVENT_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        base_folder(HOST_HUB_ID)
    assert hub.asked == [HOST_HUB_ID]
    (tmp_path / HOST).mkdir()
    (tmp_path / HOST / "asset.json").write_text("{}")
    assert base_folder(HOST_HUB_ID) == tmp_path / HOST and hub.asked == [HOST_HUB_ID]
