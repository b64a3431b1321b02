"""Each alarm by numbers that raise it, and by those of a run that goes well."""

import json
import math
import shlex
import shutil
from functools import partial
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pggan.augmentation.ada import MAX_P
from pggan.cli.main import main
from pggan.cli.recipe_file import Difference, write_recipe
from pggan.losses.base import Loss
from pggan.run.alarms import CLEAR_TICKS, RULES, WAY_BACK, Alarms, way_back
from tests.losses.critics import LOGISTIC, RELATIVISTIC, WGAN_GP

# Ticks of the recipe avatars_32 from 14,000 to 47,000 images: scores of reals and fakes, D's largest gradient, its mean
# sign of reals, and the diversity of fakes where there was a grid.
HEALTHY = [
    (0.08, -0.07, 0.61, 0.23, None),
    (0.21, -0.20, 1.78, 0.34, None),
    (0.31, -0.30, 2.75, 0.44, 0.80),
    (0.45, -0.42, 4.21, 0.53, None),
    (0.45, -0.47, 4.63, 0.53, None),
    (0.56, -0.48, 4.00, 0.52, None),
    (0.81, -0.78, 4.44, 0.57, None),
    (0.48, -0.49, 8.79, 0.45, 0.96),
    (0.74, -0.68, 3.85, 0.56, None),
    (0.53, -0.54, 3.87, 0.56, None),
    (0.73, -0.72, 8.12, 0.56, None),
    (0.57, -0.55, 5.19, 0.56, None),
]


def tick(**changes: float) -> dict[str, float]:
    """The numbers of one tick that goes well, with some `changes` (`D_skipped` for D/skipped)."""
    numbers = {"scores/reals": 0.3, "scores/fakes": -0.3, "D/gradient_norm_max": 2.0, "G/gradient_norm_max": 3.0}
    numbers |= {"D/skipped": 0.0, "G/skipped": 0.0, "health/reals_sign": 0.5, "health/diversity": 0.7}
    return numbers | {name.replace("_", "/", 1): value for name, value in changes.items()}


def new_alarms(loss: Loss) -> Alarms:
    """The alarms of a run that keeps no checkpoint."""
    return Alarms(loss, partial(way_back, Path("nowhere"), 160, begins_from_weights=False))


def raised(alarms: Alarms, ticks: list[dict[str, float]], resolution: int = 32) -> list[list[str]]:
    """The names of the alarms that hold at each tick."""
    found = []
    for numbers in ticks:
        scalars, _ = alarms.at_tick(resolution, numbers.get("rate", 0.01), numbers)
        assert scalars["health/alarms"] == sum(scalars[f"alarms/{name}"] for name in RULES)
        found.append([name for name in RULES if scalars[f"alarms/{name}"]])
    return found


def test_a_run_that_goes_well_is_silent():
    alarms = new_alarms(LOGISTIC)
    for reals, fakes, peak, sign, diversity in HEALTHY:
        numbers = {"scores/reals": reals, "scores/fakes": fakes, "D/gradient_norm_max": peak, "health/reals_sign": sign}
        numbers |= {} if diversity is None else {"health/diversity": diversity}
        scalars, texts = alarms.at_tick(32, 0.01, numbers)
        assert (sum(scalars.values()), texts) == (0, [])


@pytest.mark.parametrize(
    ("name", "loss", "changes", "ticks"),
    [
        ("gradient_spike", LOGISTIC, {"D_gradient_norm_max": 500.0}, 1),
        ("no_gradient", LOGISTIC, {"G_gradient_norm_max": 0.0}, 3),
        ("skipped_updates", LOGISTIC, {"G_skipped": 3.0}, 1),
        ("score_gap", LOGISTIC, {"scores_reals": 6.0, "scores_fakes": -5.0}, 3),
        ("score_gap", LOGISTIC, {"scores_reals": -2e6, "scores_fakes": 1e8}, 3),
        ("score_gap", RELATIVISTIC, {"scores_reals": 6.0, "scores_fakes": -5.0}, 3),
        ("score_gap", WGAN_GP, {"scores_reals": 40.0, "scores_fakes": 0.0}, 3),
        ("score_gap", WGAN_GP, {"scores_reals": -40.0, "scores_fakes": 40.0}, 3),
        ("mode_collapse", WGAN_GP, {"health_diversity": 0.05}, 2),
        ("augmentation", RELATIVISTIC, {"augment_p": MAX_P}, 5),
    ],
)
def test_each_alarm_is_raised_when_its_numbers_have_held_long_enough_and_says_so_once(name, loss, changes, ticks):
    alarms, texts = new_alarms(loss), []
    assert raised(alarms, [tick()] * 6) == [[]] * 6
    for number in range(1, ticks + 3):
        scalars, new = alarms.at_tick(32, 0.01, tick(**changes))
        # A spike is one in comparison with what was usual, which the first spikes do not change.
        assert scalars[f"alarms/{name}"] == (number >= ticks), number
        texts += new
    (text,) = texts
    assert text.endswith(f". {RULES[name].remedy}.".replace(WAY_BACK, "Begin again"))
    assert raised(alarms, [tick()] * 2)[-1] == []


def test_d_that_knows_nearly_all_reals_for_ten_ticks_is_an_alarm_of_the_logistic_loss():
    """The mean of the last ten has to lie above 0.8: after nine of 0.87 beside one of 0.5 it does, with 0.833."""
    alarms = new_alarms(LOGISTIC)
    found = raised(alarms, [tick(), *[tick(health_reals_sign=0.87)] * 12])
    assert [bool(names) for names in found] == [False] * 11 + [True, True]
    _, texts = new_alarms(LOGISTIC).at_tick(32, 0.01, tick(health_reals_sign=1.0))
    assert texts == []


def test_of_the_relativistic_loss_d_may_tell_more_reals_from_fakes_before_it_is_an_alarm():
    """Normal scores with 90 % of the reals above 0 have 96.5 % of them above a fake, a mean sign of 0.93."""
    alarms = new_alarms(RELATIVISTIC)
    assert not any(raised(alarms, [tick(health_reals_sign=0.92)] * 20))
    texts = [text for _ in range(20) for text in alarms.at_tick(32, 0.01, tick(health_reals_sign=0.96))[1]]
    assert [text.split(". ")[0] for text in texts] == ["D scores 97% of the reals above a fake"]


def test_while_learning_rates_fall_d_may_know_nearly_all_reals():
    rising, falling = [0.1 * step for step in range(1, 11)], [1 - 0.05 * step for step in range(1, 21)]
    ticks = [tick(health_reals_sign=0.6, rate=rate) for rate in [*rising, *[1.0] * 20]]
    ticks += [tick(health_reals_sign=0.95, rate=rate) for rate in falling]
    assert not any(raised(new_alarms(LOGISTIC), ticks))
    constant = [tick(health_reals_sign=0.95, rate=rate) for rate in [*rising, *[1.0] * 20]]
    assert raised(new_alarms(LOGISTIC), constant)[-1] == ["overfitting"]
    alarms = new_alarms(LOGISTIC)
    raised(alarms, constant, 16)
    lower = [tick(health_reals_sign=0.95, rate=0.5)] * 12  # that of another resolution
    assert raised(alarms, lower, 32)[-1] == ["overfitting"]


def test_an_alarm_is_said_again_only_when_it_had_been_gone_for_a_while():
    alarms = new_alarms(LOGISTIC)

    def said(numbers: dict[str, float]) -> bool:
        return bool(alarms.at_tick(32, 0.01, numbers)[1])

    skipped = tick(D_skipped=1.0)
    assert [said(skipped), said(skipped)] == [True, False]
    assert [said(tick()) for _ in range(CLEAR_TICKS - 1)] == [False] * (CLEAR_TICKS - 1)
    assert not said(skipped)
    assert [said(tick()) for _ in range(CLEAR_TICKS)] == [False] * CLEAR_TICKS
    assert said(skipped)


TAGS = ["D/gradient_norm_max", "G/gradient_norm_max", "G/skipped", "scores/reals", "scores/fakes"]
TAGS += ["health/reals_sign", "health/diversity", "augment/p"]


@given(st.lists(st.dictionaries(st.sampled_from(TAGS), st.sampled_from([0.0, -0.0, 1.0, -1e30, math.inf, math.nan]))))
def test_no_numbers_of_a_run_make_alarms_fail(ticks):
    """Least of all those of a run that goes wrong, which alarms are for."""
    for loss in (LOGISTIC, WGAN_GP, RELATIVISTIC):
        alarms = new_alarms(loss)
        for scalars in ticks:
            alarms.at_tick(32, 0.01, scalars)


def test_where_augmentation_is_adapted_already_it_is_no_remedy():
    knows = [tick(health_reals_sign=0.95, augment_p=0.2)] * 12
    alarms = new_alarms(LOGISTIC)
    texts = [text for scalars in knows for text in alarms.at_tick(32, 0.01, scalars)[1]]
    assert [text.endswith(f". {RULES['overfitting'].with_ada}.") for text in texts] == [True]


def test_the_text_has_the_numbers():
    alarms = new_alarms(LOGISTIC)
    alarms.at_tick(32, 0.01, tick())
    _, texts = alarms.at_tick(32, 0.01, tick(D_gradient_norm_max=2000.0, G_skipped=2.0, D_skipped=1.0))
    assert texts[0].startswith("D/gradient_norm_max is 2e+03, 1,000 times what it was lately. A single one")
    assert texts[1].startswith("Skipped 2 updates of G and 1 updates of D: their gradients were NaN or infinite. This")


def test_a_gradient_is_compared_with_the_median_of_what_came_before_it():
    """Not with itself, nor with one that was not finite."""
    alarms = new_alarms(LOGISTIC)
    peaks = [2.0, 1.0, 1.0, 9.0, 100.0, 550.0, math.inf, 2.0, 250.0]
    found = raised(alarms, [{"D/gradient_norm_max": peak} for peak in peaks])
    # The medians are 2, 1.5, 1, 1.5, 2, 5.5, 5.5, 2: a hundred times that is no alarm.
    assert [bool(names) for names in found] == [False, False, False, False, False, True, True, False, True]
    assert raised(new_alarms(LOGISTIC), [{"D/gradient_norm_max": 1e12}] * 20) == [[]] * 20


def test_after_a_rollback_nothing_of_the_discarded_stretch_is_compared_or_counted():
    """Neither what was usual there (a gap of 0.6, a peak of 3), nor how long an alarm held, nor that it was said."""
    alarms, discarded = new_alarms(WGAN_GP), [tick()] * 6 + [tick(health_diversity=0.05, augment_p=MAX_P)] * 4
    assert raised(alarms, discarded)[-1] == ["mode_collapse"]
    alarms.restart(64)
    large = tick(scores_reals=40.0, G_gradient_norm_max=1e6, health_diversity=0.05, augment_p=MAX_P)
    assert raised(alarms, [large]) == [[]]
    scalars, texts = alarms.at_tick(32, 0.01, large)
    assert scalars["alarms/mode_collapse"] == 1
    assert [text.startswith("Fakes differ from their nearest neighbours by 5%") for text in texts] == [True]
    assert raised(alarms, [large] * 3)[-1] == ["mode_collapse", "augmentation"]


def test_scores_of_another_resolution_are_not_compared():
    alarms = new_alarms(WGAN_GP)
    assert raised(alarms, [tick()] * 6, 16) == [[]] * 6
    apart = tick(scores_reals=40.0)
    assert raised(alarms, [apart] * 4, 32) == [[]] * 4
    assert raised(alarms, [tick(health_diversity=0.1)], 32) == [[]]  # the only grid of this resolution


def test_numbers_that_are_not_there_raise_nothing():
    assert raised(new_alarms(LOGISTIC), [{}, {"scores/reals": math.nan, "scores/fakes": 0.0}]) == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("has_recipe", [False, True])
def test_the_way_back_is_a_command_that_goes_on_from_a_checkpoint_which_is_there(
    finished_run, tiny_overrides, tmp_path, monkeypatch, has_recipe
):
    """In a directory whose name means something to a shell and to Hydra."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished_run, run_dir := tmp_path / "a run's, (first)")
    if has_recipe:  # of a run that was prolonged
        given = [one.partition("=")[::2] for one in tiny_overrides]
        differences = [Difference(key, yaml.safe_load(value), "given", is_group=False) for key, value in given]
        write_recipe(run_dir / "recipe.yaml", "A recipe.", differences)
    text = way_back(run_dir, 176, begins_from_weights=True)
    assert text.startswith("Go back to the oldest checkpoint that there is (")
    words = shlex.split(text.partition("there is (")[2].removesuffix(")").partition(" " if has_recipe else "with ")[2])
    words = words[1:] if has_recipe else [*tiny_overrides, f"init_from={run_dir}", *words]
    latest = {word.partition("=")[0]: word for word in words}  # what stands last is what counts
    assert main(["train", *latest.values(), "schedule.learning_rate_g=0.0005"]) == 0
    ticks = [json.loads(line)["images"] for line in (tmp_path / "NEW" / "metrics.jsonl").read_text().splitlines()]
    assert ticks[0] > 128
    assert ticks[-1] == (176 if has_recipe else 160)


def test_the_way_back_is_to_the_best_checkpoint_where_there_is_one(tmp_path, monkeypatch):
    for images in (16, 32, 48):
        (tmp_path / "checkpoints" / f"{images:09d}").mkdir(parents=True)
    monkeypatch.setattr("pggan.checkpoints.read.mark_of", lambda place, _: place.name == "000000032")
    text = way_back(tmp_path, 160, begins_from_weights=False)
    assert text.startswith("Go back to the best checkpoint that there is (this run's command with resume=")
    assert "/checkpoints/000000032 run_dir=NEW)" in text
