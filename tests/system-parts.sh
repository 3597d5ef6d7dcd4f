#!/bin/sh
# Installs the programs that some tests use and Python packages do not bring: a browser for the status page, Prometheus
# with promtool for the rules, Node.js for the JavaScript clients, curl, venv. On Debian as root it installs what is
# missing; elsewhere it says what is missing, and the tests that need it are skipped with that reason.
set -eu
missing=""
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need curl curl
need node nodejs
need npm npm
need chromium chromium
need promtool prometheus
need openssl openssl
need nginx nginx-light
python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
else
  echo "missing, tests that need it are skipped:$missing" >&2
fi
