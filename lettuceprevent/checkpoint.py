"""The causal detector's files → a model that is ready to score.

Contract: a checkpoint is a folder (or hub id) in one of two forms.

- Whole: `config.json` of a known backbone, safetensors weights and a fast tokenizer. Its keys are exactly those
  of the bare backbone under `backbone.` (or `model.`), a two-label head under `classifier.` (or `score.`), and
  at most `class_weights`, which only training uses. `"final_norm": false` in the config says that the head
  reads the last layer's output as it is; then the final norm has no key.
- Adapter: `adapter.json` names a base model and its first layers; `adapter.safetensors` has two factors
  `NAME.lora_A`, `NAME.lora_B` for every matrix of the adapted layers, and the head. They are added to the
  base's weights when it is loaded. Tokenizer and config are the base's.

A missing or foreign key, a wrong shape, another number of labels or a tokenizer with ids beyond the embedding
raises CheckpointError. Label 1 is "unsupported". No code that comes with the files is ever run. One loaded
model serves a whole process. Where nothing is named and the published checkpoint cannot be had, the adapter
that comes with the package is loaded, with a warning.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import threading
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .alignment import TRAINABLE
from .assets import local_name
from .decoder import Decoder, Norm, take_apart
from .probe import host_hash


class _Default(str):
    """The id of the published checkpoint where nobody asked for it by name, so that another may stand in."""


DEFAULT_CHECKPOINT = _Default("lebe1/lettuceprevent-ettin-decoder-68m-en")
SHIPPED = Path(__file__).parent / "detector_smollm2"
ADAPTER = "adapter.json"
ADAPTER_WEIGHTS = "adapter.safetensors"
TRAINED = "training.json"  # what `lettuceprevent train causal` writes of the training

_FILES = (
    "config.json",
    ADAPTER,
    TRAINED,
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
)
_BODIES = ("backbone.", "model.")
_HEADS = ("classifier.", "score.")
_TRAINING_ONLY = frozenset({"class_weights"})
_PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_loaded: dict[tuple[Any, ...], Checkpoint] = {}
_stand_in: list[Path] = []  # the shipped checkpoint, once it stands in: a hub out of reach is not asked again
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
    threshold: the probability above which a token counts as unsupported, as chosen on the validation part of its
        training data; None where nothing names one (the published checkpoint).
    alignment: how answers were shown to it in training, and what it is used with where the caller names none;
        None where nothing says so.
    prompt_decoder: reads context and query where an adapter was trained on answers alone and does not act on
        them; layers below the adapted ones are shared. None: the decoder reads all.
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
    threshold: float | None = None
    alignment: str | None = None
    prompt_decoder: Decoder | None = None

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

    Without a source the published checkpoint is loaded; where it is neither cached nor to be had from a hub,
    the one that comes with the package, with a warning.

    dtype: the weights' precision, "float32" (default), "bfloat16" or "float16" (not on a CPU). Norms,
    rotation, softmax and head are float32 in each.
    """
    where = torch.device("cpu" if device is None else device)
    precision = resolve_dtype(dtype, where)
    folder = _default_folder() if isinstance(source, _Default) and not revision else _folder(source, revision)
    stamp = tuple(
        sorted((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in folder.iterdir() if f.is_file())
    )
    key = (str(folder.resolve()), stamp, str(where), precision)
    with _lock:
        if key not in _loaded:
            name = str(folder) if folder in _stand_in else str(source)
            _loaded[key] = _load(folder, name, where, precision)
        return _loaded[key]


def forget_checkpoints() -> None:
    """Let go of all loaded checkpoints; those in use stay with their users."""
    with _lock:
        _loaded.clear()
        _stand_in.clear()


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


def _folder(source: str | Path, revision: str | None = None) -> Path:
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if isinstance(source, Path) or str(source).startswith((".", "/", "~")):
        raise CheckpointError(f"expected a checkpoint folder, found none at {source}")
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(str(source), revision=revision, allow_patterns=list(_FILES)))


def _default_folder() -> Path:
    """The published checkpoint, else the shipped one. Raises the hub's error where neither can be had."""
    if _stand_in:
        return _stand_in[0]
    try:
        return _folder(str(DEFAULT_CHECKPOINT))
    except OSError as error:
        if not (SHIPPED / ADAPTER).is_file():
            raise
        base = _adapter_card(SHIPPED, str(SHIPPED))["base"]["id"]
        try:
            base_folder(base)
        except (OSError, CheckpointError):
            raise error from None
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        warnings.warn(
            f"the published detector {DEFAULT_CHECKPOINT} cannot be had ({reason}); using the one trained on "
            f"{base} that comes with the package. Name a detector_model to choose one.",
            stacklevel=3,
        )
    _stand_in[:] = [SHIPPED]
    return SHIPPED


# -- the base model that a detector is made of ------------------------------------------------------------


def base_folder(base: str | Path) -> Path:
    """Where a base model's files lie: a folder, SmolLM2 as `get_assets.py` fetched it, or a hub id.

    Raises OSError where it is neither fetched, cached nor to be had from a hub.
    """
    return _folder(local_name(base) if isinstance(base, str) else base)


def base_config(folder: Path, source: str, layers: int | None = None) -> Any:
    """The config of a base model's first `layers` layers (None: all).

    Where layers are left out, so is the final norm: it was made for the last one's output.
    """
    config = _config(folder, source)
    count = int(config.num_hidden_layers)
    if layers is None or layers == count:
        return config
    if not 1 <= layers < count:
        raise CheckpointError(f"{source}: expected 1 to {count} layers to keep, got {layers}")
    config = copy.deepcopy(config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    config.final_norm = False
    return config


def base_weights(folder: Path, config: Any, source: str) -> dict[str, Tensor]:
    """The backbone's tensors of a base model as `config` has them; its other layers and its heads are left out.

    Raises CheckpointError for a missing or foreign tensor.
    """
    weights = read_weights(folder)
    for prefix in _BODIES:
        if any(name.startswith(prefix) for name in weights):
            weights = {n.removeprefix(prefix): t for n, t in weights.items() if n.startswith(prefix)}
    expected = backbone(config, meta=True).state_dict()
    beyond = set(weights) - set(expected)
    for name in beyond:
        at = layer_of(name)
        if (at is not None and at > config.num_hidden_layers) or name.startswith(_FINAL_NORMS):
            del weights[name]
    _check_keys(expected, weights, source)
    return weights


def backbone(config: Any, *, meta: bool = False) -> Any:
    """transformers' own bare model of `config`, random or (meta) without values; without the final norm where
    the config says so."""
    from transformers import AutoModel

    with torch.device("meta" if meta else "cpu"):
        model = AutoModel.from_config(config, trust_remote_code=False)
    if not getattr(config, "final_norm", True):
        setattr(model, _final_norm(model), torch.nn.Identity())
    return model


def layer_of(name: str) -> int | None:
    """The layer that a tensor of a backbone belongs to, from 1; None for those outside the layers."""
    found = re.match(r"layers\.(\d+)\.", name)
    return int(found[1]) + 1 if found else None


def adapted_names(state: Mapping[str, Tensor], first: int, last: int) -> list[str]:
    """The modules whose weights an adapter of the layers `first` to `last` (from 1, both included) changes:
    all their matrices. state: a backbone's, as `backbone` names it."""
    return [
        name.removesuffix(".weight")
        for name, tensor in state.items()
        if tensor.dim() == 2 and name.endswith(".weight") and first <= (layer_of(name) or 0) <= last
    ]


def weights_hash(folder: Path) -> str:
    """A hash of a folder's safetensors files."""
    return _hash_files(sorted(folder.glob("*.safetensors")))[:16]


_FINAL_NORMS = ("norm.", "final_norm.")


def _final_norm(model: Any) -> str:
    return next(name for name in ("final_norm", "norm") if hasattr(model, name))


class _NoNorm(Norm):
    """Stands where a final norm would."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


# -- the two forms ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Read:
    """What a checkpoint's files say. home: where config and tokenizer lie. plain: the base's weights and how many
    layers the detector shares with it, where it reads context and query."""

    home: Path
    config: Any
    body: dict[str, Tensor]
    head: tuple[Tensor, Tensor]
    class_weights: Tensor | None
    fingerprint: str
    plain: tuple[dict[str, Tensor], int] | None = None


def _read_whole(folder: Path, source: str) -> _Read:
    config = _config(folder, source)
    body, weight, bias, class_weights = split_weights(read_weights(folder), source)
    return _Read(folder, config, body, (weight, bias), class_weights, _fingerprint(folder))


def _read_adapter(folder: Path, source: str) -> _Read:
    from safetensors.torch import load_file

    card = _adapter_card(folder, source)
    home = base_folder(card["base"]["id"])
    config = base_config(home, card["base"]["id"], card["layers"])
    if host_hash(_config(home, source)) != card["base"]["shape"]:
        raise CheckpointError(
            f"{source}: expected a base of shape {card['base']['shape']}, {home} has another one"
        )
    found = weights_hash(home)
    if found != card["base"]["weights"]:
        warnings.warn(
            f"{source} was trained on a base with weights {card['base']['weights']}, {home} has {found}: "
            "scores will differ from those on its card",
            stacklevel=2,
        )
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise CheckpointError(f"{source}: expected {ADAPTER_WEIGHTS}, found none")
    tensors = load_file(str(folder / ADAPTER_WEIGHTS))
    body = base_weights(home, config, source)
    plain = (dict(body), int(card["lora_layers"][0]) - 1) if card["format"] == 2 else None
    head = _add_adapter(body, tensors, card, int(config.hidden_size), source)
    digest = _fingerprint(home) + _hash_files([folder / ADAPTER, folder / ADAPTER_WEIGHTS])
    return _Read(home, config, body, head, None, hashlib.sha256(digest.encode()).hexdigest(), plain)


def _adapter_card(folder: Path, source: str) -> dict[str, Any]:
    """adapter.json, checked as far as loading needs it."""
    card = json.loads((folder / ADAPTER).read_text("utf-8"))
    wanted = {"format", "base", "layers", "rank", "scale", "lora_layers"}
    if (
        (card.get("format"), card.get("adapted")) not in ((1, None), (2, "answer"))
        or not wanted <= set(card)
        or not {"id", "shape", "weights"} <= set(card["base"])
    ):
        raise CheckpointError(
            f"{source}: expected {ADAPTER} of format 1, or 2 and adapted 'answer', with "
            f"{', '.join(sorted(wanted))}"
        )
    return dict(card)


def _add_adapter(
    body: dict[str, Tensor], tensors: dict[str, Tensor], card: dict[str, Any], width: int, source: str
) -> tuple[Tensor, Tensor]:
    """Add the factors' product to the weights of `body`, in place and in float32; returns the head."""
    names = adapted_names(body, *card["lora_layers"])
    rank = int(card["rank"])
    expected = {"classifier.weight": (2, width), "classifier.bias": (2,)}
    for name in names:
        rows, columns = body[f"{name}.weight"].shape
        expected |= {f"{name}.lora_A": (rank, columns), f"{name}.lora_B": (rows, rank)}
    _check_shapes(expected, tensors, source, "adapter")
    for name in names:
        product = tensors[f"{name}.lora_B"].float() @ tensors[f"{name}.lora_A"].float()
        body[f"{name}.weight"] = body[f"{name}.weight"].float() + card["scale"] * product
    return tensors["classifier.weight"].float(), tensors["classifier.bias"].float()


def _load(folder: Path, source: str, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    read = (_read_adapter if (folder / ADAPTER).is_file() else _read_whole)(folder, source)
    config, body, (weight, bias) = read.config, read.body, read.head
    skeleton = backbone(config, meta=True)
    _check_keys(skeleton.state_dict(), body, source)
    if weight.shape[1] != config.hidden_size:
        raise CheckpointError(
            f"{source}: expected a head over {config.hidden_size} features, got {weight.shape[1]}"
        )
    rotary = getattr(skeleton, "rotary_emb", None)
    if rotary is not None:
        rotary = type(rotary)(config=config)  # the skeleton's own has no values on the meta device
    normed = getattr(config, "final_norm", True)

    def built(weights: dict[str, Tensor]) -> Decoder:
        if not normed:
            weights = {**weights, f"{_final_norm(skeleton)}.weight": torch.ones(config.hidden_size)}
        try:
            parts = take_apart(config, weights, rotary)
        except ValueError as error:
            raise CheckpointError(f"{source}: {error}") from error
        made = Decoder.build(parts, device=device, dtype=dtype)
        if not normed:
            made.final_norm = _NoNorm(made.final_norm.weight, None, 0.0)
        return made

    decoder = built(body)
    prompt_decoder = None
    if read.plain is not None:
        weights, same = read.plain
        prompt_decoder = built(weights)
        prompt_decoder.layers[:same] = decoder.layers[:same]
        prompt_decoder.embedding = decoder.embedding
    tokenizer, cls_id, sep_id = detector_tokenizer(read.home, config, source)
    threshold, alignment = _training(folder, source)
    return Checkpoint(
        source=source,
        config=config,
        tokenizer=tokenizer,
        decoder=decoder,
        head_weight=weight.to(device),
        head_bias=bias.to(device),
        class_weights=read.class_weights,
        cls_id=cls_id,
        sep_id=sep_id,
        fingerprint=read.fingerprint,
        threshold=threshold,
        alignment=alignment,
        prompt_decoder=prompt_decoder,
    )


def _training(folder: Path, source: str) -> tuple[float | None, str | None]:
    """(threshold, alignment) as our training.json has them; None for what nothing says."""
    path = folder / TRAINED
    if not path.is_file():
        return None, None
    card = json.loads(path.read_text("utf-8"))
    if not isinstance(card, dict) or "validation" not in card:
        return None, None  # a file of that name that somebody else wrote
    value = card["validation"].get("threshold")
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise CheckpointError(f"{source}: expected in {TRAINED} a threshold from 0 to 1, got {value!r}")
    alignment = card.get("recipe", {}).get("alignment")
    if alignment not in (None, *TRAINABLE):
        raise CheckpointError(
            f"{source}: expected in {TRAINED} an alignment among {', '.join(TRAINABLE)}, got {alignment!r}"
        )
    return float(value), alignment


def _config(folder: Path, source: str) -> Any:
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{source}: expected a config.json, found none")
    return AutoConfig.from_pretrained(folder, trust_remote_code=False)


def _check_keys(expected: dict[str, Tensor], got: dict[str, Tensor], source: str) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    _check_shapes(shapes, got, source, "backbone")


def _check_shapes(
    expected: Mapping[str, tuple[int, ...]], got: dict[str, Tensor], source: str, whose: str
) -> None:
    missing, foreign = sorted(expected.keys() - got.keys()), sorted(got.keys() - expected.keys())
    if missing or foreign:
        raise CheckpointError(
            f"{source}: expected exactly the {whose}'s {len(expected)} tensors; "
            f"{len(missing)} missing ({', '.join(missing[:3])}), "
            f"{len(foreign)} foreign ({', '.join(foreign[:3])})"
        )
    for name, shape in expected.items():
        if shape != tuple(got[name].shape):
            raise CheckpointError(f"{source}: expected {name} of shape {shape}, got {tuple(got[name].shape)}")


def detector_tokenizer(folder: Path, config: Any, source: str) -> tuple[Any, int, int]:
    """(tokenizer, cls_id, sep_id) of a detector or base folder, checked against its config."""
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
    """The id of the first of the tokens `names` that the tokenizer has, else that the config names: Qwen's tokenizers
    have no bos token, its configs do. Only one that is special to the tokenizer will do, since configs have defaults.
    """
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
    special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    for name in names:
        stated = getattr(config, f"{name}_token_id", None)
        if isinstance(stated, int) and stated in special:
            return stated
    raise CheckpointError(
        f"{source}: expected a {' or '.join(names)} token in the tokenizer, or in the config one that is special to "
        "the tokenizer, found neither"
    )


def _fingerprint(folder: Path) -> str:
    names = ["config.json", "tokenizer.json", *sorted(f.name for f in folder.glob("*.safetensors"))]
    return _hash_files(folder / name for name in names)


def _hash_files(files: Iterable[Path]) -> str:
    """One hash of names and contents; a file that is not there is left out."""
    digest = hashlib.sha256()
    for path in files:
        if not path.is_file():
            continue
        digest.update(path.name.encode())
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
