# The images that iobench measures in: `iobench image build` (or `make images`) builds them.
#
#   base   Debian and the worker's Python, at the one prefix /opt/iobench
#   torch  base, and the packages of requirements/worker.txt there
#   caffe  Debian bullseye with BVLC Caffe 1.0 from its packages
#
# Built by hand: `docker build --network=host --target torch .` with the wheels of worker.txt in
# wheels/. No BuildKit syntax: the legacy builder, podman and buildah build it too. Wheels and
# compilers stay in the stages that are thrown away.
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

# -- caffe -----------------------------------------------------------------------------------
FROM ${CAFFE_BASE_IMAGE} AS caffe
COPY requirements/debian-bullseye.txt requirements/image-debian.sh requirements/image-caffe.sh /build/
RUN sh /build/image-debian.sh /build/debian-bullseye.txt && sh /build/image-caffe.sh && rm -rf /build
COPY iobench /iobench/code/iobench
ENV PYTHONPATH=/iobench/code PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8
USER 1000:1000
WORKDIR /iobench/work
CMD ["/usr/bin/python3", "-m", "iobench.cli_inside", "numpy", "caffe", "lmdb", "h5py"]
ARG TITLE="iobench caffe"
ARG VERSION=unknown
ARG REVISION=unknown
ARG RECIPE=unknown
ARG BASE=unknown
ARG PINS="see /opt/iobench/share/debian-pins"
LABEL org.opencontainers.image.title="${TITLE}" \
    org.opencontainers.image.description="BVLC Caffe 1.0 from Debian's packages" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.base.name="${BASE}" \
    iobench.recipe="${RECIPE}" \
    iobench.python="/usr/bin/python3" \
    iobench.pins="${PINS}"
