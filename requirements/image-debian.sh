#!/bin/sh
# Run by the Dockerfile. Installs Debian packages at the versions of a lock file, or, where the
# mirror has moved on, at its own; which of the two is written to /opt/iobench/share/debian-pins.
#
#   image-debian.sh LOCK     LOCK: lines "package=version"
set -eu
lock=$1
share=/opt/iobench/share
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

apt() { apt-get -q -o APT::Update::Error-Mode=any -o Acquire::Retries=3 "$@"; }

wanted=$(grep -v '^#' "$lock")
apt update
# shellcheck disable=SC2046,SC2086  # lists of words
apt install -y --no-install-recommends $wanted || {
    echo "iobench: the mirror no longer has every version of $(basename "$lock"): taking its own"
    apt install -y --no-install-recommends $(echo "$wanted" | cut -d= -f1)
}
mkdir -p $share
for pair in $wanted; do
    found=$(dpkg-query -W -f '${Version}' "${pair%%=*}")
    [ "$found" = "${pair#*=}" ] || echo "${pair%%=*}=$found wanted ${pair#*=}"
done >/tmp/moved
{
    if [ -s /tmp/moved ]; then echo "moved"; else echo "exact"; fi
    cat /tmp/moved
} >$share/debian-pins
echo "iobench: Debian packages: $(tr '\n' ';' <$share/debian-pins)"
dpkg-query -W -f '${Package}=${Version}\n' >$share/debian-packages
apt clean
rm -rf /var/lib/apt/lists/* /tmp/moved /var/log/apt /var/log/dpkg.log /var/log/alternatives.log \
    /var/cache/ldconfig/aux-cache
