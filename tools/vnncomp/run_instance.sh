#!/bin/sh
# run_instance.sh v1 CATEGORY NETWORK PROPERTY RESULTS SECONDS: writes sat, unsat, unknown or error to RESULTS.
[ "$1" = v1 ] || { echo "expected version v1, got '$1'"; exit 1; }
rm -f "$5"
gradspec verify "$3" "$4" --timeout "$6" --output "$5"
[ -s "$5" ] || echo error > "$5"
