#!/bin/bash
# Install those of the Debian packages named that are missing. Without root it only says which are.
set -euo pipefail

missing=()
for package in "$@"; do
    state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "the tests need these packages, which only root can install: ${missing[*]}" >&2
    exit 1
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The tests run the programs of a package, never its service.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$log" "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update && apt-get install --yes --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    exit 1
fi
for package in "${missing[@]}"; do
    # Nor is it to come up at the next boot.
    [ "$package" != prometheus ] || systemctl disable --quiet prometheus.service
done
