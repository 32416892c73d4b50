"""Describes a dataset for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np

from iobench.core.cases import Dataset
from iobench.core.dataset import LEFT_OUT, form_facts, forms, load_index


def info(dataset: Dataset) -> Dict[str, Any]:
    """Return what a person wants to know of a dataset, JSON-able, in reading order."""
    index = load_index(dataset)
    quantiles = np.quantile(index.sizes, (0.05, 0.5, 0.95)).round().astype(int).tolist()
    facts: Dict[str, Any] = {
        "name": dataset.name,
        "root": dataset.root,
        "source": dataset.source,
        "samples": dataset.samples,
        "classes": dataset.classes,
        "bytes": dataset.bytes,
        "mean_bytes": round(dataset.bytes / dataset.samples),
        "sd_bytes": round(float(index.sizes.std())),
        "bytes_p5_p50_p95": quantiles,
        "seed": dataset.seed,
        "digest": dataset.digest,
        "in_place": dataset.in_place,
    }
    for key in ("encodes_per_sample", "padding_share"):
        if key in dataset.recipe:
            facts[key] = round(float(dataset.recipe[key]), 5)
    facts["forms"] = {form: form_facts(dataset, form) for form in forms(dataset)}
    left_out = load_left_out(dataset)
    if left_out or "not_drawn" in dataset.recipe:
        facts["not_drawn"] = dataset.recipe.get("not_drawn", 0)
        facts["left_out"] = [{"file": file, "reason": reason} for file, reason in left_out]
    return facts


def load_left_out(dataset: Dataset) -> List[Tuple[str, str]]:
    """Return (file, reason) of what a user's tree held and the dataset does not."""
    path = Path(dataset.root, LEFT_OUT)
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    rows = [line.partition("\t") for line in text.split("\n") if line]
    return [(json.loads(file), reason) for file, _, reason in rows]
