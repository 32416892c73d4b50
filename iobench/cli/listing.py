"""Everything there is to choose from: what `iobench list` prints."""

from __future__ import annotations

from iobench import registry, spec, stacks


def tables() -> dict[str, dict[str, str]]:
    """Return title -> name -> what it is: axes, pipelines, stages and shipped specs."""
    found = {axis: members(axis) for axis in registry.AXES}
    found["pipelines"] = {}
    for loader in registry.names("loaders"):
        backend = registry.load("loaders", loader)
        why = _unavailable("loaders", loader)
        for form in registry.names("formats"):
            contents = registry.load("formats", form).contents
            for stored in [form] + [f"{form}-{c}" for c in sorted(contents - {"jpeg"})]:
                if backend.formats is None or stored in backend.formats:
                    path = "native" if stored in backend.native else "reader"
                    text = f"path: {path}" + (f" (unavailable here: {why})" if why else "")
                    found["pipelines"][f"{loader}:{stored}"] = text
    for alias, full in registry.ALIASES.items():
        found["pipelines"][alias] = f"alias of {full}"
    found["stages"] = {
        "ceiling": "fio with this format's access pattern: what the mount can give",
        "read": "the loader's reads alone: F, the fetch rate",
        "decode": "read and JPEG decode",
        "load": "the whole input pipeline, nobody trains: P",
        "compute": "the trainer on one resident batch: G, the ingestion rate",
        "train": "the real run: what the user sees",
    }
    found["specs"] = spec.shipped()
    return found


def members(axis: str) -> dict[str, str]:
    """Return name -> summary, with the reason appended where a member cannot run here."""
    rows = {}
    for name in registry.names(axis):
        why = _unavailable(axis, name)
        summary = registry.load(axis, name).summary
        rows[name] = f"{summary} (unavailable here: {why})" if why else summary
    return rows


def _unavailable(axis: str, name: str) -> str:
    """Return why a member cannot run here; one of another stack is not asked of this Python."""
    image = registry.load(axis, name).image
    if image not in ("", stacks.DEFAULT):
        return stacks.missing(image)
    return registry.unavailable(axis, name)
