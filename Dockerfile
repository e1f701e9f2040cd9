# kvrelay as an image: one static file, the authorities that sign public
# certificates, and nothing else – no shell, no package, no user database.
#
#   docker build --build-arg VERSION=v0.1.0 -t registry.example/kvrelay:v0.1.0 .
#   docker buildx build --platform linux/amd64,linux/arm64 …    for both at once
#
# Go's compiler runs on the machine that builds and compiles for the other one.
# The release of it is the one that go.mod's toolchain line names.
FROM --platform=$BUILDPLATFORM golang:1.26.11 AS build
WORKDIR /src
# Dependencies first: they change less often than the code.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS
ARG TARGETARCH
# The version that `kvrelay version` tells comes from git's tag: .git is part of
# what is copied, and .dockerignore leaves out nothing that git knows of.
RUN CGO_ENABLED=0 GOFLAGS=-buildvcs=auto GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -tags grpcnotrace -trimpath -ldflags '-s -w -buildid=' -o /kvrelay ./cmd/kvrelay

FROM scratch
ARG VERSION=unreleased
LABEL org.opencontainers.image.title="kvrelay" \
      org.opencontainers.image.description="KV-cache events of LLM engines to KV-aware routers, over NATS" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /kvrelay /kvrelay
# By number, so that Kubernetes can see that it is not root.
USER 65532:65532
ENTRYPOINT ["/kvrelay"]
