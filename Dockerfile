# The device is given to the container: docker run --device /dev/nvme1n1 -e RAWBLOCKD_DEVICE=/dev/nvme1n1 …
# (with --group-add for the device's group), or a volume is mounted at /var/lib/rawblockd for a file.
# io_uring is not in Docker's default seccomp profile: without it the thread engine serves.

FROM python:3.11-slim-bookworm AS build
WORKDIR /build
RUN python -m venv /opt/rawblockd
COPY requirements.lock ./
RUN /opt/rawblockd/bin/pip install --no-cache-dir --quiet --constraint requirements.lock hatchling
COPY pyproject.toml LICENSE ./
COPY rawblockd rawblockd
COPY api api
COPY storage storage
COPY metrics metrics
RUN /opt/rawblockd/bin/pip wheel --no-cache-dir --quiet --no-deps --no-build-isolation --wheel-dir /wheel . \
    && python -m venv --clear /opt/rawblockd \
    && /opt/rawblockd/bin/pip install --no-cache-dir --quiet --constraint requirements.lock /wheel/*.whl

FROM python:3.11-slim-bookworm
# blkid's library knows foreign signatures; it is part of the base image, but the cache relies on it.
RUN apt-get update && apt-get install --yes --no-install-recommends libblkid1 && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 8790 --home-dir /var/lib/rawblockd --create-home rawblockd
COPY --from=build /opt/rawblockd /opt/rawblockd
ENV PATH=/opt/rawblockd/bin:$PATH PYTHONUNBUFFERED=1 RAWBLOCKD_HOST=0.0.0.0 RAWBLOCKD_LOG_FORMAT=json
USER rawblockd
VOLUME /var/lib/rawblockd
EXPOSE 8790
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 CMD ["rawblockd", "health"]
ENTRYPOINT ["rawblockd"]
CMD ["serve"]
