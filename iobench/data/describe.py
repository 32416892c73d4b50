"""Describes a dataset for people."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np

from iobench.core.cases import Dataset
from iobench.core.dataset import form_facts, forms, load_index
from iobench.data import accounting


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
    counted = accounting.of(dataset)
    if counted is not None:
        rows = accounting.read(dataset)
        facts["files"] = accounting.to_json(counted)
        for key, kinds in (("left_out", accounting.LEFT_OUT), ("noted", accounting.NOTED)):
            facts[key] = [
                {"file": row.file, "kind": row.kind, "reason": row.reason}
                for row in rows
                if row.kind in kinds
            ]
    return facts
