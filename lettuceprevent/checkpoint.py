"""The causal detector's files → a model that is ready to score.

Contract: a checkpoint is a folder (or hub id) with `config.json` of a known backbone, safetensors weights and
a fast tokenizer. Its keys are exactly those of the bare backbone under `backbone.` (or `model.`), a two-label
head under `classifier.` (or `score.`), and at most `class_weights`, which only training uses. A missing or
foreign key, a wrong shape, another number of labels or a tokenizer with ids beyond the embedding raises
CheckpointError. Label 1 is "unsupported". No code that comes with the files is ever run. One loaded model
serves a whole process.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .decoder import Decoder, take_apart

DEFAULT_CHECKPOINT = "lebe1/lettuceprevent-ettin-decoder-68m-en"

_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer*", "special_tokens_map.json")
_BODIES = ("backbone.", "model.")
_HEADS = ("classifier.", "score.")
_TRAINING_ONLY = frozenset({"class_weights"})
_PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_loaded: dict[tuple[Any, ...], Checkpoint] = {}
_lock = threading.Lock()


class CheckpointError(ValueError):
    """The files do not make a causal detector. The message says what was expected and what was found."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A loaded detector.

    decoder: the packed backbone. head_weight (2, hidden) and head_bias (2,): float32, on the decoder's
        device.
    tokenizer: the detector's own fast tokenizer. cls_id, sep_id: the ids around context and query.
    class_weights: (2,) weights of the training loss, or None; scores do not depend on them.
    fingerprint: hash of config, weights and tokenizer, a hex string.
    """

    source: str
    config: Any
    tokenizer: Any
    decoder: Decoder
    head_weight: Tensor
    head_bias: Tensor
    class_weights: Tensor | None
    cls_id: int
    sep_id: int
    fingerprint: str

    @torch.inference_mode()
    def unsupported(self, hidden: Tensor) -> Tensor:
        """P(label 1), float32 (R,), of final hidden states (R, hidden)."""
        logits = torch.addmm(self.head_bias, hidden, self.head_weight.t())
        return torch.sigmoid(logits[:, 1] - logits[:, 0])


def load_checkpoint(
    source: str | Path = DEFAULT_CHECKPOINT,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
) -> Checkpoint:
    """Load a local folder or a hub id; the same files, device and dtype are loaded once per process.

    dtype: the weights' precision, "float32" (default), "bfloat16" or "float16" (not on a CPU). Norms,
    rotation, softmax and head are float32 in each.
    """
    where = torch.device("cpu" if device is None else device)
    precision = resolve_dtype(dtype, where)
    folder = _folder(source, revision)
    stamp = tuple(
        sorted((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in folder.iterdir() if f.is_file())
    )
    key = (str(folder.resolve()), stamp, str(where), precision)
    with _lock:
        if key not in _loaded:
            _loaded[key] = _load(folder, str(source), where, precision)
        return _loaded[key]


def forget_checkpoints() -> None:
    """Let go of all loaded checkpoints; those in use stay with their users."""
    with _lock:
        _loaded.clear()


def resolve_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """The precision to load in. float16 has no fast products on a CPU and is replaced by bfloat16 there."""
    name = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    if name not in _PRECISIONS:
        raise ValueError(f"expected a precision among {', '.join(_PRECISIONS)}, got {dtype!r}")
    if name == "float16" and device.type == "cpu":
        name = "bfloat16"
    return _PRECISIONS[name]


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of the safetensors files of `folder`, on the CPU."""
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    weights: dict[str, Tensor] = {}
    for name in names:
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"{folder}: expected weights in {name}, found no such file")
        weights.update(load_file(str(file)))
    return weights


def split_weights(
    weights: dict[str, Tensor], source: str
) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor | None]:
    """Backbone weights without their prefix, head weight (2, hidden), head bias (2,), class weights or None."""
    body = _prefix(weights, _BODIES, source)
    head = _prefix(weights, _HEADS, source)
    backbone = {name.removeprefix(body): w for name, w in weights.items() if name.startswith(body)}
    rest = {name for name in weights if not name.startswith((body, head))} - _TRAINING_ONLY
    names = {name.removeprefix(head) for name in weights if name.startswith(head)}
    if rest or names not in ({"weight"}, {"weight", "bias"}):
        foreign = sorted(rest | {head + name for name in names - {"weight", "bias"}})
        raise CheckpointError(
            f"{source}: expected {body}*, {head}weight, {head}bias and at most class_weights; got also "
            f"{', '.join(foreign[:5]) or 'no ' + head + 'weight'}"
        )
    weight = weights[f"{head}weight"].float()
    if weight.dim() != 2 or weight.shape[0] != 2:
        raise CheckpointError(
            f"{source}: expected a head of 2 labels, got weights of shape {tuple(weight.shape)}"
        )
    bias = weights.get(f"{head}bias")
    bias = torch.zeros(2) if bias is None else bias.float()
    if bias.shape != (2,):
        raise CheckpointError(f"{source}: expected a head bias of shape (2,), got {tuple(bias.shape)}")
    extra = weights.get("class_weights")
    if extra is not None and extra.shape != (2,):
        raise CheckpointError(f"{source}: expected class_weights of shape (2,), got {tuple(extra.shape)}")
    return backbone, weight, bias, extra


def _prefix(weights: dict[str, Tensor], choices: tuple[str, ...], source: str) -> str:
    found = [prefix for prefix in choices if any(name.startswith(prefix) for name in weights)]
    if len(found) != 1:
        raise CheckpointError(
            f"{source}: expected keys that start with {' or '.join(choices)}, "
            f"found {' and '.join(found) or 'none'}"
        )
    return found[0]


def _folder(source: str | Path, revision: str | None) -> Path:
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if isinstance(source, Path) or str(source).startswith((".", "/", "~")):
        raise CheckpointError(f"expected a checkpoint folder, found none at {source}")
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(str(source), revision=revision, allow_patterns=list(_FILES)))


def _load(folder: Path, source: str, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    from transformers import AutoConfig, AutoModel

    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{source}: expected a config.json, found none")
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    backbone, weight, bias, class_weights = split_weights(read_weights(folder), source)
    with torch.device("meta"):
        skeleton = AutoModel.from_config(config, trust_remote_code=False)
    _check_keys(skeleton.state_dict(), backbone, source)
    if weight.shape[1] != config.hidden_size:
        raise CheckpointError(
            f"{source}: expected a head over {config.hidden_size} features, got {weight.shape[1]}"
        )
    rotary = getattr(skeleton, "rotary_emb", None)
    if rotary is not None:
        rotary = type(rotary)(config=config)  # the skeleton's own has no values on the meta device
    try:
        parts = take_apart(config, backbone, rotary)
    except ValueError as error:
        raise CheckpointError(f"{source}: {error}") from error
    tokenizer, cls_id, sep_id = _tokenizer(folder, config, source)
    return Checkpoint(
        source=source,
        config=config,
        tokenizer=tokenizer,
        decoder=Decoder.build(parts, device=device, dtype=dtype),
        head_weight=weight.to(device),
        head_bias=bias.to(device),
        class_weights=class_weights,
        cls_id=cls_id,
        sep_id=sep_id,
        fingerprint=_fingerprint(folder),
    )


def _check_keys(expected: dict[str, Tensor], got: dict[str, Tensor], source: str) -> None:
    missing, foreign = sorted(expected.keys() - got.keys()), sorted(got.keys() - expected.keys())
    if missing or foreign:
        raise CheckpointError(
            f"{source}: expected exactly the backbone's {len(expected)} tensors; "
            f"{len(missing)} missing ({', '.join(missing[:3])}), "
            f"{len(foreign)} foreign ({', '.join(foreign[:3])})"
        )
    for name, tensor in expected.items():
        if tensor.shape != got[name].shape:
            raise CheckpointError(
                f"{source}: expected {name} of shape {tuple(tensor.shape)}, got {tuple(got[name].shape)}"
            )


def _tokenizer(folder: Path, config: Any, source: str) -> tuple[Any, int, int]:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except ValueError:
            # Transformers 4 does not know the class that 5 writes down for plain fast tokenizers.
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{source}: expected a tokenizer beside the weights; {error}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise CheckpointError(f"{source}: expected a fast tokenizer, got {type(tokenizer).__name__}")
    largest = max(tokenizer.get_vocab().values())
    if largest >= config.vocab_size:
        raise CheckpointError(
            f"{source}: expected tokenizer ids below the embedding's {config.vocab_size} rows, got {largest}"
        )
    cls_id = _special(tokenizer, config, ("cls", "bos"), source)
    sep_id = _special(tokenizer, config, ("sep", "eos"), source)
    return tokenizer, cls_id, sep_id


def _special(tokenizer: Any, config: Any, names: tuple[str, ...], source: str) -> int:
    for name in names:
        token_id = getattr(tokenizer, f"{name}_token_id", None)
        if token_id is None:
            continue
        stated = getattr(config, f"{name}_token_id", None)
        if isinstance(stated, int) and stated != token_id:
            raise CheckpointError(
                f"{source}: expected {name}_token_id {stated} as in the config, the tokenizer has {token_id}"
            )
        return int(token_id)
    raise CheckpointError(f"{source}: expected a tokenizer with a {' or '.join(names)} token, found neither")


def _fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    names = ["config.json", "tokenizer.json", *sorted(f.name for f in folder.glob("*.safetensors"))]
    for name in names:
        if not (folder / name).is_file():
            continue
        digest.update(name.encode())
        with open(folder / name, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
