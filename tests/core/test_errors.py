"""Errors of users: problem and remedy, and the name that was meant."""

from pggan.core.errors import UserError, nearest


def test_an_error_shows_the_problem_and_the_remedy():
    error = UserError("There is no key 'sead'.", "Did you mean 'seed'?")
    assert str(error) == "There is no key 'sead'.\n  Did you mean 'seed'?"
    assert (error.problem, error.remedy) == error.args


def test_the_nearest_name_is_meant():
    assert nearest("sead", ["seed", "devices", "name"]) == "Did you mean 'seed'?"
    assert nearest("schedule.bach", ["schedule.batch", "schedule.batch_factor"]) == "Did you mean 'schedule.batch'?"
    assert (
        nearest("trunc", ["run", "truncation"]) == "Did you mean 'truncation'?"
    )  # begun, though 'run' is more like it


def test_all_names_are_listed_when_none_is_near():
    assert nearest("xyz", ["wgan_gp", "logistic"]) == "Valid names: logistic, wgan_gp."
