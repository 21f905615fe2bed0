# rawblockd in a container: how to run it, with a volume or with a device, is in docs/deployment.md.

FROM python:3.11-slim-bookworm AS build
WORKDIR /build
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv tools \
    && tools/bin/pip install --quiet --constraint requirements.lock hatchling \
    && tools/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir wheel .
# What is served from has no pip: the one of the tools installs there.
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv --without-pip /opt/rawblockd \
    && tools/bin/pip --python /opt/rawblockd/bin/python install --quiet --constraint requirements.lock wheel/*.whl

FROM python:3.11-slim-bookworm
# libblkid knows foreign content, so that it is refused; the base image has it, and a build without it must fail.
RUN useradd --system --uid 8790 --user-group --home-dir /var/lib/rawblockd --create-home rawblockd \
    && python -c "import ctypes; ctypes.CDLL('libblkid.so.1')"
COPY --from=build /opt/rawblockd /opt/rawblockd
# A file on the volume, unless RAWBLOCKD_DEVICE names a device that the container was given; devices are never formatted
# on the way. 0.0.0.0 is refused as long as there is no RAWBLOCKD_TOKEN_FILE, unless RAWBLOCKD_ALLOW_OPEN_ACCESS=true
# says that only trusted machines can reach the port.
ENV PATH=/opt/rawblockd/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RAWBLOCKD_DEVICE=/var/lib/rawblockd/cache \
    RAWBLOCKD_CREATE=true \
    RAWBLOCKD_SIZE=1GiB \
    RAWBLOCKD_HOST=0.0.0.0 \
    RAWBLOCKD_LOG_FORMAT=json
USER 8790:8790
VOLUME /var/lib/rawblockd
EXPOSE 8790
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 CMD ["rawblockd", "health"]
ENTRYPOINT ["rawblockd"]
CMD ["serve"]
