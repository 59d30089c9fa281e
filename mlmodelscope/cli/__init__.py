"""The command line `mlmodelscope`: one file a command, each importing what it needs when it runs."""

import signal
import sys
from typing import NoReturn

import typer
from pydantic import ValidationError

from mlmodelscope.cli import agent, catalogue, demo, evaluate, evaluations, predictors, schema, serve, sql, up
from mlmodelscope.cli.exit_codes import CANNOT_REACH, FAILED, INTERRUPTED, USAGE
from mlmodelscope.cli.output import complain
from mlmodelscope.errors import RequestRefusedError, ScopeError, ServerUnreachableError
from schemas.errors import SchemaError

app = typer.Typer(
    name="mlmodelscope",
    help="Evaluate, benchmark and profile machine-learning models repeatably, across frameworks and hardware.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
up.add(app)
serve.add(app)
agent.add(app)
evaluate.add(app)
evaluations.add(app)
catalogue.add(app)
predictors.add(app)
sql.add(app)
schema.add(app)
demo.add(app)


def main() -> None:
    """Run the command line. Every expected error is one clear message on stderr and an exit code."""
    # The argument parser would turn KeyboardInterrupt into exit code 1; SystemExit it leaves alone.
    signal.signal(signal.SIGINT, lambda number, frame: sys.exit(INTERRUPTED))
    try:
        app()
    except ServerUnreachableError as error:
        fail(CANNOT_REACH, error.message, error.hint, error.code)
    except RequestRefusedError as error:
        fail(USAGE, error.message, error.hint, error.code)
    except ScopeError as error:
        fail(FAILED, error.message, error.hint, error.code)
    except (SchemaError, ValidationError) as error:
        fail(USAGE, str(error))
    except Exception as error:
        # A service's own errors are defined in packages that only its command imports.
        code = {"bus.errors": CANNOT_REACH, "services.errors": FAILED, "predictors.errors": FAILED}.get(
            type(error).__module__
        )
        if code is None:
            raise  # a defect: its traceback is what its reporter needs
        fail(code, str(error), str(getattr(error, "hint", "")))


def fail(exit_code: int, message: str, hint: str = "", code: str = "") -> NoReturn:
    """Complain and leave."""
    complain(message, hint, code)
    sys.exit(exit_code)
