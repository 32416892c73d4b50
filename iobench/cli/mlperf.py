"""``iobench mlperf``: a workload file of MLPerf Storage, what its rules ask for, and its spec."""

from __future__ import annotations

import os
from pathlib import Path

import click
from rich.text import Text

from iobench.cli.console import JSON, PATH, out, print_json
from iobench.core.units import nbytes
from iobench.equations import mlperf as rules
from iobench.host import files
from iobench.spec import load, workloads


@click.command()
@click.argument("workload", type=PATH)
@click.option("--accelerators", type=click.IntRange(1), default=1, show_default=True)
@click.option("--hosts", type=click.IntRange(1), default=1, show_default=True)
@click.option("--memory", help="Memory of one host, such as 256G; default: this machine's.")
@click.option(
    "--samples",
    type=click.IntRange(1),
    help="Samples of an epoch; default: what the rules ask for.",
)
@click.option("--spec", "target", type=PATH, help="Write the spec there (TOML).")
@JSON
def mlperf(
    workload: Path, accelerators: int, hosts: int, memory: str | None, samples: int | None,
    target: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Read WORKLOAD, a workload file of MLPerf Storage or DLIO (.yaml), as it is.

    \b
      iobench mlperf unet3d_h100.yaml --accelerators 8 --hosts 2 --memory 512G
      iobench mlperf cosmoflow_a100.yaml --samples 2000 --spec cosmoflow.toml
      iobench run cosmoflow.toml && iobench show results

    Prints what the rules ask of the data (500 steps an epoch, 5 x the hosts' memory) and what the
    accelerators ask of the mount; --spec writes a spec whose stage `feed` measures AU as MLPerf
    Storage counts it. Whatever comes of it is not an MLPerf result. docs/mlperf.md.
    """
    found = workloads.read(workload)
    own = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    each = nbytes(memory) if memory else own
    batch, step_s = found.reader.batch_size, found.train.computation_time
    wanted = rules.wanted(batch, accelerators, hosts * each, found.record_bytes)
    count = samples or wanted.samples
    rate = accelerators * batch / step_s if step_s else None
    facts = {
        "workload": found.model.name,
        "format": found.dataset.format,
        "record_bytes": found.record_bytes,
        "batch": batch,
        "step_s": step_s,
        "least_au": found.metric.au,
        "accelerators": accelerators,
        "samples_per_s": rate,
        "bytes_per_s": rate and rate * found.record_bytes,
        "file_samples": found.samples,
        "wanted_samples": wanted.samples,
        "wanted_by_steps": wanted.by_steps,
        "wanted_by_memory": wanted.by_memory,
        "wanted_bytes": wanted.samples * found.record_bytes,
        "samples": count,
    }
    if target is not None:
        text = workloads.spec_text(found, accelerators=accelerators, samples=count)
        load.parse_text(text, str(target))
        files.write_text(target, text)
        facts["spec"] = str(target)
    if as_json:
        print_json(facts)
        return
    _print(facts, target)


def _print(facts: dict[str, object], target: Path | None) -> None:
    f = facts
    demand = "as fast as it comes"
    if f["samples_per_s"]:
        demand = f"{f['samples_per_s']:,.1f} samples/s, {_gb(f['bytes_per_s'])}/s"
    lines = [
        f"{f['workload']}: {f['format']}, {f['record_bytes']:,} bytes a sample, batch "
        f"{f['batch']}, {f['step_s']:g} s a step, AU at least {f['least_au']:.0%}",
        f"at AU 1, simulated accelerators ({f['accelerators']}) take {demand}",
        f"the rules ask for {f['wanted_samples']:,} samples ({_gb(f['wanted_bytes'])}): "
        f"{f['wanted_by_steps']:,} for {rules.LEAST_STEPS} steps, {f['wanted_by_memory']:,} for "
        f"{rules.TIMES_MEMORY} x the hosts' memory; the file names {f['file_samples']:,}",
    ]
    for line in lines:
        out.print(Text(line), soft_wrap=True)
    if target is None:
        out.print(Text("--spec FILE writes the spec that measures it"), soft_wrap=True)
    else:
        out.print(
            Text(f"{target}: {f['samples']:,} samples; `iobench run {target}`"), soft_wrap=True
        )


def _gb(size: object) -> str:
    return f"{float(str(size)) / 1e9:,.3g} GB"
