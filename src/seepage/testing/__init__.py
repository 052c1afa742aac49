"""The checks of this package, for attacks, defenses, metrics and detectors of your own.

    from seepage.testing import check_attack

    def test_my_attack():
        check_attack(MyAttack())

Each takes an object, a class or function that builds one, or a name, and raises CheckFailed with one sentence
on what is wrong and how to mend it.
"""

from seepage.testing.attack import check_attack
from seepage.testing.defense import check_defense
from seepage.testing.detector import check_detector
from seepage.testing.failed import CheckFailed
from seepage.testing.metric import check_metric

__all__ = ["CheckFailed", "check_attack", "check_defense", "check_detector", "check_metric"]
