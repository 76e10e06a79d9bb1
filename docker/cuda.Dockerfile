# The toolkit with LibTorch's CUDA libraries. Needs an NVIDIA driver and the NVIDIA container toolkit only to run:
#   docker build -f docker/cuda.Dockerfile -t libqat-cuda .
#   docker run --rm --gpus all libqat-cuda ctest --preset cuda
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04

COPY scripts/setup.sh /libqat/scripts/setup.sh
RUN /libqat/scripts/setup.sh

WORKDIR /libqat
COPY . .
RUN cmake --preset cuda && cmake --build --preset cuda
