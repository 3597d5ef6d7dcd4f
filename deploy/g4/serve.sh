#!/bin/sh
# The vLLM of one slice: plain on the first slices, MTP on the others. In the container of one slice:
#   SLICE   0 to 3
#   SPLIT   how many slices are plain and how many draft: 1-3, 2-2 or 3-1
# What it runs is in plain.sh and mtp.sh, which `gateway recipe` printed; print others for another model:
#   gateway recipe E4B --slice 1g.24gb --plain > deploy/g4/plain.sh
#   gateway recipe E4B --slice 1g.24gb > deploy/g4/mtp.sh
set -eu
case ${SPLIT:=2-2} in
  1-3 | 2-2 | 3-1) ;;
  *) echo "SPLIT is '$SPLIT', but must be 1-3, 2-2 or 3-1" >&2; exit 2 ;;
esac
case ${SLICE:?} in
  [0-3]) ;;
  *) echo "SLICE is '$SLICE', but must be 0, 1, 2 or 3" >&2; exit 2 ;;
esac
if [ "$SLICE" -lt "${SPLIT%-*}" ]; then kind=plain; else kind=mtp; fi
echo "slice $SLICE of split $SPLIT: $kind" >&2
exec sh "$(dirname "$0")/$kind.sh"
