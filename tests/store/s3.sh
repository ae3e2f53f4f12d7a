#!/bin/sh
# Tests against an S3 server on this machine: moto's server, with s3fs as the client.
# Their pins clash with those of the main environment, so they go into one of their own on top of it: .venv-s3.
set -e
cd "$(dirname "$0")/../.."
BASE=${BASE:-.venv}
S3=${S3:-.venv-s3}
if [ ! -f "$S3/.installed" ]; then
    "$BASE/bin/python" -m venv --without-pip "$S3"
    site=$("$S3/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$BASE/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/base.pth"
    "$BASE/bin/python" -m pip --python "$S3/bin/python" install --quiet 's3fs>=2025.2' 'moto[server]>=5.1'
    touch "$S3/.installed"
fi
exec "$S3/bin/python" -m pytest -n 0 tests/store/test_s3.py "$@"
