#!/bin/sh
# Types and tests of the explorer's script. Without node the script that is committed is used as it is.
cd "$(dirname "$0")" || exit 1
loud() { printf '\n=== THE TESTS OF THE EXPLORER SCRIPT DID NOT RUN: %s ===\n\n' "$1"; }
if ! command -v npm >/dev/null; then loud "there is no node"; exit 0; fi
if [ ! -e node_modules/.package-lock.json ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
    npm ci --silent || { loud "npm ci failed"; exit 0; }
fi
npm run --silent types && npm test --silent
