#!/bin/sh
# Run by the Dockerfile, after image-debian.sh. Copies Debian's Python to /opt/iobench, with the shared libraries that it
# needs beside glibc's own, so that the very same files also run from any other folder.
set -eu
prefix=/opt/iobench
mkdir -p $prefix/bin $prefix/lib

version=$(python3.11 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
cp /usr/bin/python3.11 $prefix/bin/python3.11
ln -s python3.11 $prefix/bin/python3
cp -a "/usr/lib/python$version" $prefix/lib/
stdlib=$prefix/lib/python$version
rm -rf "$stdlib/sitecustomize.py" "$stdlib/EXTERNALLY-MANAGED" "$stdlib/dist-packages"
find "$stdlib" -name __pycache__ -prune -exec rm -rf {} +
mkdir "$stdlib/site-packages"
# Debian's site.py looks for dist-packages; packages lie where every other Python has them.
ln -s site-packages "$stdlib/dist-packages"
# Without a "home" this makes no virtual environment: it only keeps ~/.local out.
echo "include-system-site-packages = false" >$prefix/pyvenv.cfg

libstdcxx=$(ldconfig -p | sed -n 's/.*libstdc++.so.6 .*=> //p' | head -n 1)
{
    ldd $prefix/bin/python3.11 "$stdlib"/lib-dynload/*.so "$libstdcxx" |
        sed -n 's/.*=> \(\/[^ ]*\).*/\1/p'
    echo "$libstdcxx"
} | sort -u | while read -r library; do
    case ${library##*/} in
    libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libutil.so.* | \
        libresolv.so.* | libnsl.so.1 | ld-linux*) continue ;; # glibc's own: the host's or image's
    esac
    cp -L "$library" "$prefix/lib/"
done
# DT_RPATH, not DT_RUNPATH: it also holds for what the extension modules need. The C++ library is
# named here because packages with a DT_RUNPATH of their own would else take the host's. One change
# a call: patchelf 0.14 mixes up the strings of several.
python=$prefix/bin/python3.11
patchelf --add-needed libstdc++.so.6 $python
patchelf --add-needed libgcc_s.so.1 $python
patchelf --force-rpath --set-rpath "\$ORIGIN/../lib" $python
for library in libexpat.so.1 libz.so.1 libstdc++.so.6 libgcc_s.so.1; do
    ldd $python | grep -qF "$library => $prefix/" || {
        ldd $python
        echo "iobench: $python does not take its own $library" && exit 1
    }
done
$prefix/bin/python3 -m compileall -q --invalidation-mode unchecked-hash "$stdlib"
for module in ssl ctypes sqlite3 lzma bz2 zlib readline hashlib decimal uuid; do
    $prefix/bin/python3 -I -c "import $module"
done
