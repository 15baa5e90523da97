#!/bin/sh
# prepare_instance.sh v1 CATEGORY NETWORK PROPERTY: fails if an instance is not to be run, as a file is missing.
[ "$1" = v1 ] || { echo "expected version v1, got '$1'"; exit 1; }
exec gradspec verify "$3" "$4" --timeout 0
