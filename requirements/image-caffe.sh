#!/bin/sh
# Run by the Dockerfile. Makes /opt/iobench out of the packages of debian-bullseye.txt: those in debs/,
# which were compared with its sha256, or, where not all could be had, what apt installs here.
# The wheels of caffe.txt are in /wheels. The largest packages go to /packages: a layer of their own.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
lock=$here/debian-bullseye.txt
root=/
libraries=
if [ -e "$here/debs/complete" ]; then
    root=/tmp/root
    mkdir $root
    for deb in "$here"/debs/*.deb; do
        dpkg-deb --extract "$deb" $root
    done
    echo exact >/tmp/pins
    libraries=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu
else
    cut -d ' ' -f 1 "$lock" | grep = >"$here/packages.txt"
    sh "$here/image-debian.sh" "$here/packages.txt"
    mv /opt/iobench/share/debian-pins /tmp/pins
    rm -rf /opt/iobench
fi
PYTHONHOME=$root/usr LD_LIBRARY_PATH=$libraries \
    $root/usr/bin/python3.9 "$here/caffe_prefix.py" $root /opt/iobench /wheels /tmp/pins
rm -rf /tmp/root
mkdir -p /packages
mv /opt/iobench/lib/python3/dist-packages/nvidia* /packages/
