"""Run every benchmark, or those named: `python -m benchmarks ingest idle_memory`."""

import importlib
import sys

BENCHMARKS = (
    "predict_overhead",
    "evaluation_latency",
    "load_generator",
    "input_pipeline",
    "ingest",
    "list_evaluations",
    "idle_memory",
)


def main() -> None:
    """Run what the command line names. Exits with 1 when a benchmark could not be run."""
    failed = []
    for name in sys.argv[1:] or BENCHMARKS:
        if name not in BENCHMARKS:
            sys.exit(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"\n== {name}: {(module.__doc__ or '').strip().splitlines()[0]}", flush=True)
        try:
            module.main()
        except Exception as error:  # noqa: BLE001 - the other benchmarks still have something to say
            failed.append(name)
            print(f"{name} could not be run: {type(error).__name__}: {error}", flush=True)
    if failed:
        sys.exit(f"not run: {', '.join(failed)}")


if __name__ == "__main__":
    main()
