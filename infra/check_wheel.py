"""Build the wheel, install it where nothing else is, and run an evaluation from there.

What this catches: a package or a data file that the wheel forgets, and a test that came along.
"""

import json
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"schemas", "bus", "predictors", "services", "mlmodelscope", "manifests", "infra"}
FILES = {
    "manifests/models/digits-cnn.yml",
    "manifests/datasets/digits.yml",
    "manifests/frameworks/onnxruntime.yml",
    "manifests/assets/digits-cnn.onnx",
}


def main() -> None:
    """Build, look inside, install, evaluate. Exits with a message when something is missing."""
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        run([sys.executable, "-m", "build", "--wheel", "--outdir", str(work), str(ROOT)], quiet=True)
        wheel = next(work.glob("*.whl"))
        look_inside(wheel)
        python = work / "env/bin/python"
        venv.create(work / "env", with_pip=True)
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        run([str(python), "-m", "pip", "install", "--quiet", *constraints, f"{wheel}[embedded,agent,onnxruntime]"])
        answer = run(
            [
                str(work / "env/bin/mlmodelscope"), "evaluate", "--local", "--model", "digits-cnn",
                "--dataset", "digits", "--framework", "onnxruntime", "--max-duration", "0.5", "--json", "--quiet",
            ],
            cwd=work,
        )  # fmt: skip
        top1 = json.loads(answer)["tasks"][0]["accuracy"]["top1"]["value"]
        if not top1 > 0.9:
            sys.exit(f"the installed wheel evaluates digits-cnn to {top1}")
        print(f"{wheel.name}: installs by itself, and evaluates digits-cnn to top-1 {top1:.4f}")


def look_inside(wheel: Path) -> None:
    """Exit unless the wheel has our packages, our data, and nothing else."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    if tops != PACKAGES:
        sys.exit(f"the wheel has {sorted(tops)}, not {sorted(PACKAGES)}")
    missing = FILES - set(names)
    if missing:
        sys.exit(f"the wheel lacks {sorted(missing)}")
    if not any(name.startswith("infra/") and name.endswith(".sql") for name in names):
        sys.exit("the wheel has no migrations")


def run(command: list[str], *, quiet: bool = False, cwd: Path | None = None) -> str:
    """Return the standard output of a command; exit with all its output when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    if done.stderr and not quiet:
        sys.stderr.write(done.stderr)
    return done.stdout


if __name__ == "__main__":
    main()
