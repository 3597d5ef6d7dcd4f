"""deploy/g4/mig.sh, with a stand-in for nvidia-smi."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

G4 = Path(__file__).resolve().parents[2] / "deploy/g4"
CARD = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def slices(card: int, count: int, profile: str = "1g.24gb") -> str:
    return "".join(
        f"  MIG {profile}     Device  {n}: (UUID: MIG-{card}aaaaaaa-0000-5000-8000-00000000000{n})\n"
        for n in range(count)
    )


def run_script(folder: Path, mode: str, listing: str, *words: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """The script's end, and how it called nvidia-smi."""
    calls = folder / "calls"
    (folder / "listing").write_text(listing, "utf-8")
    stand_in = folder / "nvidia-smi"
    stand_in.write_text(
        f"""#!/bin/sh
echo "$@" >> {calls}
case "$*" in
  -L) cat {folder}/listing ;;
  "-i 7 "*) exit 6 ;;
  *--query-gpu=name,mig.mode.current*) echo "{CARD}, {mode}" ;;
  *) exit 9 ;;
esac
""",
        "utf-8",
    )
    stand_in.chmod(0o755)
    done = subprocess.run(
        ["sh", str(G4 / "mig.sh"), *words],
        env={"PATH": f"{folder}:/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done, calls.read_text("utf-8") if calls.exists() else ""


def env_lines(text: str) -> list[str]:
    return [line.split("#")[0].strip() for line in text.splitlines() if line.startswith("G4_SLICE_")]


def test_without_mig_it_prints_the_set_up(tmp_path: Path) -> None:
    """With MIG off it prints the two commands that cut the card, and no device id."""
    done, _ = run_script(tmp_path, "Disabled", f"GPU 0: {CARD} (UUID: GPU-1)\n")

    assert done.returncode == 0
    assert "sudo nvidia-smi -i 0 -mig 1" in done.stdout
    assert "sudo nvidia-smi mig -i 0 -cgi 1g.24gb,1g.24gb,1g.24gb,1g.24gb -C" in done.stdout
    assert env_lines(done.stdout) == []


def test_with_slices_it_prints_their_ids(tmp_path: Path) -> None:
    """With four slices it prints four lines for .env, of the card that was asked for alone."""
    listing = f"GPU 0: {CARD} (UUID: GPU-1)\n{slices(0, 4)}GPU 1: {CARD} (UUID: GPU-2)\n{slices(1, 4)}"
    done, _ = run_script(tmp_path, "Enabled", listing, "1")

    assert env_lines(done.stdout) == [f"G4_SLICE_{n}=MIG-1aaaaaaa-0000-5000-8000-00000000000{n}" for n in range(4)]
    assert "-mig 1" not in done.stdout
    assert "there are" not in done.stdout


def test_it_says_when_slices_are_missing(tmp_path: Path) -> None:
    """Two halves are not four quarters: the ids are printed, and that the profile wants others."""
    done, _ = run_script(tmp_path, "Enabled", f"GPU 0: {CARD} (UUID: GPU-1)\n{slices(0, 2, '2g.48gb')}")

    assert len(env_lines(done.stdout)) == 2
    assert "there are 0" in done.stdout


@pytest.mark.parametrize("mode", ["Disabled", "Enabled", "[N/A]"])
def test_it_changes_nothing(mode: str, tmp_path: Path) -> None:
    """Whatever the state of the card, nvidia-smi is asked and never told."""
    _, calls = run_script(tmp_path, mode, f"GPU 0: {CARD} (UUID: GPU-1)\n{slices(0, 4)}")

    assert sorted(calls.splitlines()) == ["-L", "-i 0 --query-gpu=name,mig.mode.current --format=csv,noheader"]


@pytest.mark.parametrize(("words", "code"), [(["all"], 2), ([""], 2), (["7"], 1)])
def test_a_wrong_card_is_told(words: list[str], code: int, tmp_path: Path) -> None:
    """A card that is no number, or is not there, ends with a sentence and no set-up commands."""
    done, _ = run_script(tmp_path, "Enabled", "", *words)

    assert done.returncode == code
    assert done.stderr
    assert done.stdout == ""


def test_without_a_driver_it_says_where_to_run(tmp_path: Path) -> None:
    """On a machine without nvidia-smi it says so."""
    shell = shutil.which("sh") or "/bin/sh"
    done = subprocess.run(
        [shell, str(G4 / "mig.sh")], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert "nvidia-smi is not here" in done.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck here")
def test_the_scripts_are_clean() -> None:
    """shellcheck has nothing to say to any script under deploy."""
    scripts = sorted(map(str, G4.parent.rglob("*.sh")))
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")
