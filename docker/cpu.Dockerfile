# The toolkit on a CPU, built and tested. From the root of the repository:
#   docker build -f docker/cpu.Dockerfile -t libqat .
#   docker run --rm -v "$PWD/out:/out" libqat build/release/bin/qat-train --data fashion-mnist --out /out
FROM debian:12

# The slow part first: it changes only with setup.sh.
COPY scripts/setup.sh /libqat/scripts/setup.sh
RUN /libqat/scripts/setup.sh

WORKDIR /libqat
COPY . .
RUN scripts/check.sh
