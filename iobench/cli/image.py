"""``iobench image``: build, list, verify, export and remove the container images."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from iobench.cli.console import JSON, err, out, print_json
from iobench.core.errors import ImageError
from iobench.host import tools
from iobench.images import build as building
from iobench.images import catalogue, disk, docker_daemon, forms, model, prefix, recipe
from iobench.images import verify as verification
from iobench.images.model import CACHE, DEFAULT_FOLDER, FORMS, recipe_of
from iobench.run import availability
from iobench.spec import load

_DIRECTORY = click.Path(path_type=Path, file_okay=False)
_FOLDER = click.option(
    "--images",
    "folder",
    type=_DIRECTORY,
    default=DEFAULT_FOLDER,
    show_default=True,
    help="Folder of the images.",
)
_form = functools.partial(click.option, "--form", "wanted", multiple=True)


def _known(context: click.Context, parameter: click.Parameter, names: Any) -> Any:
    """Judge the names before a daemon is started for them."""
    for name in names:
        recipe_of(name)
    return names


_NAMES = click.argument("names", nargs=-1, metavar="[NAME]...", callback=_known)


@click.group()
def image() -> None:
    """Build, list, verify, export and remove container images; install one without a container.

    \b
      iobench image build                    build torch and caffe, one archive each
      iobench image build torch --form all   and the form of every runtime of this machine
      iobench image list                     list images and whether they are current
      iobench image verify                   verify that all forms hold the same files
      iobench image export torch /scratch/me/torch.sif
      iobench image remove                   remove all, with docker's and podman's copies
      iobench image install caffe            install Caffe on this host, as `make caffe`
    """


@image.command("build")
@_NAMES
@_FOLDER
@_form(
    type=click.Choice([*FORMS, "all"]),
    help="Also make this form; all: for every runtime of this machine.",
)
@click.option("--base", default="", help="Base image [Debian's].")
@click.option("--force", is_flag=True, help="Rebuild even if the image is current.")
def image_build(
    names: tuple[str, ...], folder: Path, wanted: tuple[str, ...], base: str, force: bool
) -> None:
    """Build the images NAME (torch, caffe; none: both) unless they are complete and current.

    Docker builds; without a Docker daemon, or with IOBENCH_BUILDER=podman, podman does. Without a
    registry the base is bootstrapped from Debian's packages. A killed build starts again and uses
    its cache. Of several images one that fails does not keep the others from being made.
    """
    _say_first(names or model.names(), folder, wanted)
    with _daemon(folder, "docker" in _forms(wanted)):
        chosen = names or model.names()
        make = functools.partial(_build_forms, folder, _forms(wanted), base, force)
        failed = [failure for name in chosen if (failure := make(name))]
    if failed:
        raise ImageError("; ".join(failed))


def _build_forms(folder: Path, wanted: Sequence[str], base: str, force: bool, name: str) -> str:
    """Build an image and make forms of it; return why that failed, "" where it did not."""
    try:
        made = building.build(name, folder, _say, base_image=base, force=force)
        for form in wanted:
            forms.make_form(made, form, _say)
    except ImageError as error:
        return f"image {name}: {error}"
    return ""


@image.command("needed")
@click.argument("spec_name", metavar="SPEC")
@click.option("--bare", is_flag=True, help="Stacks that the bare trials need and this host lacks.")
def image_needed(spec_name: str, bare: bool) -> None:
    """Print the images that SPEC's runtimes need, one per line."""
    needed = availability.host_stacks if bare else availability.image_names
    for name in needed(load.load(spec_name)):
        _print(name)


@image.command("list")
@_FOLDER
@JSON
def image_list(folder: Path, as_json: bool) -> None:
    """List images, their digests and forms, and the reason if one cannot be used."""
    rows: list[dict[str, Any]] = []
    for name, found, reason in catalogue.every(folder):
        facts = dataclasses.asdict(found) if found else {"name": name}
        made = sorted(catalogue.made(found)) if found else []
        rows.append({**facts, "usable": not reason, "reason": reason, "forms": made})
    if as_json:
        print_json(rows)
        return
    for row in rows:
        if row["reason"]:
            _print(f"{row['name']}: {row['reason']}")
            continue
        _print(f"{row['name']}: {row['digest']}")
        _print(f"  archive {folder / row['name']}.tar, {row['bytes'] / 1e9:.2f} GB")
        _print(f"  files made of it: {', '.join(row['forms']) or 'none'}")
        _print(f"  iobench {row['version']}, revision {row['revision']}, {row['created']}")
        _print(f"  {row['architecture']}; base: {row['base']}; Debian pins: {row['pins']}")


@image.command("verify")
@_NAMES
@_FOLDER
@_form(type=click.Choice(FORMS), help="Only these forms [all present].")
@JSON
def image_verify(
    names: tuple[str, ...], folder: Path, wanted: tuple[str, ...], as_json: bool
) -> int:
    """Verify that all forms of NAME are the same image: digests, contents of files, libraries.

    Exit status 1 if anything differs; every differing path is printed.
    """
    rows = []
    with _daemon(folder, "docker" in wanted or (folder / docker_daemon.STORE).exists()):
        for name in names or model.names():
            found = catalogue.find(name, folder)
            for finding in verification.verify(found, wanted, _say):
                rows.append({"image": name, **dataclasses.asdict(finding)})
                if not as_json:
                    mark = "ok" if finding.ok else "NO"
                    _print(f"{mark}  {name} {finding.form} {finding.what}: {finding.detail}")
    if as_json:
        print_json(rows)
    return 0 if all(row["ok"] for row in rows) else 1


@image.command("export")
@click.argument("name")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@_FOLDER
def image_export(name: str, path: Path, folder: Path) -> None:
    """Write image NAME to PATH: PATH.sif for apptainer, PATH.tar for docker and podman load.

    For use without iobench. To measure on a node without Docker, copy NAME.tar and NAME.json to its
    images folder and run `iobench image build NAME --form sif` there.
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


@image.command("remove")
@_NAMES
@_FOLDER
def image_remove(names: tuple[str, ...], folder: Path) -> None:
    """Remove the images NAME (none: both): archive, record, every form, the copies in the stores.

    Downloads are kept for the next build.
    """
    with _daemon(folder, (folder / docker_daemon.STORE).exists()):
        for name in names or model.names():
            went = forms.remove(name, folder)
            _say(f"removed {', '.join(went)}" if went else f"no image {name} in {folder}")


@image.command("install")
@click.argument("name")
@_FOLDER
@click.option("--to", type=_DIRECTORY, help="Target folder [.tools/caffe of the clone].")
@click.option("--force", is_flag=True, help="Reinstall even if it is current.")
def image_install(name: str, folder: Path, to: Path | None, force: bool) -> None:
    """Install the files of image NAME (caffe) on this host: no container, no root.

    They are the files of the image and run from any folder: copy it, or set CAFFE_ROOT. An
    interrupted installation starts again and uses the downloads.
    """
    cache = folder / CACHE
    prefix.install(name, to or tools.FOLDER / "caffe", cache, _say, force=force)


def _print(line: str) -> None:
    out.print(line, soft_wrap=True)


def _say(line: str) -> None:
    err.print(f"iobench: {line}", soft_wrap=True)


def _forms(wanted: tuple[str, ...]) -> list[str]:
    if "all" in wanted:
        return [form for form, reason in forms.possible().items() if not reason]
    return list(dict.fromkeys(wanted))


def _say_first(names: Sequence[str], folder: Path, wanted: tuple[str, ...]) -> None:
    """Say what will be built, started and written, before any of it is."""
    stale = [name for name, _, reason in catalogue.every(folder) if reason and name in names]
    made = _forms(wanted)
    if stale:
        _say(
            f"building {', '.join(stale)} for {recipe.architecture()} in {folder}/: about "
            f"{building.total_bytes(stale) / 1e9:.0f} GB there at the peak, some minutes each"
        )
    docker = "docker" in made or (stale and building.engine_name() == "docker")
    if docker and docker_daemon.docker_answers() and docker_daemon.possible():
        _say("a private Docker daemon will be started for this and stopped at the end")
    if made:
        _say(f"then the forms {', '.join(made)}")
    if "all" in wanted:
        for form, reason in forms.possible().items():
            if reason:
                _say(f"no {form}: {reason}")


def _daemon(folder: Path, wanted: bool) -> contextlib.AbstractContextManager[object]:
    """One Docker daemon for a whole command that needs it, not one a step."""
    return docker_daemon.docker(_say, folder) if wanted else contextlib.nullcontext()
