"""The choice of an augmentation, from its YAML file or a key."""

import pytest
import yaml

from pggan.augmentation import AUGMENTATIONS, build_augmentation
from pggan.augmentation.ada import Ada
from pggan.augmentation.diffaugment import DiffAugment
from pggan.cli.commands import CONFIGS, choices_of
from pggan.cli.compose import compose
from pggan.core.errors import UserError


def test_there_is_a_file_for_every_augmentation_that_sets_all_of_its_keys():
    assert set(choices_of("augmentation")) == set(AUGMENTATIONS)
    kinds = {"none": type(None), "ada": Ada, "diffaugment": DiffAugment}
    for name, kind in kinds.items():
        options = yaml.safe_load((CONFIGS / "augmentation" / f"{name}.yaml").read_text())
        assert isinstance(build_augmentation(options), kind)
        hash(build_augmentation(options))  # it is part of what a captured step is kept under
    assert compose("train", [])["augmentation"] == {"name": "none"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "adda"}, "There is no augmentation 'adda'"),
        ({"name": "none", "p": 0.5}, "augmentation=none has no key 'p'"),
        ({"name": "diffaugment", "p": 0.5}, "There is no key 'augmentation.p'"),
        ({"name": "ada"}, "'augmentation.p' needs a value"),
    ],
)
def test_what_does_not_exist_is_refused_by_name(options, says):
    with pytest.raises(UserError, match=says):
        build_augmentation(options)
