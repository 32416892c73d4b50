#!/bin/sh
# Run by the Dockerfile, after image-debian.sh: the user, the mount points, and whether it starts.
set -eu
echo 'iobench:x:1000:1000:iobench:/iobench/work:/bin/sh' >>/etc/passwd
echo 'iobench:x:1000:' >>/etc/group
mkdir -p /iobench/data /iobench/work /iobench/code /iobench/jpeg /iobench/plugins
chmod 1777 /iobench/work
caffe --version
python3 -c 'import caffe'
