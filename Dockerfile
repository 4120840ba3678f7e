# lmdbloader and its demo in an image:
#
#   docker build -t lmdbloader .
#   docker run --rm lmdbloader
#   docker run --rm -v "$PWD:/data" lmdbloader lmdbloader convert photos train.lmdb
#
# For a GPU, with one of NVIDIA's images as the base, and torch from PyPI, which brings the CUDA libraries:
#
#   docker build -t lmdbloader:cuda --build-arg BASE=nvidia/cuda:13.0.1-base-ubuntu24.04 --build-arg TORCH_INDEX= .
#   docker run --rm --gpus all --shm-size 2g lmdbloader:cuda

ARG BASE=python:3.11-slim

FROM python:3.11-slim AS build
COPY pyproject.toml setup.cfg setup.py MANIFEST.in README.md CHANGELOG.md LICENSE THIRD_PARTY.md constraints.txt /source/
COPY lmdbloader /source/lmdbloader
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM ${BASE}
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# NVIDIA's images have no Python.
RUN if ! python3 -m venv /opt/lmdbloader; then \
        apt-get update && \
        apt-get install --yes --no-install-recommends python3 python3-venv && \
        rm -rf /var/lib/apt/lists/* /opt/lmdbloader && \
        python3 -m venv /opt/lmdbloader; \
    fi
ENV PATH=/opt/lmdbloader/bin:$PATH
COPY constraints.txt /opt/lmdbloader/
COPY --from=build /wheels /tmp/wheels
RUN pip install --no-cache-dir --constraint /opt/lmdbloader/constraints.txt \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$(echo /tmp/wheels/*.whl)[demo]"
COPY scripts /opt/lmdbloader/scripts
RUN useradd --create-home user && mkdir /data && chown user /data
USER user
WORKDIR /data
CMD ["python", "/opt/lmdbloader/scripts/demo.py"]
