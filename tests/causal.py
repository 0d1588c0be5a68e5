"""What the tests of model detectors share: random checkpoints, a tiny host, and scores by full forward passes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

from lettuceprevent.checkpoint import read_weights, split_weights

_SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "make_causal_checkpoint.py"


def maker() -> Any:
    """scripts/make_causal_checkpoint.py as a module."""
    name = "make_causal_checkpoint"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, _SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def make_checkpoint(folder: Path, **options: Any) -> Path:
    """A tiny random checkpoint of the published form in `folder`."""
    written: Path = maker().write_checkpoint(folder, **options)
    return written


def reference_model(folder: Path) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """transformers' own backbone, head weight and bias."""
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.from_pretrained(folder)
    model = AutoModel.from_config(config).eval()
    backbone, weight, bias, _ = split_weights(read_weights(folder), str(folder))
    model.load_state_dict(backbone)
    return model, weight, bias


def full_scores(reference: tuple[Any, torch.Tensor, torch.Tensor], ids: tuple[int, ...]) -> float:
    """P(label 1) at the last of `ids`, by one full forward pass."""
    model, weight, bias = reference
    with torch.inference_mode():
        hidden = model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1]
        return float(torch.softmax(weight @ hidden + bias, -1)[1])


def tiny_host(tokenizer: Any) -> Any:
    """A tiny random Llama whose answers end with the tokenizer's separator."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=max(tokenizer.get_vocab().values()) + 1,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.sep_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def write_encoder(folder: Path, labels: int = 2, longest: int = 512) -> Path:
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
        max_position_embeddings=longest,
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
