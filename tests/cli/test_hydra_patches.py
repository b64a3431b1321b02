"""The changes to Hydra: no code from a configuration, help on Python 3.14."""

import argparse
import sys

import pytest

from pggan.cli.main import main


def test_hydra_flags_survive_the_help_check_of_newer_argparse(monkeypatch, capsys):
    """Python 3.14's argparse formats every help text when it is added; this does what it does."""

    def check_help(self, action):
        if action.help and hasattr(self, "_get_formatter"):
            try:
                "%" in action.help  # noqa: B015 - raises TypeError for Hydra's lazy object
            except TypeError as error:
                raise ValueError("badly formed help string") from error

    add = argparse.ArgumentParser._add_action

    def checking_add(self, action):
        self._check_help(action)
        return add(self, action)

    monkeypatch.setattr(argparse._ActionsContainer, "_check_help", check_help, raising=False)
    monkeypatch.setattr(argparse.ArgumentParser, "_add_action", checking_add)
    monkeypatch.setattr(sys, "argv", ["pggan"])
    from hydra._internal.utils import get_args_parser

    with pytest.raises(ValueError, match="badly formed help string"):
        get_args_parser()
    assert main(["train", "--cfg", "job"]) == 0
    assert "seed: 0" in capsys.readouterr().out


def test_a_configuration_that_names_code_to_call_is_refused(tmp_path, capsys):
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "called.py").write_text(
        f"import pathlib\nclass Call:\n    def __init__(self): pathlib.Path({str(tmp_path / 'trace')!r}).touch()\n"
    )
    file = tmp_path / "own" / "experiment" / "mine.yaml"
    file.write_text("# @package _global_\nhydra:\n  callbacks:\n    mine:\n      _target_: called.Call\n")
    sys.path.insert(0, str(tmp_path))
    try:
        assert main(["train", "-cd", str(tmp_path / "own"), "experiment=mine", "data.path=nowhere"]) == 2
    finally:
        sys.path.remove(str(tmp_path))
    assert "hydra.callbacks" in capsys.readouterr().err
    assert not (tmp_path / "trace").exists()
