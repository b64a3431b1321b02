# docker build --tag pggan .                               # CPU
# docker build --tag pggan --build-arg TORCH=cu130 .       # NVIDIA GPUs: docker run --gpus all …
# docker build --target test .                             # build, and run the quick tests
# docker run --user $(id -u):$(id -g) --volume "$PWD:/work" --ipc host pggan train data.path=photos run_dir=outputs/photos
FROM python:3.13-slim AS base
# The backend of PyTorch: cpu, or the version of CUDA.  Its libraries come with PyTorch, so the image needs none.
ARG TORCH=cpu
ENV UV_TORCH_BACKEND=${TORCH} UV_SYSTEM_PYTHON=1 UV_NO_CACHE=1 PYTHONDONTWRITEBYTECODE=1
# A C compiler, for the launchers of kernels that Triton builds when they are first used.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc g++ libc6-dev && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /src/
RUN python -m pip install --no-cache-dir uv --constraint /src/constraints.txt

FROM base AS test
RUN apt-get update && apt-get install --yes --no-install-recommends git make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . /src
RUN uv pip install --editable ".[avatars,datasets,docs,export,faces,metrics,slurm,video,dev]" --constraint constraints.txt
RUN python -m pytest --numprocesses auto -m "not slow and not rare" --ignore tests/faults --ignore tests/launch

FROM base AS program
COPY . /src
RUN uv pip install "/src[avatars,export,faces,metrics,video]" --constraint /src/constraints.txt && rm -rf /src
WORKDIR /work
# Caches of compiled kernels go where any user may write.
ENV HOME=/tmp
ENTRYPOINT ["pggan"]
