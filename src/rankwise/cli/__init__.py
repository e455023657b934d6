"""The command line: one thin file per command, and one policy for everything that can go wrong.

Exit codes: 0 done; 1 a command's own verdict, or a bug of ours; 2 something given cannot be used; 130 stopped by the
user; 141 whoever read the output went away.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from cyclopts import App, CycloptsError, Parameter

from rankwise.errors import RankwiseError
from rankwise.text import printable

LONGEST_MESSAGE = 2000
READER_GONE = 141
# A disk that is full, or that takes no more from this user.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NEWS = "this is a bug in Rankwise: please report it, with the lines above and what `rankwise doctor` says"


@dataclass(frozen=True)
class Command:
    """One command: where its function lives, imported only when it is called, and its line in `rankwise --help`."""

    name: str
    function: str
    help: str


COMMANDS = (
    Command("scan", "rankwise.cli.scan:scan", "Read every weight product of a checkpoint."),
    Command("diff", "rankwise.cli.diff:diff", "Compare two checkpoints, product by product."),
    Command("extract-lora", "rankwise.cli.extract:extract_lora", "Write a fine-tune as a PEFT adapter."),
    Command("demo", "rankwise.cli.demo:demo", "Scan a small pretrained transformer and open its page."),
    Command(
        "certify",
        "rankwise.cli.certify:certify",
        "Prove that attention is read with the right layouts, on small random models of transformers' types.",
    ),
    Command("theory", "rankwise.cli.theory:theory", "Predict how training raises rank, and draw the papers' figures."),
    Command("bench", "rankwise.cli.bench:bench", "Measure the speed and the errors of spectra on this machine."),
    Command("doctor", "rankwise.cli.doctor:doctor", "Say what is installed here and what it enables."),
)


def build_app(words: Sequence[str] = ()) -> App:
    """The command line as an application; building it imports no command, and so no torch.

    Arguments:
        words: what it will be called with. The command that they name explains itself in full; of the others the list
            of commands shows a line.
    """
    named = next(iter(words), None)
    app = App(
        name="rankwise",
        help="See, steer and explain the rank of every weight product inside a neural network.",
        version=lambda: version("rankwise"),
        help_format="markdown",
        # A switch is off unless named: `--json` needs no `--no-json` beside it, nor that it is off by default.
        default_parameter=Parameter(negative=(), show_default=_shown_default),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for position, command in enumerate(COMMANDS):
        help_line = None if command.name == named else command.help
        app.command(command.function, name=command.name, help=help_line, sort_key=position)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what a user can mend is one line on stderr, never a traceback.

    Arguments:
        arguments: the words after `rankwise`, those of the process by default.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    # What torch says where numpy is not installed; nothing here needs it.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    try:
        code = build_app(words)(words, exit_on_error=False, print_error=False)
        # A reader that has gone away is noticed when the buffer is written: do that here and not at exit.
        sys.stdout.flush()
    except CycloptsError as error:
        return _complain(f"{_one_line(error)} (see rankwise --help)", code=2)
    except RankwiseError as error:
        return _complain(_one_line(error), code=2)
    except KeyboardInterrupt:
        return _complain("stopped", code=130)
    except BrokenPipeError:
        _abandon_stdout()
        return READER_GONE
    except SystemExit as stop:
        # So rich ends the process when it writes to a reader that has gone away.
        if isinstance(stop.__context__, BrokenPipeError):
            return READER_GONE
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            _abandon_stdout()
            return _complain(f"cannot write the output: {error.strerror}", code=2)
        traceback.print_exc()
        return _complain(NEWS, code=1)
    return code if isinstance(code, int) else 0


def _abandon_stdout() -> None:
    """Let what is left in the buffer go nowhere: Python flushes stdout once more at exit, and would complain then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shown_default(value: object) -> str | None:
    """A default as the help shows it: not where it is off or empty."""
    return None if value in (None, False, (), "") else str(value)


def _one_line(error: Exception) -> str:
    # The text may quote a name out of a file: nothing in it may reach the terminal's controls or break the line.
    return printable(" ".join(str(error).split()), limit=LONGEST_MESSAGE)


def _complain(text: str, *, code: int) -> int:
    print(f"rankwise: {text}", file=sys.stderr)
    return code
