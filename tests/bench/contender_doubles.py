"""Contenders that misbehave, for workers to run: ``contender_doubles:Wrong`` and so on."""

import os
import time

from gradspec.bench.contenders.ours import Ours
from gradspec.conformance.model.target import NotOfferedError


class Wrong(Ours):
    """Ours, but the value is a little off."""

    def arrays(self, results):
        value, *derivatives = super().arrays(results)
        return [value + 0.01, *derivatives]


class Misshapen(Ours):
    def arrays(self, results):
        return [array.reshape(-1) for array in super().arrays(results)]


class Refusing(Ours):
    def variants(self, problem):
        raise NotOfferedError("not today")


class Raising(Ours):
    def variants(self, problem):
        raise RuntimeError("broken inside")


class HalfWorking(Ours):
    """One way fails and one is slow; the third is kept."""

    def variants(self, problem):
        good, *_ = super().variants(problem).values()

        def fail():
            raise RuntimeError("broken variant")

        def slow():
            time.sleep(0.2)
            return good()

        return {"fail": fail, "slow": slow, "good": good}


class Chatty(Ours):
    def __init__(self, threads):
        super().__init__(threads)
        print("printed by a library")
        os.system("echo printed by a child")

    def variants(self, problem):
        """The first alone: which is the fastest is not told beforehand."""
        (name, call), *_ = super().variants(problem).items()
        return {name: call}


class Dying(Ours):
    def variants(self, problem):
        os._exit(3)


class Hanging(Ours):
    def variants(self, problem):
        time.sleep(3600)
        return {}


class Unstartable:
    def __init__(self, threads):
        raise ImportError("no such library")
