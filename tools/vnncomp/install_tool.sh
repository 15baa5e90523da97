#!/bin/sh
# install_tool.sh v1: installs gradspec for the Python that `python3` is, from the folder that holds these scripts.
[ "$1" = v1 ] || { echo "expected version v1, got '$1'"; exit 1; }
exec python3 -m pip install "$(dirname "$0")/../.."
