# The images that iobench measures in: `iobench image build` (or `make images`) builds them.
#
#   base   Debian and the worker's Python, at the one prefix /opt/iobench
#   torch  base, and the packages of requirements/worker.txt there
#   caffe  BVLC Caffe 1.0, its Python 3.9 and Open MPI of Debian bullseye's packages, at that prefix
#
# Built by hand: `docker build --network=host --target torch .` with the wheels of worker.txt, and
# pip's own, in wheels/; caffe with those of caffe.txt there, and a folder debs/ that holds any file
# (then apt fetches the packages, so CAFFE_BASE_IMAGE has to be Debian bullseye). No BuildKit
# syntax: the legacy builder, podman and buildah build it too. Wheels and compilers stay in the
# stages that are thrown away.
ARG BASE_IMAGE=debian:bookworm-slim
ARG CAFFE_BASE_IMAGE=debian:bullseye-slim

# -- thrown away: Debian's Python, made relocatable ------------------------------------------
FROM ${BASE_IMAGE} AS python
COPY requirements/debian-bookworm.txt requirements/image-debian.sh requirements/image-python.sh /build/
RUN sh /build/image-debian.sh /build/debian-bookworm.txt && sh /build/image-python.sh

# -- thrown away: the wheels, and what they unpack to ----------------------------------------
FROM python AS packages
COPY wheels /wheels
COPY requirements/worker.txt requirements/constraints.txt requirements/image-packages.sh /build/
RUN sh /build/image-packages.sh

# -- base ------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS base
RUN echo 'iobench:x:1000:1000:iobench:/iobench/work:/bin/sh' >>/etc/passwd && \
    echo 'iobench:x:1000:' >>/etc/group && \
    mkdir -p /iobench/data /iobench/work /iobench/code /iobench/jpeg /iobench/plugins && \
    chmod 1777 /iobench/work
COPY --from=python /opt/iobench /opt/iobench
ENV PATH=/opt/iobench/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/iobench/code PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8
USER 1000:1000
WORKDIR /iobench/work

# -- torch -----------------------------------------------------------------------------------
FROM base AS torch
COPY --from=packages /packages/nvidia /opt/iobench/lib/python3.11/site-packages/
COPY --from=packages /packages/torch /opt/iobench/lib/python3.11/site-packages/
COPY --from=packages /packages/rest /opt/iobench/lib/python3.11/site-packages/
COPY iobench /iobench/code/iobench
CMD ["/opt/iobench/bin/python3", "-m", "iobench.cli_inside", \
    "numpy", "torch", "lmdb", "h5py", "simplejpeg", "cv2", "blake3", "nvidia.dali"]
ARG TITLE="iobench torch"
ARG VERSION=unknown
ARG REVISION=unknown
ARG RECIPE=unknown
ARG BASE=unknown
ARG PINS="see /opt/iobench/share/debian-pins"
LABEL org.opencontainers.image.title="${TITLE}" \
    org.opencontainers.image.description="What iobench's workers run in: PyTorch, DALI, LMDB, HDF5" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.base.name="${BASE}" \
    iobench.recipe="${RECIPE}" \
    iobench.python="/opt/iobench/bin/python3" \
    iobench.pins="${PINS}"

# -- thrown away: Debian's Caffe, made relocatable: the files that `make caffe` installs ----------
FROM ${CAFFE_BASE_IMAGE} AS prefix
COPY wheels /wheels
COPY debs /build/debs
COPY requirements/debian-bullseye.txt requirements/caffe.txt requirements/image-debian.sh /build/
COPY requirements/image-caffe.sh requirements/caffe_prefix.py requirements/elf.py /build/
RUN sh /build/image-caffe.sh

# -- caffe: on the base of torch, whose glibc a host is likelier to have -----------------------
FROM ${BASE_IMAGE} AS caffe
RUN echo 'iobench:x:1000:1000:iobench:/iobench/work:/bin/sh' >>/etc/passwd && \
    echo 'iobench:x:1000:' >>/etc/group && \
    mkdir -p /iobench/data /iobench/work /iobench/code /iobench/jpeg /iobench/plugins && \
    chmod 1777 /iobench/work
COPY --from=prefix /packages /opt/iobench/lib/python3/dist-packages/
COPY --from=prefix /opt/iobench /opt/iobench
ENV PATH=/opt/iobench/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/iobench/code PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8 \
    OPAL_PREFIX=/opt/iobench OPAL_SYSCONFDIR=/opt/iobench/etc/openmpi GLOG_logtostderr=1 \
    PMIX_MCA_mca_base_component_path=/opt/iobench/lib/x86_64-linux-gnu/pmix2/lib/pmix
COPY iobench /iobench/code/iobench
USER 1000:1000
WORKDIR /iobench/work
CMD ["/opt/iobench/bin/python3", "-m", "iobench.cli_inside", "numpy", "caffe", "mpi4py", "lmdb", \
    "plyvel", "h5py", "simplejpeg", "cv2", "blake3", "nvidia.dali"]
ARG TITLE="iobench caffe"
ARG VERSION=unknown
ARG REVISION=unknown
ARG RECIPE=unknown
ARG BASE=unknown
ARG PINS="see /opt/iobench/share/debian-pins"
LABEL org.opencontainers.image.title="${TITLE}" \
    org.opencontainers.image.description="What iobench's Caffe workers run in: BVLC Caffe 1.0, Open MPI, DALI" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.base.name="${BASE}" \
    iobench.recipe="${RECIPE}" \
    iobench.python="/opt/iobench/bin/python3" \
    iobench.pins="${PINS}"
