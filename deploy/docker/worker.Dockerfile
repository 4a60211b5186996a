# The image meshtrain-worker. scripts/images builds, tags and saves it; by hand, from the repository's root:
#   docker build -f deploy/docker/worker.Dockerfile -t meshtrain-worker:TAG .
# The build stage is Debian 12 with the packages that scripts/install-packages names; the image holds the program, the
# libraries that it loads and nothing to run beside it.
FROM debian:12 AS build
COPY scripts/install-packages scripts/common.sh /src/scripts/
RUN /src/scripts/install-packages && rm -rf /var/lib/apt/lists/*
COPY . /src
WORKDIR /src
RUN cmake --preset release && cmake --build --preset release --target meshtrain-worker
RUN scripts/image-root /image build/release/bin/meshtrain-worker && chown 65532:65532 /image/work

FROM scratch
COPY --from=build /image /
LABEL org.opencontainers.image.title=meshtrain-worker org.opencontainers.image.licenses=Apache-2.0
ENV PATH=/usr/bin HOME=/work
USER 65532:65532
WORKDIR /work
ENTRYPOINT ["/usr/bin/meshtrain-worker"]
