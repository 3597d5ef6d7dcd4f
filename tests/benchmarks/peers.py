"""Other routers to measure beside the gateway: where they are installed, and how to install them.

    python -m tests.benchmarks.peers install [NAME...] [--peers-dir .peers]
    python -m tests.benchmarks.peers list

Each Python peer has a virtual environment of its own, so that no two of them argue about versions; Portkey comes from
npm. What is not installed is left out of a benchmark and named there. The versions are those that the published
tables compare with; another one may be put into the same place by hand.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from tests.benchmarks.process import ROOT

DEFAULT_DIR = ROOT / ".peers"


@dataclass(frozen=True, slots=True)
class Peer:
    """A program to install: `requirement` as pip (or npm) takes it."""

    name: str
    requirement: str
    distribution: str
    """The name under which its version is looked up."""
    marker: str = ""
    """A file under site-packages that must be there: two projects share the name vllm-router."""
    npm: bool = False
    overrides: tuple[tuple[str, str], ...] = ()
    """npm only: versions of what it depends on."""

    def version(self, peers_dir: Path) -> str | None:
        """The installed version; None when it is not installed."""
        home = peers_dir / self.name
        if self.npm:
            manifest = home / "node_modules" / self.distribution / "package.json"
            if not manifest.is_file() or shutil.which("node") is None:
                return None
            return str(json.loads(manifest.read_text())["version"])
        for site in home.glob("lib/python3*/site-packages"):
            if self.marker and not (site / self.marker).exists():
                return None
            for found in distributions(name=self.distribution, path=[str(site)]):
                return found.version
        return None

    def install(self, peers_dir: Path) -> None:
        """Makes the peer's home anew. Raises CalledProcessError when pip or npm fails."""
        home = peers_dir / self.name
        home.mkdir(parents=True, exist_ok=True)
        # The folder hides itself from git, wherever it lies.
        (peers_dir / ".gitignore").write_text("*\n")
        if self.npm:
            shutil.rmtree(home)
            home.mkdir()
            (home / "package.json").write_text(json.dumps({"private": True, "overrides": dict(self.overrides)}))
            npm = shutil.which("npm") or "npm"
            command = [npm, "install", "--no-fund", "--no-audit", "--prefix", str(home), self.requirement]
        else:
            venv.create(home, with_pip=True, clear=True)
            command = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", self.requirement]
        subprocess.run(command, check=True)


PEERS = {
    peer.name: peer
    for peer in (
        Peer("litellm", "litellm[proxy]==1.106.12", "litellm"),
        Peer("vllm-router", "vllm-router==0.1.17", "vllm-router", marker="vllm_router/launch_router.py"),
        Peer("sglang-router", "sglang-router==0.3.2", "sglang-router"),
        Peer(
            "portkey",
            "@portkey-ai/gateway@1.15.2",
            "@portkey-ai/gateway",
            npm=True,
            # With the newest one every stream is a 500 ("immutable" headers); this is the one of its own lock file.
            overrides=(("@hono/node-server", "1.13.5"),),
        ),
        Peer(
            "production-stack",
            # Not on PyPI, where another project has its name; needs Python 3.12 and git.
            "vllm-router @ git+https://github.com/vllm-project/production-stack",
            "vllm-router",
            marker="vllm_router/app.py",
        ),
    )
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Installs or lists the routers to compare with.")
    parser.add_argument("verb", choices=["install", "list"])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PEERS)}; all when left out")
    parser.add_argument("--peers-dir", type=Path, default=DEFAULT_DIR)
    options = parser.parse_args()
    if unknown := set(options.names) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    failed = False
    for name in options.names or PEERS:
        peer = PEERS[name]
        if options.verb == "install":
            try:
                peer.install(options.peers_dir.resolve())
            except (OSError, subprocess.CalledProcessError) as error:
                failed = True
                print(f"{name}: {error}", file=sys.stderr)
        print(f"{name}: {peer.version(options.peers_dir) or 'not installed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
