# The images that iobench measures in: `iobench image build` (or `make images`) builds them, and adds
# the labels. A target has the name of its stack (iobench/backends/stacks).
#
#   torch  the packages of requirements/{worker,torch,dali}.txt and Debian's Python at /opt/iobench
#   caffe  BVLC Caffe 1.0, its Python 3.9 and Open MPI of Debian bullseye's packages, at that prefix
#
# Built by hand: `docker build --network=host --target torch .` with those wheels, and pip's own, in
# wheels/; caffe with those of caffe.txt there, and the packages of debian-bullseye.txt in debs/. No
# BuildKit syntax: the legacy builder, podman and buildah build it too. Wheels and compilers stay in
# the stages that are thrown away.
ARG BASE_IMAGE=debian:bookworm-slim

# -- thrown away: Debian's Python, made relocatable ------------------------------------------
FROM ${BASE_IMAGE} AS python
COPY requirements /build
RUN sh /build/image-debian.sh /build/debian-bookworm.txt && sh /build/image-python.sh

# -- thrown away: the wheels, and what they unpack to ----------------------------------------
FROM python AS packages
COPY wheels /wheels
RUN sh /build/image-packages.sh

# -- thrown away: Debian's Caffe, made relocatable: the files that `make caffe` installs ----------
FROM ${BASE_IMAGE} AS prefix
COPY wheels /wheels
COPY debs /build/debs
COPY requirements /build
RUN sh /build/image-caffe.sh

# -- what all have; its glibc is one that a host is likely to have ----------------------------
FROM ${BASE_IMAGE} AS base
RUN echo 'iobench:x:1000:1000:iobench:/iobench/work:/bin/sh' >>/etc/passwd && \
    echo 'iobench:x:1000:' >>/etc/group && \
    mkdir -p /iobench/data /iobench/work /iobench/code /iobench/jpeg /iobench/plugins && \
    chmod 1777 /iobench/work
ENV PATH=/opt/iobench/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/iobench/code PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8
USER 1000:1000
WORKDIR /iobench/work

# -- torch -----------------------------------------------------------------------------------
FROM base AS torch
COPY --from=python /opt/iobench /opt/iobench
COPY --from=packages /packages/nvidia /opt/iobench/lib/python3.11/site-packages/
COPY --from=packages /packages/torch /opt/iobench/lib/python3.11/site-packages/
COPY --from=packages /packages/rest /opt/iobench/lib/python3.11/site-packages/
COPY iobench /iobench/code/iobench
CMD ["/opt/iobench/bin/python3", "-m", "iobench.worker.self_check", "torch"]

# -- caffe -----------------------------------------------------------------------------------
FROM base AS caffe
COPY --from=prefix /packages /opt/iobench/lib/python3/dist-packages/
COPY --from=prefix /opt/iobench /opt/iobench
ENV OPAL_PREFIX=/opt/iobench OPAL_SYSCONFDIR=/opt/iobench/etc/openmpi GLOG_logtostderr=1 \
    PMIX_MCA_mca_base_component_path=/opt/iobench/lib/x86_64-linux-gnu/pmix2/lib/pmix
COPY iobench /iobench/code/iobench
CMD ["/opt/iobench/bin/python3", "-m", "iobench.worker.self_check", "caffe"]
