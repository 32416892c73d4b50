#!/bin/sh
# Packs dist/iobench-bundle-<version>.tar: this commit's files and, in wheels/, every package of
# run.txt for this platform and Python. Where it is unpacked, `make setup` needs no network.
#
# BUNDLE_DATA=folder   packs a dataset too (as data/)      TORCH_INDEX, PIP_ARGS  as in install.sh
# BUNDLE_CAFFE=1       packs .tools/caffe too, 1.7 GB (`make caffe` first)
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' iobench/__init__.py)
name=iobench-$version
tar=dist/iobench-bundle-$version.tar

say() { printf 'iobench: %s\n' "$*" >&2; }

if ! git rev-parse --verify -q HEAD >/dev/null; then
    say "make bundle packs a commit, and this folder is no git clone: run it in one"
    exit 2
fi
[ -z "$(git status --porcelain)" ] || say "uncommitted changes are not packed"

rm -rf dist/wheels
mkdir -p dist/wheels
say "fetching the wheels of requirements/run.txt for $(uname -m), $(.venv/bin/python --version)"
# shellcheck disable=SC2086  # PIP_ARGS is a list of words
.venv/bin/python -m pip -q download --disable-pip-version-check --only-binary :all: ${PIP_ARGS:-} \
    ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
    -c requirements/constraints.txt -r requirements/run.txt pip -d dist/wheels
git archive --format=tar --prefix="$name/" -o "$tar" HEAD
tar -rf "$tar" -C dist --transform "s,^,$name/," wheels
if [ -n "${BUNDLE_DATA:-}" ]; then
    tar -rf "$tar" -C "$BUNDLE_DATA" --transform "s,^\.,$name/data," .
fi
if [ -n "${BUNDLE_CAFFE:-}" ]; then
    if [ ! -e .tools/caffe/share/iobench-caffe.json ]; then
        say "BUNDLE_CAFFE packs .tools/caffe, and it is not there: run \`make caffe\` first"
        exit 2
    fi
    tar -rf "$tar" --transform "s,^,$name/,S" .tools/caffe # S: links in it stay what they are
fi
say "$tar ($(du -h "$tar" | cut -f 1)). On the node: tar -xf $(basename "$tar"); cd $name; make setup"
