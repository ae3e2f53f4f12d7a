#!/bin/sh
# Installs Chromium from the distribution for the browser tests, where that is possible.
for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && exit 0
done
loud() { printf '\n=== THE BROWSER TESTS WILL NOT RUN: there is no Chromium, and %s ===\n\n' "$1"; }
if ! command -v apt-get >/dev/null; then loud "no apt-get to install it with"; exit 0; fi
if [ "$(id -u)" != 0 ]; then loud "only root can install it: apt-get install chromium"; exit 0; fi
{ apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends chromium; } || loud "apt-get failed"
