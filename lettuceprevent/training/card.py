"""The model card of a trained causal detector, from what training.json says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def model_card(card: Mapping[str, Any]) -> str:
    """README.md of a trained folder."""
    recipe, data, found = card["recipe"], card["data"], card["validation"]
    first, last = recipe["lora_layers"] or (1, card["layers"])
    how = "All weights were trained."
    if recipe["lora_rank"]:
        how = f"LoRA of rank {recipe['lora_rank']} on the layers {first} to {last}; the base is not in this folder."
        if recipe.get("answer_only"):
            how += " The factors act on the answer alone, the base reads what comes before it."
    settings = "\n".join(f"| {name} | {value} |" for name, value in recipe.items())
    if "merged" in card:
        how += f" The mean of {len(card['merged'])} trainings; of what they differ in, each one's is listed."
        data = {name: _each(value) for name, value in data.items()}
    figures = " | ".join(f"{found[name]:.3f}" for name in ("average_precision", "auroc", "f1", "threshold"))
    return f"""---
base_model: {card["backbone"]}
library_name: lettuceprevent
pipeline_tag: token-classification
---
# A detector of unsupported tokens

The first {card["layers"]} layers of {card["backbone"]} with a head of two labels, 1 = not supported by the context.
{how} Input: `[CLS] context [SEP] query [SEP] answer` with the backbone's own special tokens; a token is judged
at its own position, from what is before it. Answers were cut into the tokens of {", ".join(card["hosts"])}
(alignment `{recipe["alignment"]}`).

```python
model.generate(..., detector_type="lettuceprevent", detector_model="this folder")
```

## Validation

On {data["validation_answers"]} answers whose contexts were not trained on. They chose step and threshold, so the figures
flatter. The threshold is the default of `confidence_threshold`.

| average precision | AUROC | F1 | at threshold | after step |
|---|---|---|---|---|
| {figures} | {found["step"]} |

## Training

{data["answers"]} answers, {data["corrupted"]} with a synthetic error, {data["without_support"]} over a context without
what one of their sentences rests on, and {data["records"]} about made-up records;
{data["unsupported_tokens"]} of {data["tokens"]} tokens unsupported. Data hash
{data["hash"]}. {card["steps"]} steps, {card["minutes"]} minutes.

| setting | value |
|---|---|
{settings}
"""


def _each(value: Any) -> Any:
    return " and ".join(map(str, value)) if isinstance(value, list) else value
