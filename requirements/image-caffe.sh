#!/bin/sh
# Run by the Dockerfile. Makes /opt/iobench out of the packages of debian-bullseye.txt, which are in
# debs/, compared with its sha256, and the wheels of caffe.txt in /wheels. The largest packages go to
# /packages: a layer of their own.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=/tmp/root
mkdir $root
for deb in "$here"/debs/*.deb; do
    dpkg-deb --extract "$deb" $root
done
echo exact >/tmp/pins
PYTHONHOME=$root/usr LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu \
    $root/usr/bin/python3.9 "$here/caffe_prefix.py" $root /opt/iobench /wheels /tmp/pins
rm -rf $root
mkdir -p /packages
mv /opt/iobench/lib/python3/dist-packages/nvidia* /packages/
