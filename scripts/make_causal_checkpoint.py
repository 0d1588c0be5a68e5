"""Random causal detectors of exactly the published form, for tests and benchmarks.

    python scripts/make_causal_checkpoint.py OUT                 # tiny: 4 layers of 32, seconds to use
    python scripts/make_causal_checkpoint.py OUT --size full     # the shape of the 68M Ettin decoder
    python scripts/make_causal_checkpoint.py OUT --kind llama    # a Llama-type backbone, keys `model.*`,
    `score.*`

The weights are drawn wide enough for attention to matter, and the head is scaled so that the difference of
the two logits has a standard deviation of 2 over random tokens: a wrong mask, window or rotation then shows
in the scores. The tokenizer is the rebuilt ModernBERT one (`--tokenizer FOLDER`, else the fetched asset), or
for `--tokenizer small` a byte-level one with a few hundred ids that is made here.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

# The published training configuration's shape. A real checkpoint's own config.json is what counts there.
FULL = {
    "hidden_size": 512,
    "intermediate_size": 768,
    "num_hidden_layers": 19,
    "num_attention_heads": 8,
    "max_position_embeddings": 7999,
    "local_attention": 128,
}
TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "max_position_embeddings": 600,
    "local_attention": 32,
}
_SPECIALS = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
_TEXT = (
    "The company said on Tuesday that revenue rose by 12.5 percent to 2,400 million dollars in 2021, and "
    "that it would hire another 300 people. It's the third time they've done so; the mayor wasn't there.\n\nTen "
    "officers, 40 days and 1,000 nights later nothing had been heard of the ship, its captain or the cargo of tea."
)


def small_tokenizer() -> Any:
    """A byte-level BPE tokenizer with the ModernBERT special tokens and a few hundred ids; every text can be
    encoded.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE(unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(_SPECIALS), initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([_TEXT], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
    )


def modernbert_config(shape: dict[str, int], tokenizer: Any, vocab_size: int) -> Any:
    """A `modernbert-decoder` config of this shape, for the tokenizer's special ids."""
    from transformers import ModernBertDecoderConfig

    return ModernBertDecoderConfig(
        vocab_size=vocab_size,
        pad_token_id=tokenizer.pad_token_id,
        cls_token_id=tokenizer.cls_token_id,
        bos_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        eos_token_id=tokenizer.sep_token_id,
        **shape,
    )


def llama_config(kind: str, tokenizer: Any, vocab_size: int) -> Any:
    """A tiny Llama-type config with grouped keys, for `llama`, `mistral` (windowed), `qwen2` or `qwen3`."""
    from transformers import AutoConfig

    extra: dict[str, Any] = {"sliding_window": 16} if kind == "mistral" else {}
    return AutoConfig.for_model(
        kind,
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=600,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        **extra,
    )


def random_weights(config: Any, seed: int, logit_sd: float = 2.0) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A random backbone (transformers' own class) and a head (2, hidden), (2,) scaled to `logit_sd`."""
    from transformers import AutoModel

    generator = torch.Generator().manual_seed(seed)
    backbone = AutoModel.from_config(config).eval()
    with torch.no_grad():
        for name, weight in backbone.named_parameters():
            if weight.dim() < 2:
                # Norm weights and biases: away from 1 and 0, so that one left out would show.
                around = 1.0 if name.endswith("weight") else 0.0
                weight.copy_(around + 0.1 * torch.randn(weight.shape, generator=generator))
            elif "embed" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator))
            else:
                weight.copy_(torch.randn(weight.shape, generator=generator) / math.sqrt(weight.shape[1]))
        head = torch.randn(2, config.hidden_size, generator=generator) / math.sqrt(config.hidden_size)
        bias = 0.1 * torch.randn(2, generator=generator)
        ids = torch.randint(5, config.vocab_size, (1, 256), generator=generator)
        hidden = backbone(input_ids=ids, use_cache=False).last_hidden_state[0]
        difference = hidden @ (head[1] - head[0])
        head *= logit_sd / difference.std()
        bias[1] -= float(difference.mean()) * float(logit_sd / difference.std())
    return backbone, head, bias


def write_checkpoint(
    out: Path,
    *,
    size: str = "tiny",
    kind: str = "modernbert-decoder",
    tokenizer: Any = None,
    seed: int = 0,
    class_weights: bool = True,
) -> Path:
    """Write one checkpoint folder and return it. `tokenizer`: a fast tokenizer; the small one if None."""
    from safetensors.torch import save_file

    if tokenizer is None:
        tokenizer = small_tokenizer()
    rows = max(tokenizer.get_vocab().values()) + 1
    if kind == "modernbert-decoder":
        shape = FULL if size == "full" else TINY
        config = modernbert_config(shape, tokenizer, max(rows, 50_368) if size == "full" else rows)
        body, head_name = "backbone.", "classifier."
    else:
        config = llama_config(kind, tokenizer, rows + 16)  # some tokenizer classes add ids of their own
        body, head_name = "model.", "score."
    backbone, head, bias = random_weights(config, seed)
    weights = {body + name: weight.contiguous() for name, weight in backbone.state_dict().items()}
    weights[head_name + "weight"], weights[head_name + "bias"] = head, bias
    if class_weights and kind == "modernbert-decoder":
        weights["class_weights"] = torch.tensor([0.5, 4.0])
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, str(out / "model.safetensors"), metadata={"format": "pt"})
    config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def load_tokenizer(name: str | None) -> Any:
    """The tokenizer that `--tokenizer` names."""
    if name == "small":
        return small_tokenizer()
    from transformers import AutoTokenizer

    from lettuceprevent.assets import asset_path

    folder = asset_path("modernbert") if name is None else Path(name)
    if folder is None:
        raise SystemExit(
            "expected the ModernBERT tokenizer among the assets; run get_assets.py, or give --tokenizer"
        )
    return AutoTokenizer.from_pretrained(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", choices=("tiny", "full"), default="tiny")
    parser.add_argument("--kind", default="modernbert-decoder")
    parser.add_argument(
        "--tokenizer", default=None, help="a folder, or 'small'; default: the fetched ModernBERT tokenizer"
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    write_checkpoint(
        given.out,
        size=given.size,
        kind=given.kind,
        tokenizer=load_tokenizer(given.tokenizer),
        seed=given.seed,
    )
    files = {file.name: file.stat().st_size for file in sorted(given.out.iterdir())}
    print(json.dumps({"folder": given.out.name, "size": given.size, "kind": given.kind, "bytes": files}))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main())
