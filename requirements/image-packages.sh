#!/bin/sh
# Run by the Dockerfile. Installs the wheels of worker.txt, torch.txt and dali.txt, without a network,
# below /packages, in one folder a layer: the largest packages each have their own.
set -eu
here=$(dirname "$0")
python=/opt/iobench/bin/python3
site=$($python -c 'import sysconfig; print("/opt/iobench/lib/python" + sysconfig.get_python_version())')
site=$site/site-packages
pip=$(find /wheels -name 'pip-*.whl' | sort | tail -n 1)

# a wheel is a zip file, and Python runs those
$python "$pip/pip" -q install --no-cache-dir --no-index --find-links /wheels --no-compile \
    --disable-pip-version-check --root-user-action ignore --target /tmp/site \
    -c "$here/constraints.txt" -r "$here/worker.txt" -r "$here/torch.txt" -r "$here/dali.txt"
# What only compiling an extension against these packages would need.
rm -rf /tmp/site/bin /tmp/site/torch/include /tmp/site/torch/share/cmake
rm -rf /tmp/site/nvidia/dali/include
find /tmp/site -name '*.a' -delete
# Byte code that is never checked against the source's time: the same in every form of the image.
$python -m compileall -q -j 0 --invalidation-mode unchecked-hash \
    -s /tmp/site -p "$site" /tmp/site || echo "iobench: some files of the packages do not compile"
mkdir -p /packages/nvidia /packages/torch /packages/rest
for path in /tmp/site/*; do
    case ${path##*/} in
    nvidia*) mv "$path" /packages/nvidia/ ;;
    torch*) mv "$path" /packages/torch/ ;;
    *) mv "$path" /packages/rest/ ;;
    esac
done
