"""The package's own tests: seepage's checks, and that they catch a cheat."""

import pytest
from seepage_plugin.attack import LargestRow
from seepage_plugin.cheat import Peeks
from seepage_plugin.defense import round_off
from seepage_plugin.metric import BRIGHTNESS

from seepage.testing import CheckFailed, check_attack, check_defense, check_metric


def test_the_attack() -> None:
    assert check_attack(LargestRow()).scores["exact"].value == 1.0


def test_the_defense() -> None:
    check_defense(round_off)


def test_the_metric() -> None:
    check_metric(BRIGHTNESS)


def test_a_cheat_is_caught() -> None:
    with pytest.raises(CheckFailed, match="never held the clients' data"):
        check_attack(Peeks())
