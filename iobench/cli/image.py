"""``iobench image``: build, list, verify, export and remove the container images."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from iobench import reachable, services, spec
from iobench.cli_console import JSON, print_json
from iobench.errors import ImageError
from iobench.images import build as building
from iobench.images import catalogue, disk, forms, prefix, recipe
from iobench.images import verify as verification
from iobench.images.model import DEFAULT_FOLDER, FORMS, NAMES, check_name

_FOLDER = click.option(
    "--images",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="Where images lie.",
)


def _known(context: click.Context, parameter: click.Parameter, names: Any) -> Any:
    """Judge the names before a daemon is started for them."""
    for name in names:
        check_name(name)
    return names


_NAMES = click.argument("names", nargs=-1, metavar="[NAME]...", callback=_known)


@click.group()
def image() -> None:
    """Build, list, verify, export, remove the container images; install one without a container.

    \b
      iobench image build                    torch and caffe: one archive each
      iobench image build torch --form all   and what every runtime found here runs
      iobench image list                     what there is, and whether it is current
      iobench image verify                   prove that all forms hold the same files
      iobench image export torch /scratch/me/torch.sif
      iobench image remove                   all of it, docker's and podman's copies too
      iobench image install caffe            Caffe's files on this host, as `make caffe`
    """


@image.command("build")
@_NAMES
@_FOLDER
@click.option(
    "--form",
    "wanted",
    type=click.Choice([*FORMS, "all"]),
    multiple=True,
    help="Make this form too; all: of every runtime found here.",
)
@click.option("--base", default="", help="Build from this base image [Debian's, see docs].")
@click.option("--force", is_flag=True, help="Build anew even when the image is current.")
def image_build(
    names: tuple[str, ...],
    folder: Path,
    wanted: tuple[str, ...],
    base: str,
    force: bool,
) -> int:
    """Build the images NAME (torch, caffe; none: both) unless they are whole and current.

    Docker builds, or podman where there is no Docker daemon (IOBENCH_BUILDER=podman asks for it).
    Without a registry the base is bootstrapped from Debian's packages. A killed build is begun
    again, and what was cached of it is used.
    """
    _say_first(names or NAMES, folder, wanted)
    with _daemon(folder, "docker" in _forms(wanted)):
        for name in names or NAMES:
            made = building.build(name, folder, _say, base_image=base, force=force)
            for form in _forms(wanted):
                forms.make_form(made, form, _say)
    return 0


@image.command("needed")
@click.argument("spec_name", metavar="SPEC")
@click.option("--bare", is_flag=True, help="Those missing on this host, for its bare trials.")
def image_needed(spec_name: str, bare: bool) -> int:
    """Print the images that SPEC's runtimes run, one a line; nothing when it needs none."""
    needed = reachable.host_stacks if bare else reachable.image_names
    for name in needed(spec.load(spec_name)):
        click.echo(name)
    return 0


@image.command("list")
@_FOLDER
@JSON
def image_list(folder: Path, as_json: bool) -> int:
    """What images there are, their digests and forms, and why one cannot be used."""
    rows: list[dict[str, Any]] = []
    for name, found, reason in catalogue.every(folder):
        facts = dataclasses.asdict(found) if found else {"name": name}
        made = sorted(catalogue.made(found)) if found else []
        rows.append({**facts, "usable": not reason, "reason": reason, "forms": made})
    if as_json:
        print_json(rows)
        return 0
    for row in rows:
        if row["reason"]:
            click.echo(f"{row['name']}: {row['reason']}")
            continue
        click.echo(f"{row['name']}: {row['digest']}")
        click.echo(f"  archive {folder / row['name']}.tar, {row['bytes'] / 1e9:.2f} GB")
        click.echo(f"  files made of it: {', '.join(row['forms']) or 'none'}")
        click.echo(f"  iobench {row['version']}, revision {row['revision']}, {row['created']}")
        click.echo(f"  {row['architecture']}; base: {row['base']}; Debian pins: {row['pins']}")
    return 0


@image.command("verify")
@_NAMES
@_FOLDER
@click.option(
    "--form", "wanted", type=click.Choice(FORMS), multiple=True, help="Only these [all made]."
)
@JSON
def image_verify(
    names: tuple[str, ...], folder: Path, wanted: tuple[str, ...], as_json: bool
) -> int:
    """Prove that the forms of NAME are the same image: digests, every file's content, doctor.

    Exit status 1 when something differs; every differing path is named.
    """
    rows = []
    with _daemon(folder, "docker" in wanted or (folder / services.STORE).exists()):
        for name in names or NAMES:
            found = catalogue.find(name, folder)
            for finding in verification.verify(found, wanted, _say):
                rows.append({"image": name, **dataclasses.asdict(finding)})
                if not as_json:
                    mark = "ok" if finding.ok else "NO"
                    click.echo(f"{mark}  {name} {finding.form} {finding.what}: {finding.detail}")
    if as_json:
        print_json(rows)
    return 0 if all(row["ok"] for row in rows) else 1


@image.command("export")
@click.argument("name")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@_FOLDER
def image_export(name: str, path: Path, folder: Path) -> int:
    """Write image NAME to PATH: PATH.sif for apptainer, PATH.tar for docker and podman load.

    For use without iobench, which runs only what it made of NAME.tar and noted in NAME.json. To
    measure on a node that has no Docker, bring those two files to its images folder; then
    `iobench image build NAME --form sif` makes the SIF there.
    """
    found = catalogue.find(name, folder)
    if path.suffix not in (".sif", ".tar"):
        raise ImageError(f"{path}: name it .sif or .tar, for the form that you want")
    source = found.archive
    if path.suffix == ".sif":
        source = Path(forms.make_form(found, "sif", _say))
    disk.check_space(path.parent, source.stat().st_size, f"a copy of {source}")
    with disk.partial(path) as unfinished:
        shutil.copyfile(source, unfinished)
    _say(f"{path}: {found.digest}")
    return 0


@image.command("remove")
@_NAMES
@_FOLDER
def image_remove(names: tuple[str, ...], folder: Path) -> int:
    """Remove the images NAME (none: both): archive, record, every form, the copies in the stores.

    What was fetched to build them stays, so that the next build needs little of the network.
    """
    with _daemon(folder, (folder / services.STORE).exists()):
        for name in names or NAMES:
            went = forms.remove(name, folder)
            _say(f"removed {', '.join(went)}" if went else f"no image {name} in {folder}")
    return 0


@image.command("install")
@click.argument("name")
@_FOLDER
@click.option(
    "--to",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Where to [.tools/caffe of the clone].",
)
@click.option("--force", is_flag=True, help="Install anew even when it is current.")
def image_install(name: str, folder: Path, to: Path | None, force: bool) -> int:
    """Install the files of image NAME (caffe) on this host: no container, no root.

    They are the image's own files and run from any folder: copy it, or name it by CAFFE_ROOT. An
    interrupted installation is begun again, and what was downloaded is used.
    """
    cache = folder / building.CACHE
    prefix.install(name, to or prefix.default_folder(), cache, _say, force=force)
    return 0


# -- helpers ---------------------------------------------------------------------------------


def _say(line: str) -> None:
    sys.stderr.write(f"iobench: {line}\n")
    sys.stderr.flush()


def _forms(wanted: tuple[str, ...]) -> list[str]:
    if "all" in wanted:
        return [form for form, reason in forms.possible().items() if not reason]
    return list(dict.fromkeys(wanted))


def _say_first(names: tuple[str, ...], folder: Path, wanted: tuple[str, ...]) -> None:
    """Say what will be built, started and written, before any of it is."""
    stale = [name for name, _, reason in catalogue.every(folder) if reason and name in names]
    made = _forms(wanted)
    if stale:
        _say(
            f"building {', '.join(stale)} for {recipe.architecture()} in {folder}/: about "
            f"{building.total_bytes(stale) / 1e9:.0f} GB there at the peak, some minutes each"
        )
    docker = "docker" in made or (stale and building.engine_name() == "docker")
    if docker and services.docker_answers() and services.possible():
        _say("a private Docker daemon will be started for this and stopped at the end")
    if made:
        _say(f"then the forms {', '.join(made)}")
    if "all" in wanted:
        for form, reason in forms.possible().items():
            if reason:
                _say(f"no {form}: {reason}")


@contextlib.contextmanager
def _daemon(folder: Path, wanted: bool) -> Iterator[None]:
    """One Docker daemon for a whole command that needs it, not one a step."""
    if not wanted:
        yield
        return
    with services.docker(_say, folder):
        yield
