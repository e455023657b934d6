"""One policy for everything that can go wrong on the command line."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from rankwise import cli
from rankwise.errors import MissingExtra, UserError

HEAVY = ("torch", "numpy", "pandas", "plotly", "transformers")


def run(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rankwise", *words], capture_output=True, text=True, **options)


@pytest.fixture
def failing_command(monkeypatch):
    """Put a command `fail` on the command line that raises what it is given."""

    def install(error: BaseException) -> None:
        def fail() -> None:
            raise error

        monkeypatch.setattr(sys.modules[__name__], "fail", fail, raising=False)
        command = cli.Command("fail", f"{__name__}:fail", "Fail.")
        monkeypatch.setattr(cli, "COMMANDS", (*cli.COMMANDS, command))

    return install


def test_help_lists_every_command_and_imports_nothing_heavy():
    program = (
        "import sys; from rankwise.cli import main; code = main(['--help']);"
        f"print(code, sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    *shown, last = done.stdout.splitlines()
    assert last == "0 []"
    for command in cli.COMMANDS:
        assert any(command.name in line and command.help.split()[0] in line for line in shown)


@pytest.mark.parametrize("command", [command.name for command in cli.COMMANDS])
def test_every_command_explains_itself_and_its_line_in_the_list(command, capsys):
    assert cli.main([command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Usage: rankwise {command}" in shown
    assert next(one.help for one in cli.COMMANDS if one.name == command) in shown


def test_version_is_the_installed_one():
    assert run("--version").stdout.strip() == version("rankwise")


@pytest.mark.parametrize("words", [["no-such-command"], ["doctor", "--no-such-option"], ["bench", "--count", "many"]])
def test_usage_errors_are_one_line_and_two(words, capsys):
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("rankwise: ")
    assert words[-1] in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        UserError("no weights in 'here':\n  give a directory that has some"),
        MissingExtra("plotly is not installed: it comes with the extra 'report'"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_two(error, failing_command, capsys):
    failing_command(error)
    assert cli.main(["fail"]) == 2
    assert capsys.readouterr().err == f"rankwise: {' '.join(str(error).split())}\n"


def test_an_untrusted_name_in_an_error_reaches_no_terminal_control(failing_command, capsys):
    failing_command(UserError("unknown tensor '\x1b[2J\x1b]0;title\x07evil\u202e'"))
    assert cli.main(["fail"]) == 2
    line = capsys.readouterr().err
    assert "evil" in line
    assert line[:-1].isprintable()


def test_a_bug_of_ours_keeps_its_traceback_and_asks_for_a_report(failing_command, capsys):
    failing_command(ZeroDivisionError("oops"))
    assert cli.main(["fail"]) == 1
    captured = capsys.readouterr().err
    assert "Traceback" in captured
    assert "ZeroDivisionError: oops" in captured
    assert captured.splitlines()[-1].startswith("rankwise: this is a bug in Rankwise: please report it")


def test_control_c_is_one_line_and_130(failing_command, capsys):
    failing_command(KeyboardInterrupt())
    assert cli.main(["fail"]) == 130
    assert capsys.readouterr().err == "rankwise: stopped\n"


@pytest.mark.parametrize("words", [["--help"], pytest.param(["doctor", "--json"], marks=pytest.mark.slow)])
def test_a_reader_that_goes_away_is_met_in_silence(words):
    command = [sys.executable, "-m", "rankwise", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 141


def test_a_command_decides_its_own_exit_code(monkeypatch):
    module = sys.modules[__name__]
    for verdict, expected in ((None, 0), (0, 0), (1, 1)):
        monkeypatch.setattr(module, "decide", lambda verdict=verdict: verdict, raising=False)
        monkeypatch.setattr(cli, "COMMANDS", (cli.Command("decide", f"{__name__}:decide", "Decide."),))
        assert cli.main(["decide"]) == expected
